"""The transactional producer against a scripted cluster, in both versions of the transactions."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.producing import Writer, writing
from aftershock.workloads.kafka.rules.transaction_manager import GroupOffsets, State
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch import TRANSACTIONAL, parse

PATIENT_MS = 10_000


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3) as cluster:
        yield cluster


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def level(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def cluster(running: ScriptedBroker, level: int) -> Iterator[ScriptedBroker]:
    running.reset()
    running.set_transaction_version(level)
    yield running
    running.clear()


@asynccontextmanager
async def transacting(cluster: ScriptedBroker, partitions: int = 1, **changes: Any) -> AsyncIterator[Writer]:
    async with writing(cluster, partitions, transactional_id="T", **changes) as writer:
        yield writer


async def begin(writer: Writer) -> None:
    await writer.producer.begin_transaction(PATIENT_MS)


def markers(cluster: ScriptedBroker, topic: str, partition: int = 0) -> list[tuple[str, int]]:
    """Return the log as pairs of record numbers or ``commit``/``abort``, and the producer epoch."""
    found = []
    for batch in parse(cluster.log(topic, partition)):
        for record in batch.records:
            if batch.is_control:
                assert record.key is not None
                text = "commit" if record.key[-1] else "abort"
            else:
                assert batch.header.attributes & TRANSACTIONAL
                text = (record.value or b"").decode()
            found.append((text, batch.header.producer_epoch))
    return found


async def test_commits_and_aborts(cluster: ScriptedBroker, level: int) -> None:
    """Of two partitions; version 2 raises the epoch with each end, and its markers have the next epoch."""
    async with transacting(cluster, 2) as writer:
        await begin(writer)
        for partition in (0, 1):
            writer.offer(2, partition=partition)
        await writer.producer.commit_transaction(PATIENT_MS)
        await begin(writer)
        writer.offer()
        await writer.flush()
        await writer.producer.abort_transaction(PATIENT_MS)
        bump = level - 1
        log = [("0", 0), ("1", 0), ("commit", bump), ("4", bump), ("abort", 2 * bump)]
        assert log == markers(cluster, writer.topic)
        assert [("2", 0), ("3", 0), ("commit", bump)] == markers(cluster, writer.topic, 1)
        assert {1} == {writer.producer.counts[f"transactions_{end}"] for end in ("committed", "aborted")}
        versions = {seen.version for seen in cluster.journal("Produce")}
        assert versions == ({11} if level == 1 else {13})
        assert {4 if level == 1 else 5} == {seen.version for seen in cluster.journal("EndTxn")}
        # two partitions whose batches are ready at once are added by one or two requests, one partition by one
        assert len(cluster.journal("AddPartitionsToTxn")) in ((2, 3) if level == 1 else (0,))


async def test_an_abort_drops_what_was_not_sent(cluster: ScriptedBroker) -> None:
    async with transacting(cluster, linger_ms=5_000, delivery_timeout_ms=60_000) as writer:
        await begin(writer)
        writer.offer(3)
        await writer.producer.abort_transaction(PATIENT_MS)
        assert [] == markers(cluster, writer.topic)
        assert [(ErrorCode.transaction_abortable, False)] == [(d.error, d.in_doubt) for d in writer.deliveries]
        assert not cluster.journal("EndTxn")


@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "EndTxn", "InitProducerId", "Produce"])
@pytest.mark.parametrize(
    "script",
    [
        {"error": int(ErrorCode.concurrent_transactions)},
        {"error": int(ErrorCode.not_coordinator)},
        {"answer": "close"},
        {"answer": "refuse"},
    ],
    ids=str,
)
async def test_steps_are_retried(cluster: ScriptedBroker, level: int, api: str, script: dict[str, Any]) -> None:
    """Applied or not: every record is in the log once, and its transaction is committed once."""
    if (level, api) == (2, "AddPartitionsToTxn"):
        pytest.skip("version 2 has no such request")
    number = cluster.script(api, **script)
    async with transacting(cluster) as writer:
        for _ in range(2):
            await begin(writer)
            writer.offer(2)
            await writer.producer.commit_transaction(PATIENT_MS)
        assert 1 == cluster.fired(number)
        texts = [text for text, _ in markers(cluster, writer.topic)]
        # a repeated EndTxn 4 writes no second marker: the scripted coordinator has no open partition then
        assert ["0", "1", "commit", "2", "3", "commit"] == [text for text in texts if text != "abort"]


async def test_a_failed_batch_forbids_the_commit(cluster: ScriptedBroker, level: int) -> None:
    """The abort is possible; the next transaction has a new epoch and is committed."""
    async with transacting(cluster) as writer:
        cluster.script("Produce", error=int(ErrorCode.message_too_large))
        await begin(writer)
        writer.offer()
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            await writer.producer.commit_transaction(PATIENT_MS)
        assert writer.producer.transactions.state is State.ABORTABLE_ERROR
        assert not writer.producer.transactions.asked
        await writer.producer.abort_transaction(PATIENT_MS)
        await begin(writer)
        writer.offer()
        await writer.producer.commit_transaction(PATIENT_MS)
        ends = markers(cluster, writer.topic)
        assert [("1", 1), ("commit", level)] == ends[-2:]


async def test_a_fenced_producer_fails_for_good(cluster: ScriptedBroker) -> None:
    """A second producer with the transactional id aborts what is open; the first can't commit any more."""
    async with transacting(cluster) as writer:
        await begin(writer)
        writer.offer()
        await writer.flush()
        async with transacting(cluster):
            with pytest.raises(BrokerError, match="PRODUCER_FENCED"):
                await writer.producer.commit_transaction(PATIENT_MS)
        assert ("abort", 1) == markers(cluster, writer.topic)[-1]
        with pytest.raises(ClientError):
            await begin(writer)


