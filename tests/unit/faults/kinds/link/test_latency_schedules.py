"""Latency schedules: ramps and spikes are drawn by the compiler and witnessed while they are in force."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


LINK = 'at: 0s, for: 8s, link: "client(a) -> broker(2)"'
RAMP = f"{{id: slow, kind: latency, {LINK}, delay: 20ms, ramp_to: 160ms, every: 1s}}"
SPIKES = f"{{id: slow, kind: latency, {LINK}, delay: 20ms, spikes: {{count: 2, delay: 300ms}}, every: 1s}}"


def updates(stage: Stage) -> list[int]:
    return [delay for proxy, delay in stage.world.called("update_toxic") if proxy == "client_a-k2"]  # type: ignore[misc]


async def test_a_ramp_goes_in_equal_steps(stage: Stage) -> None:
    """A ramp has eight equal steps, and the last probe expects more than the first."""
    assert timeline_of(RAMP).steps[0].draws["delay_ms"] == [20, 40, 60, 80, 100, 120, 140, 160]
    await stage.play(RAMP)
    assert updates(stage) == [40, 60, 80, 100, 120, 140, 160]
    asked = [witness.asked for witness in stage.journal.witnesses("slow") if witness.unit == "ms"]
    assert asked[0] == 20
    assert asked[-1] >= 140
    assert stage.all_ok("slow")


def test_a_ramp_may_fall_and_have_jitter() -> None:
    """Each drawn delay is within the jitter around its step of the ramp."""
    fault = RAMP.replace("delay: 20ms, ramp_to: 160ms", "delay: 160ms, ramp_to: 20ms, jitter: 5ms")
    drawn = timeline_of(fault).steps[0].draws["delay_ms"]
    assert all(abs(ms - (160 - 20 * turn)) <= 5 for turn, ms in enumerate(drawn))
    assert all(later < earlier for earlier, later in pairwise(drawn))


async def test_spikes_are_drawn_and_each_is_probed(stage: Stage) -> None:
    """Two spikes use the larger delay, other seconds the normal one, and a probe measures each spike."""
    draws = timeline_of(SPIKES).steps[0].draws
    assert len(draws["spikes"]) == 2
    assert [ms for turn, ms in enumerate(draws["delay_ms"]) if turn in draws["spikes"]] == [300, 300]
    assert draws["delay_ms"].count(20) == 6
    await stage.play(SPIKES)
    felt = [w for w in stage.journal.witnesses("slow") if w.unit == "ms" and w.asked == 300]
    assert len(felt) >= 2
    assert all(witness.observed == 300 for witness in felt)
    assert stage.all_ok("slow")


async def test_a_spike_without_effect(stage: Stage) -> None:
    """Updates that are accepted without effect fail the probe of the spike."""
    stage.world._trip_ms = lambda _link: 21.0  # type: ignore[method-assign, assignment]
    await stage.play(SPIKES.replace("delay: 20ms", "delay: 1ms"))
    assert not stage.all_ok("slow")


def test_spikes_depend_on_the_seed() -> None:
    drawn = {tuple(timeline_of(SPIKES, seed=seed).steps[0].draws["spikes"]) for seed in range(8)}
    assert len(drawn) > 1
    assert timeline_of(SPIKES, seed=3).steps[0].draws == timeline_of(SPIKES, seed=3).steps[0].draws


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("delay: 20ms, ramp_to: 60ms, every: 8s", "`ramp_to` needs at least two intervals"),
        ("delay: 20ms, spikes: {count: 16, delay: 50ms}", "only 14 intervals can be spikes"),
        ("delay: 20ms, spikes: {count: 2, delay: 300ms}", "set `every` to 700ms"),
        ("delay: 20ms, ramp_to: 5ms, jitter: 10ms", "exceeds the lowest delay of 5ms"),
    ],
)
def test_invalid_schedules_are_refused(words: str, message: str) -> None:
    """A ramp without steps, spikes that do not fit, and negative delays are refused before anything starts."""
    with pytest.raises(PlanError, match=message):
        timeline_of(f"{{kind: latency, {LINK}, {words}}}")
