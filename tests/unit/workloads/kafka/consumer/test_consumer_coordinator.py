"""Consumers in a group (KIP-848) against a scripted coordinator: assignments, rebalances, commits, fencing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

from aftershock.errors import BrokerError, UnsupportedError
from aftershock.tests.scripted_broker import ReceivedRequest, ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import Reader, append, fresh_topic, reading
from aftershock.workloads.kafka.rules.values import TopicPartition

HEARTBEAT = "ConsumerGroupHeartbeat"


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ScriptedBroker) -> Iterator[ScriptedBroker]:
    yield running
    running.clear()


class Member:
    """A subscribed reader and the calls of its rebalance callbacks."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.held: set[TopicPartition] = set()
        self.others: list[Member] = []
        self.calls: list[tuple[str, list[int]]] = []

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assert all(each.held.isdisjoint(partitions) for each in [self, *self.others])
        self.held |= set(partitions)
        self.calls.append(("assigned", [tp.partition for tp in partitions]))

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        assert self.held >= set(partitions)
        self.held -= set(partitions)
        self.calls.append(("revoked", [tp.partition for tp in partitions]))


@asynccontextmanager
async def member(cluster: ScriptedBroker, topic: str, **changes: object) -> AsyncIterator[Member]:
    """Yield a member of the group named as the topic, reading from the beginning of its logs."""
    options = {"group_id": topic, "auto_offset_reset": "earliest"} | changes
    async with reading(cluster, topic, None, **options) as reader:
        joined = Member(reader)
        await reader.consumer.subscribe([topic], joined.on_assigned, joined.on_revoked)
        yield joined


async def holding(one: Member, count: int) -> None:
    await one.reader.until(lambda: len(one.held) == count, f"not {count} partitions but {one.held}")


async def together(first: Member, second: Member, reached: Callable[[], bool]) -> None:
    """Poll both members until the condition holds."""
    reason = "two members did not come to terms"
    await asyncio.gather(first.reader.until(reached, reason), second.reader.until(reached, reason))


def committed(cluster: ScriptedBroker, group: str) -> dict[int, int]:
    return {partition: offset for (_, partition), offset in cluster.committed(group).items()}


def heartbeats(cluster: ScriptedBroker, group: str) -> list[ReceivedRequest]:
    return [seen for seen in cluster.journal(HEARTBEAT) if seen.fields["group_id"] == group]


# ---- assignment


async def test_a_single_member_gets_all_partitions(cluster: ScriptedBroker) -> None:
    """It joins with epoch 0, and reads from the position of the reset policy."""
    topic = fresh_topic(cluster, 3)
    for number in range(3):
        append(cluster, topic, number, 2)
    async with member(cluster, topic) as alone:
        await alone.reader.take(6)
        assert [("assigned", [0, 1, 2])] == alone.calls
        assert alone.reader.consumer.member_id == heartbeats(cluster, topic)[0].fields["member_id"]
    assert 0 == heartbeats(cluster, topic)[0].fields["member_epoch"]


async def test_partitions_move_to_a_joining_member_and_back(cluster: ScriptedBroker) -> None:
    """A partition is revoked, with a callback and a commit, before the other member gets it, so that no record is
    read twice or left out.
    """
    topic = fresh_topic(cluster, 4)
    for number in range(4):
        append(cluster, topic, number, 3)
    async with member(cluster, topic) as first:
        await first.reader.take(12)
        async with member(cluster, topic) as second:
            second.others = [first]
            await together(first, second, lambda: len(first.held) == len(second.held) == 2)
            assert [("assigned", [0, 1, 2, 3]), ("revoked", [1, 3])] == first.calls
            assert [("assigned", [1, 3])] == second.calls
            for number in range(4):
                append(cluster, topic, number)
            await together(first, second, lambda: len(first.reader.taken) + len(second.reader.taken) == 16)
        await holding(first, 4)
    taken = first.reader.taken + second.reader.taken
    assert sorted((topic, number, offset) for number in range(4) for offset in range(4)) == sorted(taken)


