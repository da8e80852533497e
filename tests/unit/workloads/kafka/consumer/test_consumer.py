"""The consumer as an application uses it: start, assign, poll, close, and errors."""

import asyncio

import pytest

from aftershock.errors import BrokerError, ProtocolError, SettingError, UnsupportedError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import QUICK, Reader, append, asked, fresh_topic, reading
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch_builder import build


async def test_every_record_comes_once_and_in_order(cluster: ScriptedBroker) -> None:
    """Four partitions on two nodes, written before and during the reads."""
    topic = fresh_topic(cluster, 4)
    for number in range(4):
        append(cluster, topic, number, 5)
    async with reading(cluster, topic, dict.fromkeys(range(4), "earliest")) as reader:
        await reader.take(10)
        for number in range(4):
            append(cluster, topic, number, 5)
        await reader.take(30)
    for number in range(4):
        assert list(range(10)) == [offset for _, partition, offset in reader.taken if partition == number]


async def test_a_small_fetch_limit_starves_no_partition(cluster: ScriptedBroker) -> None:
    """A served partition goes to the end: with room for one batch in a response, all partitions advance alike.

    The first response is left out: a broker orders a session by service only from the next one on.
    """
    topic = fresh_topic(cluster, 3, leaders=[1, 1, 1])
    for number in range(3):
        append(cluster, topic, number, 6)
    async with reading(cluster, topic, dict.fromkeys(range(3), 0), fetch_max_bytes=80) as reader:
        await reader.take(10)
    assert [3, 3, 3] == [sum(each[1] == number for each in reader.taken[1:10]) for number in range(3)]


async def test_starting_waits_for_the_topic(cluster: ScriptedBroker) -> None:
    """A missing topic may be created at any moment: start retries until it exists, and its caller has the deadline."""
    reader = Reader({"bootstrap.servers": cluster.bootstrap, "client.id": "late"} | QUICK)
    starting = asyncio.create_task(reader.consumer.start(["late"]))
    await cluster.until("Metadata", 2 + len(cluster.journal("Metadata")))
    assert not starting.done()
    cluster.create("late", 1)
    await asyncio.wait_for(starting, 10)
    late = TopicPartition("late", 0)
    assert await reader.consumer.offsets_for("latest", [late]) == {late: 0}
    await reader.consumer.close(1000)