async def test_a_commit_without_an_answer_may_be_repeated(cluster: ScriptedBroker) -> None:
    cluster.script("EndTxn", delay_ms=300)
    async with transacting(cluster) as writer:
        await begin(writer)
        writer.offer()
        with pytest.raises(TimeoutError):
            await writer.producer.commit_transaction(100)
        assert writer.producer.transactions.asked
        await writer.producer.commit_transaction(PATIENT_MS)
        assert writer.producer.transactions.committed


async def test_an_abort_after_a_commit_without_an_answer(cluster: ScriptedBroker) -> None:
    """The reference client lets an application do what Kafka's clients refuse; the commit's answer still counts."""
    cluster.script("EndTxn", delay_ms=300)
    async with transacting(cluster) as writer:
        await begin(writer)
        writer.offer()
        with pytest.raises(TimeoutError):
            await writer.producer.commit_transaction(100)
        with pytest.raises(ClientError, match="COMMITTING"):
            await writer.producer.abort_transaction(PATIENT_MS)
        await writer.producer.abort_transaction(PATIENT_MS, after_commit=True)
        assert writer.producer.transactions.committed


async def test_records_outside_a_transaction_are_refused(cluster: ScriptedBroker) -> None:
    async with transacting(cluster) as writer:
        writer.offer()
        assert [ErrorCode.invalid_txn_state] == [delivery.error for delivery in writer.deliveries]
        assert not cluster.journal("Produce")


def offsets_of(writer: Writer, offset: int = 5) -> GroupOffsets:
    return GroupOffsets("readers", {TopicPartition(writer.topic, 0): (offset, 2)}, "member-1", 9, None)


def committed(cluster: ScriptedBroker, writer: Writer) -> int | None:
    """Return the offset that the group has committed."""
    return cluster.committed("readers").get((writer.topic, 0))


async def test_offsets_are_committed_with_the_transaction(cluster: ScriptedBroker, level: int) -> None:
    """With the metadata of the member; an abort commits none."""
    async with transacting(cluster) as writer:
        producer = writer.producer
        await begin(writer)
        writer.offer()
        await producer.send_offsets_to_transaction(offsets_of(writer), PATIENT_MS)
        assert committed(cluster, writer) is None
        await producer.commit_transaction(PATIENT_MS)
        assert 5 == committed(cluster, writer)
        await begin(writer)
        await producer.send_offsets_to_transaction(offsets_of(writer, 6), PATIENT_MS)
        await producer.abort_transaction(PATIENT_MS)
        assert 5 == committed(cluster, writer)
        seen = cluster.journal("TxnOffsetCommit")
        assert {(4 if level == 1 else 5, "member-1", 9)} == {
            (each.version, each.fields["member_id"], each.fields["generation_id"]) for each in seen
        }
        assert len(cluster.journal("AddOffsetsToTxn")) == (2 if level == 1 else 0)


@pytest.mark.parametrize("api", ["AddOffsetsToTxn", "TxnOffsetCommit"])
@pytest.mark.parametrize(
    "script",
    [
        {"error": int(ErrorCode.concurrent_transactions)},
        {"error": int(ErrorCode.not_coordinator)},
        {"answer": "close"},
        {"answer": "refuse"},
    ],
    ids=str,
)
async def test_offsets_are_sent_again(cluster: ScriptedBroker, level: int, api: str, script: dict[str, Any]) -> None:
    if (level, api) == (2, "AddOffsetsToTxn"):
        pytest.skip("version 2 has no such request")
    async with transacting(cluster) as writer:
        await begin(writer)
        cluster.script(api, **script)
        await writer.producer.send_offsets_to_transaction(offsets_of(writer), PATIENT_MS)
        await writer.producer.commit_transaction(PATIENT_MS)
        assert 5 == committed(cluster, writer)
        assert len(cluster.journal(api)) >= 2


async def test_a_member_that_is_refused_aborts(cluster: ScriptedBroker) -> None:
    """Its records and offsets are not committed, and its next transaction is."""
    async with transacting(cluster) as writer:
        producer = writer.producer
        await begin(writer)
        writer.offer()
        await writer.flush()
        cluster.script("TxnOffsetCommit", error=int(ErrorCode.illegal_generation))
        with pytest.raises(BrokerError, match="must be aborted: ILLEGAL_GENERATION"):
            await producer.send_offsets_to_transaction(offsets_of(writer), PATIENT_MS)
        await producer.abort_transaction(PATIENT_MS)
        assert committed(cluster, writer) is None
        await begin(writer)
        await producer.send_offsets_to_transaction(offsets_of(writer, 6), PATIENT_MS)
        await producer.commit_transaction(PATIENT_MS)
        assert 6 == committed(cluster, writer)


async def test_offsets_without_an_answer_are_given_up(cluster: ScriptedBroker) -> None:
    async with transacting(cluster) as writer:
        await begin(writer)
        cluster.script("TxnOffsetCommit", answer="none")
        with pytest.raises(TimeoutError, match="not committed within 200 ms"):
            await writer.producer.send_offsets_to_transaction(offsets_of(writer), 200)
