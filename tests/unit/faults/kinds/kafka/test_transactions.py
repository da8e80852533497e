"""The coordinator of transactions moves, a producer is fenced, and a transaction that nobody ends is aborted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.faults.targets.values import BrokerId, OpenTransaction, PartitionState, TransactionState
from aftershock.tests.unit.faults.conftest import FRAME, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

ID = "orders-baseline-produce"
MOVE = f"{{id: away, at: 1s, for: 5s, kind: move_transaction_coordinator, transactional_id: {ID}}}"
FENCE = f"{{id: fence, at: 1s, kind: fence_producer, transactional_id: {ID}}}"
ABORT = "{id: end, at: 1s, kind: abort_transaction, topic: orders, partition: 2}"
PLACE = ("orders", 2)
OPEN = OpenTransaction(producer_id=7, epoch=3, coordinator_epoch=0, first_offset=90)


@pytest.fixture
def stage() -> Stage:
    return Stage(frame=FRAME.replace("rate: 60/s", "rate: 60/s, transaction: {records: 10}"))


def ongoing(state: str = "Ongoing", partitions: frozenset[tuple[str, int]] = frozenset({PLACE})) -> TransactionState:
    return TransactionState(ID, state, producer_id=7, epoch=3, partitions=partitions)


def state_topic(stage: Stage, *replicas: int) -> None:
    """Create the topic of transactions with one partition, to which all ids then belong."""
    ids = tuple(map(BrokerId, replicas))
    stage.world._partitions["__transaction_state", 0] = PartitionState("__transaction_state", 0, ids[0], 3, ids, ids)


async def test_the_coordinator_moves_and_returns(stage: Stage) -> None:
    state_topic(stage, 2, 3, 1)
    seen: list[int] = []
    await stage.play_with(
        3_000, lambda: seen.append(stage.world._partitions["__transaction_state", 0].leader or 0), MOVE
    )
    seen.append(await stage.world.transaction_coordinator(ID))
    assert [3, 2] == seen
    assert stage.all_ok("away")
    assert {"transactional_id": ID, "partition": 0, "from": 2} == stage.line("away", "injected").targets.roles


@pytest.mark.parametrize(
    ("leader", "in_sync", "expected"), [(3, (1, 2, 3), 1), (1, (1, 2, 3), 2), (2, (1, 2), 1), (3, (3, 2), 2)]
)
async def test_a_coordinator_that_is_not_the_preferred_replica(
    stage: Stage, leader: int, in_sync: tuple[int, ...], expected: int
) -> None:
    """After another fault: the next replica in sync takes over, not one that leads already."""
    ids = tuple(map(BrokerId, (2, 3, 1)))
    state = PartitionState("__transaction_state", 0, BrokerId(leader), 3, ids, tuple(map(BrokerId, in_sync)))
    stage.world._partitions["__transaction_state", 0] = state
    stage.world._catch_up = lambda: None  # type: ignore[method-assign]
    seen: list[int] = []
    await stage.play_with(
        3_000, lambda: seen.append(stage.world._partitions["__transaction_state", 0].leader or 0), MOVE
    )
    assert [expected] == seen
    assert stage.all_ok("away")
    assert ids == stage.world._partitions["__transaction_state", 0].replicas


async def test_no_other_replica_in_sync(stage: Stage) -> None:
    ids = tuple(map(BrokerId, (2, 3, 1)))
    state = PartitionState("__transaction_state", 0, BrokerId(2), 3, ids, (BrokerId(2),))
    stage.world._partitions["__transaction_state", 0] = state
    stage.world._catch_up = lambda: None  # type: ignore[method-assign]
    await stage.play(MOVE)
    assert "has no other replica in sync" in str(stage.line("away", "failed").why)


async def test_a_coordinator_that_stays(stage: Stage) -> None:
    state_topic(stage, 2, 3, 1)

    async def stubborn(_id: str) -> BrokerId:
        return BrokerId(2)

    stage.world.transaction_coordinator = stubborn  # type: ignore[method-assign, assignment]
    await stage.play(MOVE)
    assert f"broker 2 coordinates the transactional id {ID} still" in str(stage.line("away", "failed").why)


async def test_one_replica(stage: Stage) -> None:
    state_topic(stage, 2)
    await stage.play(MOVE)
    assert "__transaction_state has one replica" in str(stage.line("away", "failed").why)


async def test_a_producer_is_fenced(stage: Stage) -> None:
    """The client process of the id is the target; the journal keeps the epoch that was fenced."""
    stage.world.transactional = {ID: ongoing()}
    await stage.play(FENCE)
    targets = stage.line("fence", "injected").targets
    assert (ID,) == targets.clients
    assert {"transactional_id": ID, "producer_id": 7, "epoch": 3} == targets.roles
    assert stage.all_ok("fence")


async def test_a_new_producer_has_come_before_the_witness(stage: Stage) -> None:
    """A client creates a new producer at once, so the epoch is higher than the one that fenced it."""
    stage.world.transactional = {ID: ongoing()}
    fence = stage.world.fence_producer

    async def then_renewed(name: str) -> tuple[int, int]:
        granted = await fence(name)
        await fence(name)
        return granted

    stage.world.fence_producer = then_renewed  # type: ignore[method-assign, assignment]
    await stage.play(FENCE)
    assert stage.all_ok("fence")


async def test_a_fence_without_effect(stage: Stage) -> None:
    stage.world.transactional = {ID: ongoing()}

    async def idle(_id: str) -> tuple[int, int]:
        return 7, 4

    stage.world.fence_producer = idle  # type: ignore[method-assign, assignment]
    await stage.play(FENCE)
    assert [False] == [witness.ok for witness in stage.journal.witnesses("fence")]


async def test_nobody_to_fence(stage: Stage) -> None:
    await stage.play(FENCE)
    assert "no producer has used the transactional id" in str(stage.line("fence", "failed").why)


async def test_a_rehearsed_fence_proves_nothing(stage: Stage) -> None:
    stage.world.transactional = {ID: ongoing()}
    await stage.rehearse(FENCE)
    assert [False] == [witness.ok for witness in stage.journal.witnesses("fence")]
    assert [] == stage.world.called("fence_producer")


@pytest.mark.parametrize(
    "known",
    [
        pytest.param({}, id="no coordinator knows the producer id"),
        pytest.param({ID: ongoing("CompleteAbort", frozenset())}, id="its transaction has ended"),
        pytest.param({ID: ongoing(partitions=frozenset({("orders", 0)}))}, id="it is ongoing elsewhere"),
    ],
)
async def test_a_hanging_transaction_is_aborted(stage: Stage, known: Mapping[str, TransactionState]) -> None:
    stage.world.transactional = dict(known)
    stage.world.open = {PLACE: [OPEN]}
    await stage.play(ABORT)
    assert [("orders", 2, OPEN)] == stage.world.called("write_abort_marker")
    assert stage.all_ok("end")
    assert {"producer_ids": [7], "partition": 2} == stage.line("end", "injected").targets.roles


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
async def test_a_transaction_that_its_coordinator_knows_is_left_alone(stage: Stage, state: str) -> None:
    stage.world.transactional = {ID: ongoing(state)}
    stage.world.open = {PLACE: [OPEN]}
    await stage.play(ABORT)
    assert f"its coordinator knows it as {state}" in str(stage.line("end", "failed").why)
    assert [] == stage.world.called("write_abort_marker")


async def test_a_transaction_that_ends_while_it_is_looked_for(stage: Stage) -> None:
    """Its coordinator has it as complete, because the marker came between the two answers."""
    stage.world.transactional = {ID: ongoing("CompleteCommit", frozenset())}
    stage.world.open = {PLACE: [OPEN]}
    states = stage.world.transaction_states

    async def ended(producer_id: int) -> object:
        stage.world.open = {}
        return await states(producer_id)

    stage.world.transaction_states = ended  # type: ignore[method-assign, assignment]
    await stage.play(ABORT)
    assert "orders/2 has no open transaction now" in str(stage.line("end", "failed").why)
    assert [] == stage.world.called("write_abort_marker")


async def test_a_silent_broker_may_coordinate_the_transaction(stage: Stage) -> None:
    stage.world.open = {PLACE: [OPEN]}
    stage.world.states[BrokerId(3)] = "exited"
    await stage.play(ABORT)
    assert "no broker answered ListTransactions" in str(stage.line("end", "failed").why)
    assert [] == stage.world.called("write_abort_marker")
