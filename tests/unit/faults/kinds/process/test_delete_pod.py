"""Deletion of a pod: a graceful end that the broker itself proves, and a start at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage

DELETE = "{id: gone, at: 1s, for: 6s, kind: delete_pod, broker: leader of orders/0}"
FORCED = "{id: gone, at: 1s, for: 6s, kind: delete_pod, broker: leader of orders/0, grace: 0s}"


@pytest.fixture
def pods(stage: Stage) -> Stage:
    """Return the stage with a cluster on Kubernetes."""
    pods = replace(stage, frame=stage.frame.replace("topics:", "cluster: {kubernetes: {}}\ntopics:", 1))
    pods.world.pods = True
    return pods


async def test_leaders_move_and_the_broker_is_silent(pods: Stage) -> None:
    """The node leads neither of its two partitions, and answers no request, each second; then it is started."""
    await pods.play(DELETE)
    first, *others = pods.journal.witnesses("gone")
    assert (first.observed, first.n, first.unit) == (0, 2, "partitions")
    assert {witness.unit for witness in others} == {"answers"}
    assert 5 <= len(others) <= 8
    assert pods.all_ok("gone")
    assert pods.world.called("delete_pod") == [(1, None)]
    assert pods.world.called("start") == [1]
    assert pods.line("gone", "intended").undo.as_json() == {"verb": "start", "args": {"broker": 1}}


async def test_a_forced_deletion_says_nothing_about_leaders(pods: Stage) -> None:
    """A broker that is killed after two seconds may lead until its session is over."""
    await pods.play(FORCED)
    assert {witness.unit for witness in pods.journal.witnesses("gone")} == {"answers"}
    assert pods.world.called("delete_pod") == [(1, 0)]


async def test_an_api_server_that_forgets_a_broker_that_runs(pods: Stage) -> None:
    """The deletion of the object alone is no effect: the broker answers, so the injection fails, and is undone."""

    async def forgotten(*_: object, **__: object) -> int:
        return 30_000

    pods.world.delete_pod = forgotten  # type: ignore[method-assign, assignment]
    await pods.play(DELETE)
    assert pods.journal.states("gone") == ["intended", "failed", "healing", "healed"]
    assert "still answers after the deletion of its pod" in str(pods.line("gone", "failed").why)


async def test_a_successor_that_comes_up_meanwhile(pods: Stage) -> None:
    """Such as that of a controller, which is no longer the fault that was planned."""
    await pods.play_with(3_500, lambda: pods.world._regain(1), DELETE)  # type: ignore[arg-type]
    assert not pods.all_ok("gone")


async def test_a_pod_that_its_controller_makes_again(pods: Stage) -> None:
    """The broker was down, which is witnessed once; its successor ends the fault."""
    pods.world.controlled = True
    await pods.play(DELETE)
    assert ["partitions", "answers"] == [witness.unit for witness in pods.journal.witnesses("gone")]
    assert pods.all_ok("gone")
    assert pods.world.called("start") == [1]


async def test_an_eviction(pods: Stage) -> None:
    await pods.play(DELETE.replace("for: 6s", "for: 6s, evict: true"))
    assert pods.world.called("delete_pod") == [(1, None, "evicted")]
    assert pods.all_ok("gone")


async def test_nodes_that_are_no_pods(pods: Stage) -> None:
    pods.world.pods = False
    await pods.play(DELETE)
    assert pods.world.called("delete_pod") == []


@pytest.mark.parametrize("plan", [DELETE, FORCED])
async def test_a_rehearsal_gives_no_proof(pods: Stage, plan: str) -> None:
    await pods.rehearse(plan)
    assert not pods.all_ok("gone")
    assert pods.world.called("delete_pod") == []
