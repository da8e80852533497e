"""Commits as transactions: the requests, and the state after a failed step."""

from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.committing import Keeper, committing

STEPS = ("InitProducerId", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ScriptedBroker) -> Iterator[ScriptedBroker]:
    yield running
    running.clear()


def transactional_id(keeper: Keeper, group: int = 0) -> str:
    return f"{keeper.topic}-{keeper.targets[group].group}-{keeper.targets[group].partition}"


async def test_a_commit_is_one_transaction(cluster: ScriptedBroker) -> None:
    """One id for all commits, then three requests for each; every commit is in a transaction."""
    async with committing(cluster, 2, transactional=True) as keeper:
        for _ in range(3):
            keeper.offer(0)
            keeper.offer(1)
        outcomes = await keeper.settle()
        assert [(0, False, 1)] * 6 == [(o.error, o.in_doubt, o.attempts) for o in outcomes]
        assert [2, 6, 6, 6] == [len(keeper.asked(step)) for step in STEPS]
        assert not keeper.asked("OffsetCommit")
        assert [4, 5] == [keeper.committed(0), keeper.committed(1)]
        assert 6 == keeper.committer.counts["transactions_committed"]


async def test_the_protocol_predates_kip_890s_second_part(cluster: ScriptedBroker) -> None:
    """From the next versions on, a client must not add offsets itself, and gets a new epoch with every end."""
    async with committing(cluster, transactional=True) as keeper:
        keeper.offer()
        await keeper.settle()
        assert [5, 4, 4, 4] == [keeper.asked(step)[0].version for step in STEPS]


@pytest.mark.parametrize("moves", ["group", "id"])
async def test_only_the_moved_coordinator_is_looked_up(cluster: ScriptedBroker, moves: str) -> None:
    """The group and the transactional id have independent coordinators."""
    async with committing(cluster, transactional=True) as keeper:
        keeper.offer()
        await keeper.settle()
        cluster.move_coordinator(keeper.targets[0].group if moves == "group" else transactional_id(keeper), 2)
        keeper.offer()
        outcome = (await keeper.settle())[1]
        assert (0, 1 if moves == "group" else 2) == (outcome.error, outcome.broker_id)
        assert (3, 1) == (
            keeper.committer.counts["coordinator_lookups"],
            keeper.committer.counts["transaction_steps_retried"],
        )
        assert 1 == keeper.committed()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("answer", ["close", "refuse"])
async def test_a_lost_connection_repeats_one_step(cluster: ScriptedBroker, step: str, answer: str) -> None:
    """A connection that is lost before or after a step was carried out costs that step again, and no more."""
    async with committing(cluster, transactional=True) as keeper:
        cluster.script(step, answer=answer)  # type: ignore[arg-type]
        keeper.offer()
        (outcome,) = await keeper.settle()
        assert 0 == outcome.error
        assert [1 + (step == each) for each in STEPS] == [len(keeper.asked(each)) for each in STEPS]
        assert 0 == keeper.committed()


async def test_a_refused_commit_is_aborted(cluster: ScriptedBroker) -> None:
    """The commit has failed for certain, and the next one uses the same id."""
    async with committing(cluster, transactional=True) as keeper:
        cluster.script("TxnOffsetCommit", partition=(keeper.topic, 0), error=ErrorCode.unknown_member_id)
        keeper.offer()
        (refused,) = await keeper.settle()
        assert (ErrorCode.unknown_member_id, False, 0) == (refused.error, refused.in_doubt, refused.attempts)
        keeper.offer()
        assert 0 == (await keeper.settle())[1].error
        assert [False, True] == [seen.fields["committed"] for seen in keeper.asked("EndTxn")]
        assert 1 == len(keeper.asked("InitProducerId"))


async def test_a_fenced_id_gets_a_new_epoch(cluster: ScriptedBroker) -> None:
    """The commit has failed; the next one has another epoch, and is committed."""
    async with committing(cluster, transactional=True) as keeper:
        cluster.script("AddOffsetsToTxn", error=ErrorCode.producer_fenced)
        keeper.offer()
        (refused,) = await keeper.settle()
        assert (ErrorCode.producer_fenced, False) == (refused.error, refused.in_doubt)
        keeper.offer()
        assert 0 == (await keeper.settle())[1].error
        assert 2 == len(keeper.asked("InitProducerId"))
        assert 1 == keeper.committed()


async def test_an_expired_commit_is_aborted(cluster: ScriptedBroker) -> None:
    """Its end was not requested, so it failed for certain, and must not be committed later."""
    async with committing(cluster, transactional=True, delivery_timeout_ms=150, request_timeout_ms=150) as keeper:
        loading = ErrorCode.coordinator_load_in_progress
        number = cluster.script("TxnOffsetCommit", partition=(keeper.topic, 0), error=loading, times=999)
        keeper.offer()
        (outcome,) = await keeper.settle()
        assert (ErrorCode.request_timed_out, False) == (outcome.error, outcome.in_doubt)
        await keeper.until(lambda: keeper.asked("EndTxn"), "the transaction was not ended")
        assert [False] == [seen.fields["committed"] for seen in keeper.asked("EndTxn")]
        assert keeper.committed() is None
        assert cluster.fired(number) > 1


async def test_an_unanswered_end_leaves_doubt(cluster: ScriptedBroker) -> None:
    """The broker ended the transaction, but the answer missed the deadline."""
    async with committing(cluster, transactional=True, delivery_timeout_ms=300, request_timeout_ms=100) as keeper:
        cluster.script("EndTxn", answer="none", times=99)
        keeper.offer()
        (outcome,) = await keeper.settle()
        assert (ErrorCode.request_timed_out, True) == (outcome.error, outcome.in_doubt)
        assert 0 == keeper.committed()
