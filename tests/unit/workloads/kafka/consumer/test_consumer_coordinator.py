"""Consumers in a group (KIP-848) against a scripted coordinator: assignments, rebalances, commits, fencing."""

import asyncio
import re

import pytest

from aftershock.errors import BrokerError, UnsupportedError
from aftershock.tests.scripted_broker import ReceivedRequest, ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import append, fresh_topic, reading
from aftershock.tests.unit.workloads.kafka.grouping import eventually, holding, member, together
from aftershock.workloads.kafka.rules.values import TopicPartition

HEARTBEAT = "ConsumerGroupHeartbeat"


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
            await together(first, second, reached=lambda: len(first.held) == len(second.held) == 2)
            assert [("assigned", [0, 1, 2, 3]), ("revoked", [1, 3])] == first.calls
            assert [("assigned", [1, 3])] == second.calls
            for number in range(4):
                append(cluster, topic, number)
            await together(first, second, reached=lambda: len(first.reader.taken) + len(second.reader.taken) == 16)
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
            await together(first, second, reached=lambda: len(first.reader.taken) + len(second.reader.taken) >= 40)
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
            await together(first, second, reached=lambda: len(first.reader.taken + second.reader.taken) == 11)
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
            await together(first, second, reached=lambda: len(first.held) == len(second.held) == 1)


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


# ---- static members, patterns, and applications that don't poll


async def test_a_static_member_comes_back_to_its_partitions(cluster: ScriptedBroker) -> None:
    """It leaves with epoch -2, and its successor has its partitions without a rebalance of the other member."""
    topic = fresh_topic(cluster, 4)
    async with member(cluster, topic, group_instance_id="b") as other:
        async with member(cluster, topic, group_instance_id="a") as first:
            first.others = [other]
            await together(first, other, reached=lambda: len(first.held) == len(other.held) == 2)
            before, calls = set(first.held), list(other.calls)
        sent = [seen.fields for seen in heartbeats(cluster, topic) if seen.fields["instance_id"] == "a"]
        assert -2 == sent[-1]["member_epoch"]
        async with member(cluster, topic, group_instance_id="a") as second:
            second.others = [other]
            await together(second, other, reached=lambda: len(second.held) == 2)
            assert before == second.held
            assert calls == other.calls
            assert first.reader.consumer.member_id != second.reader.consumer.member_id


async def test_an_instance_id_in_use_is_raised_by_poll(cluster: ScriptedBroker) -> None:
    """UNRELEASED_INSTANCE_ID: its owner hasn't left, and stays a member."""
    topic = fresh_topic(cluster, 2)
    async with member(cluster, topic, group_instance_id="a") as first:
        await holding(first, 2)
        async with member(cluster, topic, group_instance_id="a") as second:
            with pytest.raises(BrokerError, match="UNRELEASED_INSTANCE_ID"):
                await second.reader.poll(10_000)
        await holding(first, 2)


async def test_a_fenced_instance_loses_its_partitions_and_ends(cluster: ScriptedBroker) -> None:
    """FENCED_INSTANCE_ID: the partitions are lost before the error is raised, and close revokes nothing."""
    topic = fresh_topic(cluster, 2)
    async with member(cluster, topic, tells_losses=True, group_instance_id="a") as alone:
        await holding(alone, 2)
        cluster.script(HEARTBEAT, error=82)
        with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
            await alone.reader.until(lambda: False, "no error")
        assert [("assigned", [0, 1]), ("lost", [0, 1])] == alone.calls
    assert 2 == len(alone.calls)
    assert ["FENCED_INSTANCE_ID"] == [each["error"] for each in alone.reader.events("member_fenced")]


async def test_losses_are_told_apart_from_revocations(cluster: ScriptedBroker) -> None:
    """``on_lost`` after fencing, ``on_revoked`` in close; the events tell the story."""
    topic = fresh_topic(cluster, 2)
    async with member(cluster, topic, tells_losses=True) as alone:
        await holding(alone, 2)
        epoch = alone.reader.consumer.member_epoch
        cluster.script(HEARTBEAT, error=110)
        await alone.reader.until(lambda: len(alone.calls) == 3, "it did not come back")
    assert ["assigned", "lost", "assigned", "revoked"] == [call for call, _ in alone.calls]
    told = alone.told("group_joined", "rebalance_started", "member_fenced", "partitions_lost")
    assert [
        "group_joined",
        "rebalance_started",
        "member_fenced",
        "partitions_lost",
        "group_joined",
        "rebalance_started",
    ] == [event for event, _ in told]
    assert {"epoch": 1, "leader": False, "protocol": "consumer", "assignor": None} == told[0][1]
    assert ("FENCED_MEMBER_EPOCH", epoch) == (told[2][1]["error"], told[2][1]["epoch"])
    assert -1 == alone.reader.consumer.member_epoch


