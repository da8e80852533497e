"""GC pause: collections stop the JVM for drawn times, by its own log, and the process still runs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError, PlanError
from aftershock.faults.kinds.process.stop import GcPause
from aftershock.faults.plan.check import load_plan
from aftershock.faults.targets.values import BrokerId
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage

PAUSES = "{id: gc, at: 1s, for: 9s, kind: gc_pause, broker: leader of orders/0, stop: 1s, jitter: 200ms, every: 2s}"


async def test_collections_stop_the_leader_for_drawn_times(stage: Stage) -> None:
    await stage.play(PAUSES)
    (begun, pauses), (ended, none) = stage.world.called("set_gc_pauses")
    assert (1, 1) == (begun, ended)
    assert (2_000, 800, 1_200) == (pauses.every_ms, pauses.least_ms, pauses.greatest_ms)
    assert 0 == none.every_ms
    first, last = stage.journal.witnesses("gc")
    assert (1, 5, True) == (first.observed, last.observed, last.ok)
    assert {"verb": "stop_gc_pauses", "args": {"broker": 1}} == stage.line("gc", "intended").undo.as_json()


async def test_shorter_collections_fail_the_witness(stage: Stage) -> None:
    """The broker's own collections do not count, however many there are."""
    stage.world.gc_factor = 0.5
    await stage.play(PAUSES)
    assert [(0, 1, False), (0, 5, False)] == [(w.observed, w.n, w.ok) for w in stage.journal.witnesses("gc")]


async def test_a_dead_node_is_no_collection(stage: Stage) -> None:
    """A frozen or dead process stands still too, for another reason."""
    with pytest.raises(FaultError, match="did not come back"):
        await stage.play_with(9_500, lambda: stage.world._lose(BrokerId(1), "exited"), PAUSES)
    assert [True, False] == [witness.ok for witness in stage.journal.witnesses("gc")]


async def test_a_rehearsal_finds_no_collection(stage: Stage) -> None:
    await stage.rehearse(PAUSES)
    assert not any(witness.ok for witness in stage.journal.witnesses("gc"))
    assert [] == stage.world.called("set_gc_pauses")


async def test_a_cluster_without_the_agent(stage: Stage) -> None:
    stage.world.gc_agent = False
    await stage.play(PAUSES)
    assert "launch it with `cluster: {gc_pauses: true}`" in str(stage.line("gc", "failed").why)


def test_the_same_seed_draws_the_same_stops() -> None:
    fault = GcPause(kind="gc_pause", broker="any broker except controller", stop="1s")
    first, again, other = (fault.draw(random.Random(seed)) for seed in (7, 7, 8))  # noqa: S311 -- repeatable on purpose
    assert first == again != other


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ("stop: 500ms, jitter: 500ms", "`jitter` must be less than `stop`"),
        ("stop: 1950ms, every: 2s", "the JVM must run for 100ms between two stops"),
        ("stop: 50ms", "must be at least 100"),
    ],
)
def test_stops_leave_the_jvm_time_to_run(parameters: str, problem: str) -> None:
    fault = f"  - {{at: 1s, for: 9s, kind: gc_pause, broker: 1, {parameters}}}\n"
    with pytest.raises(PlanError, match=problem):
        load_plan(FRAME + fault)
