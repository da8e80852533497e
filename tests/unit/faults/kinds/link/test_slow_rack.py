"""Slow rack: everything that crosses its border is late, on every channel, and nothing inside of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


RACK = "{id: far, at: 1s, for: 6s, kind: slow_rack, rack: b, delay: 40ms}"


async def test_every_channel_across_the_border_and_none_inside(stage: Stage) -> None:
    """Twelve links, both streams of each; its clients' way to its own broker is left alone."""
    await stage.play(RACK)
    links = stage.line("far", "injected").targets.links
    assert {link.partition("_")[0] for link in links} == {"client", "replication", "controller"}
    assert "client_b-k2" not in links
    assert len(stage.world.called("add_toxic")) == 2 * len(links) == 24
    assert stage.line("far", "injected").targets.roles["crossing"] == {"orders": [0, 1, 2, 3, 4, 5]}
    assert {w.asked for w in stage.journal.witnesses("far") if w.unit == "ms"} == {80}
    assert stage.all_ok("far")
    assert stage.world.healthy()


async def test_one_way_is_half_of_it(stage: Stage) -> None:
    """Into the rack: one stream of each link, and a round trip is late once."""
    await stage.play(RACK.replace("rack: b", "rack: b, ways: in"))
    assert len(stage.world.called("add_toxic")) == 12
    assert {w.asked for w in stage.journal.witnesses("far") if w.unit == "ms"} == {40}
    assert stage.all_ok("far")


async def test_a_schedule_goes_to_every_link(stage: Stage) -> None:
    """A ramp on a rack updates every toxic at each turn."""
    await stage.play(RACK.replace("delay: 40ms", "delay: 40ms, ramp_to: 80ms, every: 2s"))
    assert len(stage.world.called("update_toxic")) == 2 * 24
    assert stage.all_ok("far")


async def test_without_effect(stage: Stage) -> None:
    """Toxics that slow nothing are found out, and a rehearsal is silent."""
    stage.world._trip_ms = lambda _link: 1.0  # type: ignore[method-assign, assignment]
    await stage.play(RACK)
    assert [w.ok for w in stage.journal.witnesses("far") if w.unit == "ms"] == [False, False]


async def test_rehearsed(stage: Stage) -> None:
    """No witness may speak for what was not done."""
    await stage.rehearse(RACK)
    assert not any(witness.ok for witness in stage.journal.witnesses("far"))


def test_refused_by_the_check() -> None:
    """A rack that is not there."""
    with pytest.raises(PlanError, match="the cluster has no rack `z`"):
        timeline_of(RACK.replace("rack: b", "rack: z"))