async def test_buffered_records_of_a_revoked_partition_are_dropped(cluster: ScriptedBroker) -> None:
    """The new owner reads them, once."""
    topic = fresh_topic(cluster, 2)
    for number in range(2):
        append(cluster, topic, number, 20)
    async with member(cluster, topic, max_poll_records=1) as first:
        await first.reader.take(3)
        async with member(cluster, topic) as second:
            second.others = [first]
            await together(first, second, lambda: len(first.reader.taken) + len(second.reader.taken) >= 40)
    taken = first.reader.taken + second.reader.taken
    assert sorted((topic, number, offset) for number in range(2) for offset in range(20)) == sorted(taken)


async def test_kept_partitions_are_read_while_revoked_ones_are_committed(cluster: ScriptedBroker) -> None:
    """While the coordinator is loading, partition 0 is read, and 1 is neither read nor revoked; afterwards the other
    member continues from the returned records, and no record is read twice.
    """
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0)
    append(cluster, topic, 1, 9)
    async with member(cluster, topic, max_poll_records=1) as first:
        await first.reader.until(lambda: {0, 1} == {each[1] for each in first.reader.taken}, "not both were read")
        cluster.script("OffsetCommit", error=14, times=10_000)
        async with member(cluster, topic) as second:
            second.others = [first]
            await first.reader.until(lambda: bool(cluster.journal("OffsetCommit", topic=topic)), "no commit")
            read = [each for each in first.reader.taken if each[1] == 1]
            append(cluster, topic, 0)
            await first.reader.until(lambda: (topic, 0, 1) in first.reader.taken, "what stays is not read")
            assert read == [each for each in first.reader.taken if each[1] == 1]
            assert [("assigned", [0, 1])] == first.calls
            cluster.clear()
            await together(first, second, lambda: len(first.reader.taken + second.reader.taken) == 11)
    taken = first.reader.taken + second.reader.taken
    assert 11 == len(set(taken))


async def test_a_poll_cancelled_during_a_rebalance_is_completed_by_the_next(cluster: ScriptedBroker) -> None:
    """The commit before the revocation takes long, and the caller cancels: the next poll completes it."""
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0)
    async with member(cluster, topic) as first:
        await first.reader.take(1)
        cluster.script("OffsetCommit", delay_ms=100)
        async with member(cluster, topic) as second:
            second.others = [first]
            polling = asyncio.create_task(first.reader.poll(10_000))
            await cluster.until("OffsetCommit", 1, topic=topic)
            polling.cancel()
            await together(first, second, lambda: len(first.held) == len(second.held) == 1)


async def test_a_fenced_member_drops_its_pending_commit(cluster: ScriptedBroker) -> None:
    """The member is fenced while the commit before a revocation waits for its coordinator: the commit is not
    repeated under the new epoch, since another member may own the partitions.
    """
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0)
    async with member(cluster, topic) as first:
        await first.reader.take(1)
        cluster.script("OffsetCommit", error=14, times=10_000)
        async with member(cluster, topic) as second:
            second.others = [first]
            await first.reader.until(lambda: bool(cluster.journal("OffsetCommit", topic=topic)), "no commit")
            cluster.script(HEARTBEAT, error=110, times=4)
            await first.reader.until(lambda: bool(first.reader.events("partitions_lost")), "not thrown out")
            before = len(cluster.journal("OffsetCommit", topic=topic))
            await first.reader.until(lambda: bool(first.held), "it did not come back")
            said = len(heartbeats(cluster, topic))
            await first.reader.until(lambda: len(heartbeats(cluster, topic)) > said + 3, "no more heartbeats")
            assert before + 1 >= len(
                cluster.journal("OffsetCommit", topic=topic)
            )  # One request may have been in flight.
            assert [] == first.reader.events("commit_failed")
            cluster.clear()


@pytest.mark.parametrize("error", [25, 110])
async def test_a_fenced_member_loses_all_partitions_and_joins_again(cluster: ScriptedBroker, error: int) -> None:
    """All partitions are revoked without commit; then the member joins again, under its old id."""
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0, 2)
    async with member(cluster, topic, enable_auto_commit=False) as alone:
        await alone.reader.take(2)
        cluster.script(HEARTBEAT, error=error)
        await alone.reader.until(lambda: len(alone.calls) == 3, "it did not come back")
        assert [("assigned", [0, 1]), ("revoked", [0, 1]), ("assigned", [0, 1])] == alone.calls
        assert [[[topic, 0], [topic, 1]]] == [each["partitions"] for each in alone.reader.events("partitions_lost")]
        again = await alone.reader.take(2)
        assert [0, 1] == [offset for _, _, offset in again]
    epochs = [(seen.fields["member_id"], seen.fields["member_epoch"]) for seen in heartbeats(cluster, topic)]
    assert 1 == len({member_id for member_id, _ in epochs})
    assert 2 == [epoch for _, epoch in epochs].count(0)