async def test_a_topic_that_stays_missing_is_an_error(cluster: ScriptedBroker) -> None:
    """After ``default.api.timeout.ms``, with a remedy."""
    reader = Reader({"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 100} | QUICK)
    with pytest.raises(BrokerError, match="there is no topic misspelt; create it first") as raised:
        await asyncio.wait_for(reader.consumer.start(["misspelt"]), 10)
    assert 3 == raised.value.code
    await reader.consumer.close(1000)


async def test_a_start_without_brokers_can_be_cancelled() -> None:
    """After the cancellation the consumer closes without error."""
    reader = Reader({"bootstrap.servers": "127.0.0.1:1"} | QUICK)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.consumer.start(["t"]), 0.1)
    await reader.consumer.close(1000)
    assert [asyncio.current_task()] == list(asyncio.all_tasks())


async def test_an_unauthorized_topic_is_an_error(cluster: ScriptedBroker) -> None:
    """TOPIC_AUTHORIZATION_FAILED in metadata is permanent: an error instead of a wait."""
    cluster.script("Metadata", error=29)
    topic = fresh_topic(cluster)
    with pytest.raises(BrokerError, match=f"the topic {topic} cannot be read: TOPIC_AUTHORIZATION_FAILED"):
        async with reading(cluster, topic, None):
            pass


async def test_a_broker_without_our_fetch_versions_is_an_error() -> None:
    """Poll raises an error with both version ranges, and doesn't hang."""
    with ScriptedBroker(versions={"Fetch": (4, 12)}) as cluster:
        topic = fresh_topic(cluster)
        async with reading(cluster, topic, {0: 0}) as reader:
            with pytest.raises(UnsupportedError, match="FETCH: the broker offers versions 4 to 12"):
                await reader.poll(10_000)


async def test_a_corrupt_batch_is_raised_then_fetched_again(cluster: ScriptedBroker) -> None:
    """A byte was damaged in transit: one poll raises the error, the next fetches again; no record is lost."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    cluster.append(topic, 0, build([b"x" * 100], timestamps_ms=[0]))
    probe = cluster.script("Fetch", garble={200: 255})
    async with reading(cluster, topic, {0: 0}) as reader:
        with pytest.raises(ProtocolError, match=rf"{topic}/0 at offset"):
            await reader.take(2)
        await reader.until(lambda: len(reader.taken) == 2, "the sound records did not come")
    assert [0, 1] == [offset for _, _, offset in reader.taken]
    assert 1 == cluster.fired(probe)


async def test_poll_of_an_idle_topic_returns_an_empty_list(cluster: ScriptedBroker) -> None:
    """The position is unchanged."""
    topic = fresh_topic(cluster)
    async with reading(cluster, topic, {0: 0}) as reader:
        assert [] == await reader.consumer.poll(20)
        assert 0 == reader.consumer.position(TopicPartition(topic, 0))
        assert reader.consumer.position(TopicPartition(topic, 7)) is None


async def test_polls_without_timeout_let_the_loop_run(cluster: ScriptedBroker) -> None:
    """A caller who polls with timeout 0 gets the records that arrive."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}) as reader:
        async with asyncio.timeout(10):
            while not reader.taken:
                await reader.poll(0)


async def test_a_new_assignment_drops_earlier_fetches(cluster: ScriptedBroker) -> None:
    """After a seek no record of the old position is returned, buffered or in flight."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 10)
    partition = TopicPartition(topic, 0)
    async with reading(cluster, topic, {0: 0}, max_poll_records=1) as reader:
        await reader.take(2)
        reader.consumer.assign({partition: 7})
        taken = await reader.take(3)
    assert [7, 8, 9] == [offset for _, _, offset in taken]


async def test_group_operations_require_a_group_id(cluster: ScriptedBroker) -> None:
    """Named errors for subscribe, commit and committed without ``group.id``."""
    async with reading(cluster, fresh_topic(cluster), None) as reader:
        for asking in (
            reader.consumer.subscribe([], print, print),
            reader.consumer.commit(),
            reader.consumer.committed([]),
        ):
            with pytest.raises(SettingError, match=r"group\.id"):
                await asking


async def test_closing_leaves_no_task(cluster: ScriptedBroker) -> None:
    """No failure is reported, although a fetch was in flight; a second close does no harm."""
    topic = fresh_topic(cluster)
    async with reading(cluster, topic, {0: 0}, fetch_max_wait_ms=500) as reader:
        await cluster.until("Fetch", 1 + len(cluster.journal("Fetch")))
        append(cluster, topic, 0)
        await reader.take(1)
    await reader.consumer.close(100)
    assert [asyncio.current_task()] == list(asyncio.all_tasks())
    assert [] == reader.events("fetch_failed")


async def test_closing_is_bounded_without_answers(cluster: ScriptedBroker) -> None:
    """The broker never answers the final request of the session: close gives up at its timeout and reports it."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}) as reader:
        await reader.take(1)
        cluster.script("Fetch", answer="lost", times=10)
        await asyncio.wait_for(reader.consumer.close(50), 5)
        assert [{"timeout_ms": 50}] == reader.events("close_timed_out")


async def test_a_cancelled_poll_loses_no_record(cluster: ScriptedBroker) -> None:
    """The next poll returns the records."""
    topic = fresh_topic(cluster)
    async with reading(cluster, topic, {0: 0}) as reader:
        polling = asyncio.create_task(reader.poll(10_000))
        await cluster.until("Fetch", 1 + len(cluster.journal("Fetch")))
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        append(cluster, topic, 0)
        await reader.take(1)


async def test_traffic_is_counted_by_broker(cluster: ScriptedBroker) -> None:
    """So that cross-rack reads can be distinguished from local reads."""
    topic = fresh_topic(cluster, leaders=[2])
    append(cluster, topic, 0, 20)
    async with reading(cluster, topic, {0: 0}) as reader:
        await reader.take(20)
        sent, received = reader.consumer.brokers.traffic[2]
        assert received > 20 * 60
        assert sent >= sum(seen.size_bytes for seen in asked(cluster, topic, node=2))
