"""Slow rack: all traffic across the rack's border is delayed on every channel, and traffic within the rack is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


RACK = "{id: far, at: 1s, for: 6s, kind: slow_rack, rack: b, delay: 40ms}"


async def test_every_channel_across_the_border_and_none_inside(stage: Stage) -> None:
    """Twelve links are slowed in both streams; the links of the rack's clients to its own broker are not."""
    await stage.play(RACK)
    links = stage.line("far", "injected").targets.links
    assert {link.partition("_")[0] for link in links} == {"client", "replication", "controller"}
    assert "client_b-k2" not in links
    assert len(stage.world.called("add_toxic")) == 2 * len(links) == 24
    assert stage.line("far", "injected").targets.roles["crossing"] == {"orders": [0, 1, 2, 3, 4, 5]}
    assert {w.asked for w in stage.journal.witnesses("far") if w.unit == "ms"} == {80}
    assert stage.all_ok("far")
    assert stage.world.healthy()


async def test_one_way_slows_one_stream_per_link(stage: Stage) -> None:
    """Into the rack: one stream of each link is slowed, so a round trip is delayed once."""
    await stage.play(RACK.replace("rack: b", "rack: b, ways: in"))
    assert len(stage.world.called("add_toxic")) == 12
    assert {w.asked for w in stage.journal.witnesses("far") if w.unit == "ms"} == {40}
    assert stage.all_ok("far")


async def test_a_schedule_goes_to_every_link(stage: Stage) -> None:
    """A ramp on a rack updates every toxic at each step."""
    await stage.play(RACK.replace("delay: 40ms", "delay: 40ms, ramp_to: 80ms, every: 2s"))
    assert len(stage.world.called("update_toxic")) == 2 * 24
    assert stage.all_ok("far")


async def test_toxics_without_effect_fail_the_witness(stage: Stage) -> None:
    stage.world._trip_ms = lambda _link: 1.0  # type: ignore[method-assign, assignment]
    await stage.play(RACK)
    assert [w.ok for w in stage.journal.witnesses("far") if w.unit == "ms"] == [False, False]


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    await stage.rehearse(RACK)
    assert not any(witness.ok for witness in stage.journal.witnesses("far"))


def test_an_unknown_rack_is_refused() -> None:
    with pytest.raises(PlanError, match="the cluster has no rack `z`"):
        timeline_of(RACK.replace("rack: b", "rack: z"))