async def test_a_moved_coordinator_is_looked_up(cluster: ScriptedBroker) -> None:
    """NOT_COORDINATOR: heartbeats and commits go to the new one, and the member keeps its partitions."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with member(cluster, topic, enable_auto_commit=False) as alone:
        await alone.reader.take(1)
        cluster.move_coordinator(topic, 2)
        before = len(heartbeats(cluster, topic))
        await alone.reader.until(lambda: len(heartbeats(cluster, topic)) > before + 3, "no more heartbeats")
        await alone.reader.consumer.commit()
        assert {0: 1} == committed(cluster, topic)
        assert [("assigned", [0])] == alone.calls
    assert 2 == heartbeats(cluster, topic)[-1].node


@pytest.mark.parametrize("answer", ["close", "refuse"])
async def test_unanswered_heartbeats_are_repeated(cluster: ScriptedBroker, answer: str) -> None:
    """Whether or not the coordinator received it: the member gets its partitions in the end."""
    topic = fresh_topic(cluster, 2)
    cluster.script(HEARTBEAT, answer=answer, times=2)
    async with member(cluster, topic) as alone:
        await holding(alone, 2)
        assert len(alone.reader.events("heartbeat_failed")) >= 2


async def test_close_leaves_the_group_at_once(cluster: ScriptedBroker) -> None:
    """Close commits, revokes and leaves with epoch -1, in this order."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 2)
    async with member(cluster, topic) as alone:
        await alone.reader.take(2)
    assert ("revoked", [0]) == alone.calls[-1]
    assert {0: 2} == committed(cluster, topic)
    last = heartbeats(cluster, topic)[-1]
    assert -1 == last.fields["member_epoch"]
    assert cluster.journal("OffsetCommit", topic=topic)[-1].number < last.number


async def test_an_unauthorized_group_is_raised_by_poll(cluster: ScriptedBroker) -> None:
    """GROUP_AUTHORIZATION_FAILED is permanent: a named error, and no hang."""
    topic = fresh_topic(cluster)
    cluster.script(HEARTBEAT, error=30)
    async with member(cluster, topic) as alone:
        with pytest.raises(BrokerError, match=f"the group {topic} rejects this consumer: GROUP_AUTHORIZATION_FAILED"):
            await alone.reader.poll(10_000)


async def test_a_broker_without_the_protocol_is_raised_by_poll() -> None:
    """Before Kafka 4 there is no KIP-848."""
    with ScriptedBroker(versions={HEARTBEAT: None}) as cluster:
        topic = fresh_topic(cluster)
        async with member(cluster, topic) as alone:
            with pytest.raises(UnsupportedError, match="CONSUMER_GROUP_HEARTBEAT"):
                await alone.reader.poll(10_000)


# ---- offsets


async def test_reading_continues_at_the_committed_offset(cluster: ScriptedBroker) -> None:
    """The next member starts where the previous one stopped; the committed epoch is validated with the leader."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 3)
    async with member(cluster, topic) as first:
        await first.reader.take(3)
    append(cluster, topic, 0)
    async with member(cluster, topic) as second:
        taken = await second.reader.take(1)
        assert [(topic, 0, 3)] == taken
        assert 1 == second.reader.consumer.counts["position_validations"]


async def test_polls_commit_records_of_earlier_polls(cluster: ScriptedBroker) -> None:
    """Every interval, and never beyond the returned records; each commit gives an event."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 5)
    async with member(cluster, topic, auto_commit_interval_ms=1, max_poll_records=1) as alone:
        await alone.reader.take(3)
        assert committed(cluster, topic).get(0, 0) <= 3
        await alone.reader.until(lambda: committed(cluster, topic) == {0: 5}, "not everything was committed")
        told = [offset for event in alone.reader.events("committed") for offset in event["offsets"]]
        assert sorted(told) == told
        assert [topic, 0, 5] == told[-1]


