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


async def test_version_1_is_used_without_the_feature(cluster: ScriptedBroker) -> None:
    """In the next versions, which the broker offers, a client doesn't add offsets itself."""
    async with committing(cluster, transactional=True) as keeper:
        keeper.offer()
        await keeper.settle()
        assert [5, 4, 4, 4] == [keeper.asked(step)[0].version for step in STEPS]


@pytest.fixture
def version_2() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=1) as cluster:
        cluster.set_transaction_version(2)
        yield cluster


async def test_version_2_needs_two_requests_and_raises_the_epoch(version_2: ScriptedBroker) -> None:
    """KIP-890: TxnOffsetCommit adds the offsets, and the answer to EndTxn has the epoch of the next transaction."""
    async with committing(version_2, transactional=True) as keeper:
        keeper.offer(count=1)
        await keeper.settle()
        version_2.script("EndTxn", answer="close")
        version_2.script("TxnOffsetCommit", partition=(keeper.topic, 0), error=ErrorCode.concurrent_transactions)
        keeper.offer(count=1)
        outcomes = await keeper.settle()
        assert [0, 0] == [outcome.error for outcome in outcomes]
        assert [1, 0, 3, 3] == [len(keeper.asked(step)) for step in STEPS]
        for step, epochs in (("TxnOffsetCommit", [0, 1, 1]), ("EndTxn", [0, 1, 1])):
            assert [(5, epoch) for epoch in epochs] == [
                (seen.version, seen.fields["producer_epoch"]) for seen in keeper.asked(step)
            ]
        assert 1 == keeper.committed()


async def test_an_abort_raises_the_epoch_too(version_2: ScriptedBroker) -> None:
    async with committing(version_2, transactional=True) as keeper:
        version_2.script("TxnOffsetCommit", partition=(keeper.topic, 0), error=ErrorCode.unknown_member_id)
        keeper.offer()
        await keeper.settle()
        keeper.offer()
        assert 0 == (await keeper.settle())[1].error
        ends = [(seen.fields["committed"], seen.fields["producer_epoch"]) for seen in keeper.asked("EndTxn")]
        assert [(False, 0), (True, 1)] == ends


async def test_a_new_version_begins_after_a_transaction() -> None:
    """With another InitProducerId (``clientSideEpochBumpRequired``); new features are seen by new connections."""
    with ScriptedBroker(nodes=1) as own:
        async with committing(own, transactional=True) as keeper:
            keeper.offer()
            await keeper.settle()
            own.set_transaction_version(2)
            own.close_connections(1)
            for _ in range(2):
                keeper.offer()
                await keeper.settle()
            assert [4, 4, 5] == [seen.version for seen in keeper.asked("EndTxn")]
            assert [2, 2] == [len(keeper.asked(step)) for step in ("InitProducerId", "AddOffsetsToTxn")]
            assert 2 == keeper.committed()


@pytest.mark.parametrize("api", ["EndTxn", "TxnOffsetCommit"])
async def test_a_capped_api_keeps_version_1(api: str) -> None:
    """Although the feature has level 2."""
    with ScriptedBroker(nodes=1, versions={api: (0, 4)}) as capped:
        capped.set_transaction_version(2)
        async with committing(capped, transactional=True) as keeper:
            keeper.offer()
            await keeper.settle()
            assert [5, 4, 4, 4] == [keeper.asked(step)[0].version for step in STEPS]
            assert 0 == keeper.committed()


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
