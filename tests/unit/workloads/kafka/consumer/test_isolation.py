"""What consumers of either isolation level get of transactions, against a scripted cluster."""

import pytest

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import reading
from aftershock.tests.unit.workloads.kafka.producing import writing
from aftershock.workloads.kafka.rules.values import TopicPartition

PATIENT_MS = 10_000


@pytest.mark.parametrize("level", [1, 2])
async def test_isolation(cluster: ScriptedBroker, level: int) -> None:
    """Offsets 0 1 | commit 2 | 3 4 | abort 5 | 6 | commit 7: markers and aborted records only move the position."""
    cluster.reset()
    cluster.set_transaction_version(level)
    async with writing(cluster, transactional_id="T") as writer:
        for count, commits in ((2, True), (2, False), (1, True)):
            await writer.producer.begin_transaction(PATIENT_MS)
            writer.offer(count)
            await writer.flush()
            end = writer.producer.commit_transaction if commits else writer.producer.abort_transaction
            await end(PATIENT_MS)
        at = TopicPartition(writer.topic, 0)
        for isolation, expected in (("read_committed", [0, 1, 6]), ("read_uncommitted", [0, 1, 3, 4, 6])):
            async with reading(cluster, writer.topic, {0: 0}, isolation_level=isolation) as reader:
                await reader.until(lambda: reader.consumer.position(at) == 8, "the end was not reached")
                assert expected == [offset for _, _, offset in reader.taken]
        fetches = [seen for seen in cluster.journal("Fetch") if seen.fields.get("isolation_level") == 1]
        assert fetches


async def test_an_open_transaction_holds_committed_readers_back(cluster: ScriptedBroker) -> None:
    """They stop at the last stable offset, and start there if they start at the end."""
    cluster.reset()
    async with writing(cluster, transactional_id="T") as writer:
        await writer.producer.begin_transaction(PATIENT_MS)
        writer.offer()
        await writer.producer.commit_transaction(PATIENT_MS)
        await writer.producer.begin_transaction(PATIENT_MS)
        writer.offer()
        await writer.flush()
        at = TopicPartition(writer.topic, 0)
        async with (
            reading(cluster, writer.topic, {0: 0}, isolation_level="read_committed") as committed,
            reading(cluster, writer.topic, {0: "latest"}, isolation_level="read_committed") as latest,
            reading(cluster, writer.topic, {0: 0}) as uncommitted,
        ):
            await uncommitted.take(2)
            await committed.until(lambda: committed.consumer.position(at) == 2, "it did not reach the marker")
            await latest.until(lambda: latest.consumer.position(at) == 2, "it has no position")
            await committed.poll(200)
            assert [0] == [offset for _, _, offset in committed.taken]
            await writer.producer.commit_transaction(PATIENT_MS)
            assert [(writer.topic, 0, 2)] == await latest.take(1)
            assert 2 == len(committed.taken) or await committed.take(2)
