"""Look-up and validation of positions, at scripted leaders that refuse, lag and truncate."""

from collections.abc import Iterator

import pytest

from aftershock.errors import BrokerError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import append, asked, fresh_topic, reading
from aftershock.workloads.kafka.rules.values import TopicPartition


@pytest.fixture
def cluster(running: ScriptedBroker) -> Iterator[ScriptedBroker]:
    yield running
    running.clear()
    running.publish()


@pytest.mark.parametrize(("start", "offsets"), [("earliest", [2, 3, 4, 5]), ("latest", [5])])
async def test_either_end_is_looked_up_at_each_leader(cluster: ScriptedBroker, start: str, offsets: list[int]) -> None:
    """One request for each leader, for any number of partitions; reading starts at that end."""
    topic = fresh_topic(cluster, 3, leaders=[1, 2, 1])
    append(cluster, topic, 0, 5)
    cluster.set_log(topic, 0, start=2)
    async with reading(cluster, topic, {0: start, 1: start, 2: start}) as reader:
        await reader.until(lambda: len(reader.events("position_found")) == 3, "not all positions were found")
        append(cluster, topic, 0)
        await reader.until(lambda: len(reader.taken) == len(offsets), "other records came than there are")
    assert offsets == [offset for _, _, offset in reader.taken]
    assert [1, 2] == sorted(seen.node for seen in asked(cluster, topic, "ListOffsets"))


@pytest.mark.parametrize("error", [3, 5, 6, 9, 56, 74, 75, 78, 500])
async def test_a_lookup_that_fails_is_tried_again_with_fresh_metadata(cluster: ScriptedBroker, error: int) -> None:
    """For any error code: the second request finds the position."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    cluster.script("ListOffsets", error=error)
    async with reading(cluster, topic, {0: "earliest"}) as reader:
        await reader.take(1)
    assert 2 == len(asked(cluster, topic, "ListOffsets"))
    assert 2 <= len(asked(cluster, topic, "Metadata"))


async def test_a_lookup_that_is_never_answered_is_tried_again(cluster: ScriptedBroker) -> None:
    """The broker closes the connection instead of answering."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    cluster.script("ListOffsets", answer="refuse")
    async with reading(cluster, topic, {0: "earliest"}) as reader:
        await reader.take(1)
    assert 2 == len(asked(cluster, topic, "ListOffsets"))


async def test_lookups_that_fail_in_turn_are_all_retried(cluster: ScriptedBroker) -> None:
    """The second fails while the first waits for its retry: both are retried."""
    topic = fresh_topic(cluster, 2, leaders=[1, 2])
    append(cluster, topic, 0)
    append(cluster, topic, 1)
    cluster.script("ListOffsets", node=1, error=78)
    cluster.script("ListOffsets", node=2, error=78, delay_ms=300)
    cluster.script("ListOffsets", node=1, answer="none")  # its second try: so that nothing wakes the loop for the other
    settings = {"retry_backoff_ms": 400, "retry_backoff_max_ms": 400}
    async with reading(cluster, topic, {0: "earliest", 1: "earliest"}, **settings) as reader:
        await reader.take(1)
        assert [1] == [partition for _, partition, _ in reader.taken]


async def test_an_unauthorized_lookup_is_raised_by_each_poll(cluster: ScriptedBroker) -> None:
    """TOPIC_AUTHORIZATION_FAILED is raised; once it is lifted, reading continues."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    cluster.script("ListOffsets", error=29, times=2)
    async with reading(cluster, topic, {0: "earliest"}) as reader:
        for _ in range(2):
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                await reader.poll(10_000)
        await reader.take(1)


async def test_a_truncated_log_resets_the_position(cluster: ScriptedBroker) -> None:
    """The new leader's log ends before the position: with a reset policy, reading continues at that end, with an
    event.
    """
    topic = fresh_topic(cluster, leaders=[1])
    append(cluster, topic, 0, 5)
    async with reading(cluster, topic, {0: 0}) as reader:
        await reader.take(5)
        cluster.truncate(topic, 0, 3)
        cluster.move_leader(topic, 0, to=2)
        append(cluster, topic, 0, 2)
        taken = await reader.take(2)
        assert [3, 4] == [offset for _, _, offset in taken]
        (told,) = reader.events("truncation_detected")
        assert (5, 3, True) == (told["offset"], told["end"], told["mended"])
        assert 1 == reader.consumer.counts["truncations_detected"]


async def test_a_truncation_without_a_policy_is_raised(cluster: ScriptedBroker) -> None:
    """Records that were read are gone: the application decides."""
    topic = fresh_topic(cluster, leaders=[1])
    append(cluster, topic, 0, 5)
    async with reading(cluster, topic, {0: 0}, auto_offset_reset="none") as reader:
        await reader.take(5)
        cluster.truncate(topic, 0, 3)
        cluster.move_leader(topic, 0, to=2)
        with pytest.raises(BrokerError, match=r"truncated before offset 5 \(its end: 3\)"):
            await reader.poll(10_000)
        append(cluster, topic, 0)
        reader.consumer.assign({TopicPartition(topic, 0): 3})
        await reader.take(1)


@pytest.mark.parametrize("error", [6, 74, 75, 78, 500])
async def test_a_validation_that_fails_is_tried_again(cluster: ScriptedBroker, error: int) -> None:
    """No record is fetched from a leader that hasn't confirmed the position."""
    topic = fresh_topic(cluster, leaders=[1])
    append(cluster, topic, 0)
    async with reading(cluster, topic, {0: 0}) as reader:
        await reader.take(1)
        cluster.script("OffsetForLeaderEpoch", error=error)
        cluster.move_leader(topic, 0, to=2)
        append(cluster, topic, 0)
        await reader.take(1)
    validations = asked(cluster, topic, "OffsetForLeaderEpoch")
    assert 2 == len(validations)
    assert validations[-1].number < asked(cluster, topic, node=2)[0].number


async def test_a_broker_without_validation_keeps_the_position() -> None:
    """OffsetsForLeaderEpoch before version 3 is for followers only: no validation, and reading continues."""
    with ScriptedBroker(nodes=2, versions={"OffsetForLeaderEpoch": (2, 2)}) as cluster:
        topic = fresh_topic(cluster, leaders=[1])
        append(cluster, topic, 0)
        async with reading(cluster, topic, {0: 0}) as reader:
            await reader.take(1)
            cluster.move_leader(topic, 0, to=2)
            append(cluster, topic, 0)
            await reader.take(1)
        assert [] == asked(cluster, topic, "OffsetForLeaderEpoch")


async def test_beginning_and_end_offsets(cluster: ScriptedBroker) -> None:
    """Also of partitions that aren't assigned; a leader that refuses at first gets a second request."""
    topic = fresh_topic(cluster, 2, leaders=[1, 2])
    append(cluster, topic, 0, 4)
    cluster.set_log(topic, 0, start=1)
    cluster.script("ListOffsets", node=1, error=78)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with reading(cluster, topic, None) as reader:
        assert {first: 1, second: 0} == await reader.consumer.offsets_for("earliest", [first, second])
        assert {first: 4, second: 0} == await reader.consumer.offsets_for("latest", [first, second])


async def test_end_offsets_of_an_unauthorized_topic_are_an_error(cluster: ScriptedBroker) -> None:
    """The request is not retried for ever."""
    topic = fresh_topic(cluster)
    cluster.script("ListOffsets", error=29)
    async with reading(cluster, topic, None) as reader:
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await reader.consumer.offsets_for("earliest", [TopicPartition(topic, 0)])