async def test_auto_commit_can_be_switched_off(cluster: ScriptedBroker) -> None:
    """Neither poll nor close commits."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 2)
    async with member(cluster, topic, enable_auto_commit=False, auto_commit_interval_ms=1) as alone:
        await alone.reader.take(2)
        await alone.reader.poll()
    assert {} == committed(cluster, topic)


async def test_a_commit_names_its_topics_by_id(cluster: ScriptedBroker) -> None:
    """OffsetCommit 10 (KIP-848), but version 9 with names if the id of one topic is unknown."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with member(cluster, topic, enable_auto_commit=False) as alone:
        await alone.reader.take(1)
        await alone.reader.consumer.commit({TopicPartition(topic, 0): 4})
        offsets = {TopicPartition(topic, 0): 5, TopicPartition("without id", 0): 6}
        await alone.reader.consumer.commit(offsets)
    sent = cluster.journal("OffsetCommit", topic=topic)
    assert [(10, {(topic, 0)}), (9, {(tp.topic, 0) for tp in offsets})] == [
        (seen.version, set(seen.partitions)) for seen in sent
    ]
    assert 5 == cluster.committed(topic)[topic, 0]


@pytest.mark.parametrize("error", [7, 14, 15, 16, 100, 113])
async def test_a_retriable_commit_error_is_retried(cluster: ScriptedBroker, error: int) -> None:
    """Timeouts, a coordinator that loads or moves, an epoch that rose: the second request succeeds."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with member(cluster, topic, enable_auto_commit=False) as alone:
        await alone.reader.take(1)
        cluster.script("OffsetCommit", error=error)
        await alone.reader.consumer.commit()
    assert {0: 1} == committed(cluster, topic)


async def test_a_commit_that_is_refused_is_an_error(cluster: ScriptedBroker) -> None:
    """For example OFFSET_METADATA_TOO_LARGE: raised at once."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with member(cluster, topic, enable_auto_commit=False) as alone:
        await alone.reader.take(1)
        cluster.script("OffsetCommit", error=12)
        with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
            await alone.reader.consumer.commit()


async def test_a_commit_has_a_deadline(cluster: ScriptedBroker) -> None:
    """A coordinator that never comes back: TimeoutError after ``default.api.timeout.ms``."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with member(cluster, topic, enable_auto_commit=False, default_api_timeout_ms=100) as alone:
        await alone.reader.take(1)
        cluster.script("OffsetCommit", error=15, times=10_000)
        with pytest.raises(TimeoutError):
            await alone.reader.consumer.commit()


async def test_commits_are_sent_in_order(cluster: ScriptedBroker) -> None:
    """Two at once: the second waits for the first, although the first is retried; the last commit stands."""
    topic = fresh_topic(cluster)
    place = TopicPartition(topic, 0)
    async with reading(cluster, topic, None, group_id=topic) as reader:
        cluster.script("OffsetCommit", error=14)
        await asyncio.gather(reader.consumer.commit({place: 1}), reader.consumer.commit({place: 2}))
        assert {place: 2} == await reader.consumer.committed([place])
    sent = [seen.fields["partition_fields"][f"{topic}/0"] for seen in cluster.journal("OffsetCommit", topic=topic)]
    assert [1, 1, 2] == [each["committed_offset"] for each in sent]


async def test_without_a_commit_and_without_a_policy_there_is_no_position(cluster: ScriptedBroker) -> None:
    """``auto.offset.reset=none``: raised by poll, with a remedy; a commit resolves it."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 2)
    async with member(cluster, topic, auto_offset_reset="none", enable_auto_commit=False) as alone:
        with pytest.raises(BrokerError, match=f"no committed offset of {topic}/0, and auto.offset.reset is none"):
            await alone.reader.poll(10_000)
        await alone.reader.consumer.commit({TopicPartition(topic, 0): 1})
        await alone.reader.until(lambda: [(topic, 0, 1)] == alone.reader.taken, "it did not begin at the commit")


async def test_offsets_that_may_not_be_read_are_raised_by_poll(cluster: ScriptedBroker) -> None:
    """A permanent error of OffsetFetch is raised; the next poll sends the request again."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    cluster.script("OffsetFetch", error=29)
    async with member(cluster, topic) as alone:
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await alone.reader.poll(10_000)
        await alone.reader.take(1)