async def test_an_application_that_does_not_poll_loses_its_partitions(cluster: ScriptedBroker) -> None:
    """``max.poll.interval.ms``: the member leaves with epoch -1; the next poll tells the loss, and joins again."""
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0, 3)
    async with member(cluster, topic, tells_losses=True, max_poll_interval_ms=150, max_poll_records=1) as alone:
        await alone.reader.take(1)
        await eventually(
            lambda: -1 in [seen.fields["member_epoch"] for seen in heartbeats(cluster, topic)], "it did not leave"
        )
        sent = len(heartbeats(cluster, topic))
        await asyncio.sleep(0.1)
        assert sent == len(heartbeats(cluster, topic))
        assert ([("assigned", [0, 1])], -1) == (alone.calls, alone.reader.consumer.member_epoch)
        await alone.reader.until(lambda: len(alone.calls) == 3, "it did not come back")
        assert [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])] == alone.calls
        assert 1 == len(alone.reader.events("poll_timeout"))
        assert {} == committed(cluster, topic)


async def test_a_poll_that_waits_is_not_idle(cluster: ScriptedBroker) -> None:
    """One long poll keeps the member in the group."""
    topic = fresh_topic(cluster)
    async with member(cluster, topic, max_poll_interval_ms=100) as alone:
        await holding(alone, 1)
        await alone.reader.poll(500)
        assert [("assigned", [0])] == alone.calls


async def test_a_pattern_is_evaluated_by_the_coordinator(cluster: ScriptedBroker) -> None:
    """A new topic that matches is read too; metadata is requested by the ids in the assignment only."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    pattern = re.compile(f"{topic}(-.*)?")
    async with member(cluster, topic, topics=pattern) as alone:
        await alone.reader.take(1)
        cluster.create(f"{topic}-more", 1)
        cluster.create(f"no-{topic}", 1)
        append(cluster, f"{topic}-more", 0)
        taken = await alone.reader.take(1)
        assert [(f"{topic}-more", 0, 0)] == taken
        assert {topic, f"{topic}-more"} == {tp.topic for tp in alone.held}
    first = heartbeats(cluster, topic)[0]
    assert (pattern.pattern, []) == (
        first.fields["subscribed_topic_regex"],
        first.fields["subscribed_topic_names"],
    )
    ours = [seen for seen in cluster.journal("Metadata") if seen.client_id == topic]
    assert {0, 1, 2} == {len(seen.fields["topics"]) for seen in ours}


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


@pytest.mark.parametrize("error", [7, 14, 15, 16, 100])
async def test_a_retriable_commit_error_is_retried(cluster: ScriptedBroker, error: int) -> None:
    """Timeouts, and a coordinator that loads or moves: the second request succeeds."""
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


async def test_an_explicit_commit_with_an_outdated_epoch_is_an_error(cluster: ScriptedBroker) -> None:
    """STALE_MEMBER_EPOCH, as in Kafka: the partition may belong to another member, so nothing is sent again."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with member(cluster, topic, enable_auto_commit=False) as alone:
        await alone.reader.take(1)
        cluster.script("OffsetCommit", error=113)
        with pytest.raises(BrokerError, match="STALE_MEMBER_EPOCH") as raised:
            await alone.reader.consumer.commit({TopicPartition(topic, 0): 1})
        assert 113 == raised.value.code
    assert 1 == len(cluster.journal("OffsetCommit", topic=topic))
    assert {} == committed(cluster, topic)


async def test_the_commit_before_a_revocation_is_repeated_with_the_new_epoch(cluster: ScriptedBroker) -> None:
    """The member still owns the partitions: nothing is read twice by the next owner."""
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0)
    append(cluster, topic, 1)
    async with member(cluster, topic, auto_commit_interval_ms=60_000) as first:
        await first.reader.take(2)
        cluster.script("OffsetCommit", error=113)
        async with member(cluster, topic) as second:
            second.others = [first]
            await together(first, second, reached=lambda: len(first.held) == len(second.held) == 1)
            assert [] == first.reader.events("commit_failed")
            assert {0: 1, 1: 1} == committed(cluster, topic)


async def test_a_deleted_partition_does_not_hold_up_a_rebalance(cluster: ScriptedBroker) -> None:
    """UNKNOWN_TOPIC_OR_PARTITION is final before a revocation (``maybeAutoCommitSyncBeforeRebalance``)."""
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0)
    async with member(cluster, topic, auto_commit_interval_ms=60_000) as first:
        await first.reader.take(1)
        cluster.script("OffsetCommit", error=3, times=10_000)
        async with member(cluster, topic) as second:
            second.others = [first]
            await together(first, second, reached=lambda: len(first.held) == len(second.held) == 1)
            assert 1 == len(first.reader.events("commit_failed"))
            assert "UNKNOWN_TOPIC_OR_PARTITION" in first.reader.events("commit_failed")[0]["reason"]
            cluster.clear()


async def test_a_commit_reports_its_epoch_and_how_long_it_took(cluster: ScriptedBroker) -> None:
    """From the sending of the successful request until its response, without the earlier attempts."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0)
    async with member(cluster, topic, auto_commit_interval_ms=1, retry_backoff_ms=200) as alone:
        cluster.script("OffsetCommit", error=14)
        cluster.script("OffsetCommit", delay_ms=50)
        await alone.reader.until(lambda: bool(alone.reader.events("committed")), "no commit")
        (told, *_) = alone.reader.events("committed")
        assert alone.reader.consumer.member_epoch == told["epoch"] > 0
        assert 50_000 <= told["took_us"] < 200_000
    assert told["epoch"] == cluster.journal("OffsetCommit", topic=topic)[0].fields["generation_id_or_member_epoch"]


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
