"""A Kubernetes node out of service: no pod is placed there, and the brokers on it leave as budgets allow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import ClusterError

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage

DRAIN = "{id: drained, at: 1s, for: 8s, kind: drain, broker: 1}"


@pytest.fixture
def pods(stage: Stage) -> Stage:
    """Return the stage with a cluster on Kubernetes, whose brokers 1 and 2 are on one node."""
    pods = replace(stage, frame=stage.frame.replace("topics:", "cluster: {kubernetes: {nodes: true}}\ntopics:", 1))
    pods.world.pods = pods.world.controlled = True
    return pods


async def test_all_brokers_of_the_node_leave_and_it_takes_pods_again(pods: Stage) -> None:
    await pods.play(DRAIN)
    assert ["m1"] == pods.world.called("cordon")
    assert [(1, None, "evicted"), (2, None, "evicted")] == pods.world.called("delete_pod")
    assert (["m1"], [1, 2]) == (pods.world.called("uncordon"), pods.world.called("start"))
    assert pods.all_ok("drained")
    line = pods.line("drained", "intended")
    assert [1, 2] == [*line.targets.brokers]
    assert ["uncordon", "start", "start"] == [undo["verb"] for undo in line.undo.args["undos"]]


async def test_an_eviction_waits_for_its_budget(pods: Stage) -> None:
    """The second broker may go only after a while, as with `maxUnavailable: 1`."""
    delete, refusals = pods.world.delete_pod, [2, 2, 2]

    async def reluctant(broker: int, grace_ms: int | None, *, evict: bool = False) -> int:
        if broker in refusals:
            refusals.remove(broker)
            raise ClusterError("the disruption budget needs 2 healthy pods")
        return await delete(broker, grace_ms, evict=evict)  # type: ignore[arg-type]

    pods.world.delete_pod = reluctant  # type: ignore[method-assign, assignment]
    await pods.play(DRAIN)
    assert [] == refusals
    assert pods.all_ok("drained")


async def test_a_budget_that_never_allows_it_is_told(pods: Stage) -> None:
    delete = pods.world.delete_pod

    async def never(broker: int, grace_ms: int | None, *, evict: bool = False) -> int:
        if broker == 2:
            raise ClusterError("the disruption budget needs 2 healthy pods")
        return await delete(broker, grace_ms, evict=evict)  # type: ignore[arg-type]

    pods.world.delete_pod = never  # type: ignore[method-assign, assignment]
    await pods.play(DRAIN)
    (unseen,) = [witness for witness in pods.journal.witnesses("drained") if not witness.ok]
    assert "pod of broker 2 that was not evicted (the disruption budget needs 2" in unseen.what
    assert ["m1"] == pods.world.called("uncordon")


async def test_a_rehearsal_changes_nothing(pods: Stage) -> None:
    await pods.rehearse(DRAIN)
    assert ([], []) == (pods.world.called("cordon"), pods.world.called("delete_pod"))


async def test_an_error_ends_all_evictions_before_the_undo(pods: Stage) -> None:
    """The API server fails while the second broker waits for its budget, which then allows its eviction."""
    delete, cordoned, asked = pods.world.delete_pod, pods.world.cordoned, [0]

    async def reluctant(broker: int, grace_ms: int | None, *, evict: bool = False) -> int:
        if broker == 2 and asked[0] < 4:
            raise ClusterError("the disruption budget needs 2 healthy pods")
        return await delete(broker, grace_ms, evict=evict)  # type: ignore[arg-type]

    async def failing(machine: str, fault: str) -> bool:
        asked[0] += 1
        if asked[0] == 4:
            raise ClusterError("the API server does not answer")
        return await cordoned(machine, fault)

    pods.world.delete_pod, pods.world.cordoned = reluctant, failing  # type: ignore[method-assign, assignment]
    await pods.play(DRAIN)
    assert [(1, None, "evicted")] == pods.world.called("delete_pod")


async def test_a_node_is_drained_once_at_a_time(pods: Stage) -> None:
    pods.world.cordons["m1"] = "another"
    await pods.play(DRAIN)
    assert "the Kubernetes node m1 is cordoned already" in str(pods.line("drained", "failed").why)
    assert {"m1": "another"} == pods.world.cordons


async def test_a_node_that_somebody_uncordons_meanwhile(pods: Stage) -> None:
    await pods.play_with(4_500, pods.world.cordons.clear, DRAIN)
    assert not pods.all_ok("drained")


async def test_a_broker_whose_pod_is_nowhere(pods: Stage) -> None:
    del pods.world.homes[1]  # type: ignore[arg-type]
    await pods.play(DRAIN)
    assert "is on no Kubernetes node" in str(pods.line("drained", "failed").why)
    assert [] == pods.world.called("cordon")
