"""Consumers in a classic group against a scripted coordinator: rebalances, commits, fencing, static members, patterns.

The members of a test run in one process, each with its own connections; the coordinator is that of
``tests/scripted/groups.py``.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from aftershock.errors import BrokerError, UnsupportedError
from aftershock.tests.scripted_broker import ReceivedRequest, ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import append, fresh_topic, reading
from aftershock.tests.unit.workloads.kafka.grouping import Member, crash, eventually, holding, member, together
from aftershock.workloads.kafka.rules.values import TopicPartition

#: A poll every now and then must suffice, so heartbeats are much more frequent than in production.
CLASSIC = {"group_protocol": "classic", "heartbeat_interval_ms": 20, "session_timeout_ms": 1_500}
STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")


def classic(
    cluster: ScriptedBroker, topic: str, strategy: str = "range", **changes: Any
) -> AbstractAsyncContextManager[Member]:
    options = CLASSIC | {"partition_assignment_strategy": strategy} | changes
    return member(cluster, topic, tells_losses=True, **options)


@asynccontextmanager
async def group_of(
    cluster: ScriptedBroker, topic: str, count: int, strategy: str, **changes: Any
) -> AsyncIterator[list[Member]]:
    """Yield members that share the topic's partitions, none of which is with two of them at any time."""
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(classic(cluster, topic, strategy, **changes)) for _ in range(count)]
        for one in members:
            one.others = [other for other in members if other is not one]
        yield members


def sent(cluster: ScriptedBroker, topic: str, *apis: str) -> list[ReceivedRequest]:
    """Return the requests of the topic's group, by default those of the classic protocol."""
    names = apis or ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup")
    return [seen for seen in cluster.journal() if seen.api in names and seen.fields.get("group_id") == topic]


def committed(cluster: ScriptedBroker, group: str) -> dict[int, int]:
    return {partition: offset for (_, partition), offset in cluster.committed(group).items()}


def taken(*members: Member) -> list[tuple[str, int, int]]:
    return sorted(record for one in members for record in one.reader.taken)


def every_record(topic: str, partitions: int, count: int) -> list[tuple[str, int, int]]:
    return [(topic, number, offset) for number in range(partitions) for offset in range(count)]


# ---- one member


async def test_a_single_member_gets_all_partitions(cluster: ScriptedBroker) -> None:
    """JoinGroup without an id, again with the given id, SyncGroup; then it reads from where the reset policy says."""
    topic = fresh_topic(cluster, 3)
    for number in range(3):
        append(cluster, topic, number, 2)
    async with classic(cluster, topic) as alone:
        await alone.reader.take(6)
        assert [("assigned", [0, 1, 2])] == alone.calls
        assert (alone.reader.consumer.member_id, 1) == ("member-1", alone.reader.consumer.member_epoch)
    first, second, *_ = sent(cluster, topic, "JoinGroup")
    assert ("", "member-1") == (first.fields["member_id"], second.fields["member_id"])
    assert "need to re-join with the given member-id: member-1" == second.fields["reason"]
    assert (1_500, 300_000, 9) == (first.fields["session_timeout"], first.fields["rebalance_timeout"], first.version)
    assert ("", -1) == (alone.reader.consumer.member_id, alone.reader.consumer.member_epoch)


async def test_the_events_tell_the_story_of_a_rebalance(cluster: ScriptedBroker) -> None:
    topic = fresh_topic(cluster, 2)
    async with classic(cluster, topic, "cooperative-sticky") as first:
        await holding(first, 2)
        async with classic(cluster, topic, "cooperative-sticky") as second:
            second.others = [first]
            await together(first, second, reached=lambda: len(first.held) == len(second.held) == 1)
            told = [details for _, details in first.told("rebalance_started")]
            assert (-1, "") == (told[0]["epoch"], told[0]["reason"])
            assert "group is already rebalancing" == told[1]["reason"]
            assert "need to revoke partitions and re-join" == told[2]["reason"]
            joined = [details for _, details in first.told("group_joined")]
            assert {"epoch": 1, "leader": True, "protocol": "classic", "assignor": "cooperative-sticky"} == joined[0]
            assert {False} == {details["leader"] for _, details in second.told("group_joined")}
            assert [details["epoch"] for details in joined] == sorted({details["epoch"] for details in joined})


async def test_heartbeats_keep_a_member_that_processes_records(cluster: ScriptedBroker) -> None:
    """They need no poll; the session would time out otherwise."""
    topic = fresh_topic(cluster)
    async with classic(cluster, topic, session_timeout_ms=600) as alone:
        await holding(alone, 1)
        before = len(sent(cluster, topic, "Heartbeat"))
        await eventually(lambda: len(sent(cluster, topic, "Heartbeat")) > before + 40, "no heartbeats")
        assert ["member-1"] == cluster.members(topic)


async def test_close_commits_revokes_and_leaves(cluster: ScriptedBroker) -> None:
    """In this order; LeaveGroup has a reason (KIP-800)."""
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 2)
    async with classic(cluster, topic) as alone:
        await alone.reader.take(2)
    assert ("revoked", [0]) == alone.calls[-1]
    assert {0: 2} == committed(cluster, topic)
    left = sent(cluster, topic)[-1]
    assert [
        {"member_id": "member-1", "group_instance_id": None, "reason": "the consumer is being closed"}
    ] == left.fields["leaving"]
    assert cluster.journal("OffsetCommit", topic=topic)[-1].number < left.number
    assert [] == cluster.members(topic)


async def test_the_next_member_continues_at_the_committed_offset(cluster: ScriptedBroker) -> None:
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 3)
    async with classic(cluster, topic) as first:
        await first.reader.take(3)
    append(cluster, topic, 0)
    async with classic(cluster, topic) as second:
        assert [(topic, 0, 3)] == await second.reader.take(1)
    fetched = cluster.journal("OffsetFetch", topic=topic)
    assert fetched


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat"])
@pytest.mark.parametrize("answer", ["close", "refuse"])
async def test_unanswered_requests_lead_to_a_membership_in_the_end(
    cluster: ScriptedBroker, api: str, answer: str
) -> None:
    """Whether or not the coordinator received them."""
    topic = fresh_topic(cluster, 2)
    cluster.script(api, answer=answer, times=2)
    async with classic(cluster, topic, session_timeout_ms=500) as alone:
        await holding(alone, 2)
        event = "heartbeat_failed" if api == "Heartbeat" else "group_request_failed"
        await alone.reader.until(lambda: len(alone.reader.events(event)) >= 2, "no failure was told")
        await alone.reader.until(
            lambda: len(sent(cluster, topic, "Heartbeat")) > 3 and len(alone.held) == 2, "not back"
        )


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat"])
@pytest.mark.parametrize("error", [15, 16])
async def test_a_moved_coordinator_is_looked_up(cluster: ScriptedBroker, api: str, error: int) -> None:
    topic = fresh_topic(cluster, 2)
    cluster.script(api, error=error)
    async with classic(cluster, topic) as alone:
        await holding(alone, 2)
        await alone.reader.until(lambda: bool(alone.reader.events("group_error")), "no error was told")
        looked_up = [seen for seen in cluster.journal("FindCoordinator") if seen.client_id == topic]
        await alone.reader.until(lambda: len(sent(cluster, topic, "Heartbeat")) > 3, "no more heartbeats")
        assert len(looked_up) >= 1
        assert [("assigned", [0, 1])] == alone.calls


@pytest.mark.parametrize("error", [30, 81, 23, 26])
async def test_a_final_error_is_raised_by_poll(cluster: ScriptedBroker, error: int) -> None:
    """Not authorized, group full, inconsistent protocol, invalid session timeout: a named error, and no hang."""
    topic = fresh_topic(cluster)
    cluster.script("JoinGroup", error=error)
    async with classic(cluster, topic) as alone:
        with pytest.raises(BrokerError, match=f"the group {topic} rejects this consumer's JoinGroup") as raised:
            await alone.reader.poll(10_000)
        assert error == raised.value.code


async def test_an_old_broker_is_raised_by_poll() -> None:
    """Before Kafka 3.2 there is no JoinGroup 9."""
    with ScriptedBroker(versions={"JoinGroup": (0, 8)}) as cluster:
        topic = fresh_topic(cluster)
        async with classic(cluster, topic) as alone:
            with pytest.raises(UnsupportedError, match="JOIN_GROUP"):
                await alone.reader.poll(10_000)


# ---- several members


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_members_share_the_partitions_and_take_over_from_each_other(
    cluster: ScriptedBroker, strategy: str
) -> None:
    """Three members join, one leaves, one is closed without leaving; every record is read, and no partition is ever
    with two members.
    """
    topic = fresh_topic(cluster, 6)
    for number in range(6):
        append(cluster, topic, number, 3)
    async with group_of(cluster, topic, 2, strategy) as (first, second):
        await together(first, second, reached=lambda: len(first.held) == len(second.held) == 3)
        async with classic(cluster, topic, strategy) as third:
            third.others, first.others, second.others = [first, second], [second, third], [first, third]
            trio = (first, second, third)
            await together(*trio, reached=lambda: [2, 2, 2] == [len(one.held) for one in trio])
            for number in range(6):
                append(cluster, topic, number)
            await together(*trio, reached=lambda: len(set(taken(*trio))) == 24)
        await together(first, second, reached=lambda: len(first.held) == len(second.held) == 3)
        crashed = set(second.held)
        await crash(second)
        second.held.clear()
        await holding(first, 6)
        assert crashed <= first.held
        for number in range(6):
            append(cluster, topic, number)
        await first.reader.until(lambda: len(set(taken(*trio))) == 30, "records are missing")
    assert every_record(topic, 6, 5) == sorted(set(taken(*trio)))


async def test_eager_members_revoke_everything_and_read_nothing_twice(cluster: ScriptedBroker) -> None:
    """Positions are committed before the revocation, so the new owner continues after the last delivered record."""
    topic = fresh_topic(cluster, 4)
    for number in range(4):
        append(cluster, topic, number, 3)
    async with classic(cluster, topic, "range", auto_commit_interval_ms=60_000) as first:
        await first.reader.take(12)
        async with classic(cluster, topic, "range") as second:
            second.others = [first]
            await together(first, second, reached=lambda: len(first.held) == len(second.held) == 2)
            assert [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3]), ("assigned", [0, 1])] == first.calls[:3]
            assert dict.fromkeys(range(4), 3) == committed(cluster, topic)
            for number in range(4):
                append(cluster, topic, number)
            await together(first, second, reached=lambda: len(taken(first, second)) == 16)
    assert every_record(topic, 4, 4) == taken(first, second)


async def test_cooperative_members_keep_what_does_not_move(cluster: ScriptedBroker) -> None:
    """KIP-429: the owner revokes only what moves, and joins again; the new member gets it in the second rebalance."""
    topic = fresh_topic(cluster, 4)
    async with classic(cluster, topic, "cooperative-sticky") as first:
        await holding(first, 4)
        async with classic(cluster, topic, "cooperative-sticky") as second:
            second.others = [first]
            await together(first, second, reached=lambda: len(first.held) == len(second.held) == 2)
            assert [("assigned", [0, 1, 2, 3]), ("revoked", [2, 3])] == first.calls
            assert [("assigned", [2, 3])] == second.calls
            assert first.reader.consumer.member_epoch == second.reader.consumer.member_epoch == 3
        await holding(first, 4)
        assert ("assigned", [2, 3]) == first.calls[-1]


async def test_records_are_read_while_a_cooperative_rebalance_waits(cluster: ScriptedBroker) -> None:
    """Its partitions remain assigned while JoinGroup is pending, here for a member that doesn't poll."""
    topic = fresh_topic(cluster, 2)
    async with group_of(cluster, topic, 2, "cooperative-sticky") as (first, second):
        await together(first, second, reached=lambda: len(first.held) == len(second.held) == 1)
        epoch = first.reader.consumer.member_epoch
        cluster.rebalance(topic)
        joins = len(sent(cluster, topic, "JoinGroup"))
        await first.reader.until(lambda: len(sent(cluster, topic, "JoinGroup")) > joins, "it did not join again")
        (mine,) = first.held
        append(cluster, topic, mine.partition)
        await first.reader.take(1)
        with pytest.raises(BrokerError, match="its commit was not sent: REBALANCE_IN_PROGRESS"):
            await first.reader.consumer.commit({mine: 1})
        await together(first, second, reached=lambda: first.reader.events("group_joined")[-1]["epoch"] == epoch + 1)
        await first.reader.consumer.commit({mine: 1})


async def test_members_with_different_lists_use_what_they_have_in_common(cluster: ScriptedBroker) -> None:
    """The upgrade path of KIP-429: eager as long as the list has an assignor that is only eager."""
    topic = fresh_topic(cluster, 4)
    async with classic(cluster, topic, "cooperative-sticky,range") as first:
        await holding(first, 4)
        assert ["cooperative-sticky"] == [each["assignor"] for each in first.reader.events("group_joined")]
        async with classic(cluster, topic, "range") as second:
            second.others = [first]
            await together(first, second, reached=lambda: len(first.held) == len(second.held) == 2)
            assert "range" == first.reader.events("group_joined")[-1]["assignor"]
            assert ("revoked", [0, 1, 2, 3]) == first.calls[1]


async def test_sticky_members_get_their_partitions_back(cluster: ScriptedBroker) -> None:
    """``sticky`` revokes everything, but tells the leader what it had."""
    topic = fresh_topic(cluster, 5)
    async with group_of(cluster, topic, 2, "sticky") as (first, second):
        await together(first, second, reached=lambda: len(first.held | second.held) == 5)
        before = (set(first.held), set(second.held))
        epoch = first.reader.consumer.member_epoch
        cluster.rebalance(topic)
        await together(
            first,
            second,
            reached=lambda: first.reader.consumer.member_epoch > epoch and len(first.held | second.held) == 5,
        )
        assert before == (first.held, second.held)
        assert "revoked" in [call for call, _ in first.calls]


async def test_the_leader_assigns_again_when_a_topic_grows(cluster: ScriptedBroker) -> None:
    """It watches the metadata of the group's topics; so does a leader that was told not to assign (KIP-814)."""
    topic = fresh_topic(cluster, 2)
    async with classic(cluster, topic, metadata_max_age_ms=50) as alone:
        await holding(alone, 2)
        cluster.delete(topic)
        cluster.create(topic, 4)
        await holding(alone, 4)
        assert "cached metadata has changed" in [each["reason"] for each in alone.reader.events("rebalance_started")]


async def test_members_subscribe_to_different_topics(cluster: ScriptedBroker) -> None:
    """The leader looks up the metadata of topics that only other members want."""
    topic, other = fresh_topic(cluster, 2), fresh_topic(cluster, 2)
    async with classic(cluster, topic) as first, classic(cluster, topic, topics=[topic, other]) as second:
        await together(first, second, reached=lambda: len(first.held) == 1 and len(second.held) == 3)
        assert {other} == {tp.topic for tp in second.held} - {topic}


# ---- members that are thrown out


@pytest.mark.parametrize(("error", "member_id"), [(25, ""), (22, "member-1")])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_a_member_that_was_thrown_out_loses_its_partitions(
    cluster: ScriptedBroker, strategy: str, error: int, member_id: str
) -> None:
    """They are lost, not revoked, and not committed; then it joins again, with its id if that may still be valid."""
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0, 2)
    async with classic(cluster, topic, strategy, auto_commit_interval_ms=60_000) as alone:
        await alone.reader.take(2)
        joins = len(sent(cluster, topic, "JoinGroup"))
        cluster.script("Heartbeat", error=error)
        await alone.reader.until(lambda: len(alone.calls) == 3, "it did not come back")
        assert [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])] == alone.calls
        assert member_id == sent(cluster, topic, "JoinGroup")[joins].fields["member_id"]
        assert [[[topic, 0], [topic, 1]]] == [each["partitions"] for each in alone.reader.events("partitions_lost")]
        assert [(error, 1)] == [
            ({"UNKNOWN_MEMBER_ID": 25, "ILLEGAL_GENERATION": 22}[each["error"]], each["epoch"])
            for each in alone.reader.events("member_fenced")
        ]
        assert {} == committed(cluster, topic)
        assert [0, 1] == [offset for _, _, offset in await alone.reader.take(2)]


@pytest.mark.parametrize("api", ["SyncGroup", "Heartbeat"])
async def test_a_request_without_an_answer_is_given_up_with_the_session(cluster: ScriptedBroker, api: str) -> None:
    """After session.timeout.ms, long before request.timeout.ms: then the coordinator is looked up again."""
    topic = fresh_topic(cluster)
    cluster.script(api, answer="lost")
    async with classic(cluster, topic, session_timeout_ms=400) as alone:
        await alone.reader.until(lambda: bool(alone.told("heartbeat_failed", "group_request_failed")), "it waits")
        lost = sent(cluster, topic, api)[0]
        looked_up = (await cluster.until("FindCoordinator", 2))[-1]
        assert looked_up.time_ms - lost.time_ms < 10_000
        await holding(alone, 1)


async def test_a_deleted_partition_does_not_end_the_commit_before_a_revocation(cluster: ScriptedBroker) -> None:
    """``ConsumerCoordinator.onJoinPrepare`` repeats it after UNKNOWN_TOPIC_OR_PARTITION, unlike a KIP-848 member."""
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0)
    async with classic(cluster, topic, auto_commit_interval_ms=60_000) as alone:
        await alone.reader.take(1)
        cluster.script("OffsetCommit", error=3, times=2)
        cluster.rebalance(topic)
        await alone.reader.until(lambda: ("revoked", [0, 1]) in alone.calls, "no rebalance")
        assert [] == alone.reader.events("commit_failed")
        assert 3 == len(cluster.journal("OffsetCommit", topic=topic))


async def test_a_member_is_thrown_out_while_it_commits_before_a_revocation(cluster: ScriptedBroker) -> None:
    """The commit is not repeated, since another member may own the partitions by then."""
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0)
    async with classic(cluster, topic) as alone:
        await alone.reader.take(1)
        cluster.script("OffsetCommit", error=14, times=10_000)
        cluster.rebalance(topic)
        await alone.reader.until(lambda: bool(cluster.journal("OffsetCommit", topic=topic)), "no commit")
        cluster.script("Heartbeat", error=25)
        await alone.reader.until(lambda: bool(alone.reader.events("partitions_lost")), "it was not thrown out")
        before = len(cluster.journal("OffsetCommit", topic=topic))
        await holding(alone, 2)
        assert before + 1 >= len(cluster.journal("OffsetCommit", topic=topic))  # One may have been in flight.
        assert [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])] == alone.calls
        cluster.clear()


async def test_an_application_that_does_not_poll_leaves_the_group(cluster: ScriptedBroker) -> None:
    """``max.poll.interval.ms``: LeaveGroup with a reason; the next poll tells the loss, and joins as a new member."""
    topic = fresh_topic(cluster, 2)
    append(cluster, topic, 0, 3)
    async with classic(cluster, topic, max_poll_interval_ms=150, max_poll_records=1) as alone:
        await alone.reader.take(1)
        await eventually(lambda: bool(sent(cluster, topic, "LeaveGroup")), "it did not leave")
        assert (
            "consumer poll timeout has expired." == sent(cluster, topic, "LeaveGroup")[0].fields["leaving"][0]["reason"]
        )
        assert ([("assigned", [0, 1])], -1) == (alone.calls, alone.reader.consumer.member_epoch)
        with pytest.raises(BrokerError, match="its commit was not sent: UNKNOWN_MEMBER_ID"):
            await alone.reader.consumer.commit({TopicPartition(topic, 0): 1})
        await alone.reader.until(lambda: len(alone.calls) == 3, "it did not come back")
        assert [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])] == alone.calls
        assert 1 == len(alone.reader.events("poll_timeout"))


async def test_a_poll_that_waits_is_not_idle(cluster: ScriptedBroker) -> None:
    """Also if nothing wakes it, neither a heartbeat nor a fetch."""
    topic = fresh_topic(cluster)
    patient = {"heartbeat_interval_ms": 1_000, "fetch_max_wait_ms": 5_000}
    async with classic(cluster, topic, max_poll_interval_ms=300, **patient) as alone:
        await holding(alone, 1)
        await alone.reader.poll(900)
        assert ([("assigned", [0])], []) == (alone.calls, alone.reader.events("poll_timeout"))


# ---- commits


async def test_commits_name_the_generation(cluster: ScriptedBroker) -> None:
    """So that the coordinator can refuse those of a member that it has replaced; topics have names, as in Kafka."""
    topic = fresh_topic(cluster)
    async with classic(cluster, topic, enable_auto_commit=False, group_instance_id="i") as alone:
        await holding(alone, 1)
        await alone.reader.consumer.commit({TopicPartition(topic, 0): 4})
    (told,) = cluster.journal("OffsetCommit", topic=topic)
    assert ("member-1", "i") == (told.fields["member_id"], told.fields["group_instance_id"])
    assert (1, 9) == (told.fields["generation_id_or_member_epoch"], told.version)


@pytest.mark.parametrize("error", [22, 25])
async def test_a_refused_commit_is_raised_and_ends_the_generation(cluster: ScriptedBroker, error: int) -> None:
    """ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID: not sent again, and the partitions are lost."""
    topic = fresh_topic(cluster)
    async with classic(cluster, topic, enable_auto_commit=False) as alone:
        await holding(alone, 1)
        cluster.script("OffsetCommit", error=error)
        with pytest.raises(BrokerError) as raised:
            await alone.reader.consumer.commit({TopicPartition(topic, 0): 4})
        assert error == raised.value.code
        await alone.reader.until(lambda: len(alone.calls) == 3, "it did not come back")
        assert ["assigned", "lost", "assigned"] == [call for call, _ in alone.calls]
        assert [1] == [each["epoch"] for each in alone.reader.events("member_fenced")]
    assert {} == committed(cluster, topic)


async def test_a_commit_that_meets_a_rebalance_makes_the_member_join_again(cluster: ScriptedBroker) -> None:
    """REBALANCE_IN_PROGRESS is raised, and the partitions are revoked, not lost."""
    topic = fresh_topic(cluster)
    async with classic(
        cluster, topic, enable_auto_commit=False, heartbeat_interval_ms=4_000, session_timeout_ms=9_000
    ) as alone:
        await holding(alone, 1)
        cluster.script("OffsetCommit", error=27)
        with pytest.raises(BrokerError, match="REBALANCE_IN_PROGRESS"):
            await alone.reader.consumer.commit({TopicPartition(topic, 0): 4})
        await alone.reader.until(lambda: len(alone.calls) == 3, "it did not join again")
        assert ["assigned", "revoked", "assigned"] == [call for call, _ in alone.calls]


async def test_a_retriable_commit_error_is_retried(cluster: ScriptedBroker) -> None:
    topic = fresh_topic(cluster)
    async with classic(cluster, topic, enable_auto_commit=False) as alone:
        await holding(alone, 1)
        for error in (7, 14, 15, 16):
            cluster.script("OffsetCommit", error=error)
        await alone.reader.consumer.commit({TopicPartition(topic, 0): 4})
    assert {0: 4} == committed(cluster, topic)


async def test_automatic_commits_tell_the_generation(cluster: ScriptedBroker) -> None:
    topic = fresh_topic(cluster)
    append(cluster, topic, 0, 2)
    async with classic(cluster, topic, auto_commit_interval_ms=1) as alone:
        await alone.reader.until(lambda: committed(cluster, topic) == {0: 2}, "not everything was committed")
        assert {1} == {each["epoch"] for each in alone.reader.events("committed")}


async def test_a_consumer_that_assigns_commits_without_a_generation(cluster: ScriptedBroker) -> None:
    """It is no member of the group."""
    topic = fresh_topic(cluster)
    place = TopicPartition(topic, 0)
    async with reading(cluster, topic, {0: 0}, group_id=topic, group_protocol="classic") as reader:
        await reader.consumer.commit({place: 5})
        assert {place: 5} == await reader.consumer.committed([place])
        assert ("", -1) == (reader.consumer.member_id, reader.consumer.member_epoch)
    assert [] == sent(cluster, topic)


# ---- static members


async def test_a_static_member_comes_back_without_a_rebalance(cluster: ScriptedBroker) -> None:
    """KIP-345: close sends no LeaveGroup; the successor has another member id, and the same partitions.

    The one that leads is told not to assign (KIP-814).
    """
    topic = fresh_topic(cluster, 4)
    async with classic(cluster, topic, group_instance_id="b") as leading:
        await holding(leading, 4)
        async with classic(cluster, topic, group_instance_id="a") as first:
            first.others = [leading]
            await together(first, leading, reached=lambda: len(first.held) == len(leading.held) == 2)
            before, calls, epoch = set(first.held), list(leading.calls), first.reader.consumer.member_epoch
        assert ("revoked", sorted(tp.partition for tp in before)) == first.calls[-1]
        async with classic(cluster, topic, group_instance_id="a") as second:
            second.others = [leading]
            await together(second, leading, reached=lambda: len(second.held) == 2)
            assert (before, calls, epoch) == (second.held, leading.calls, second.reader.consumer.member_epoch)
            held = set(leading.held)
            await crash(leading)
            leading.held.clear()
            async with classic(cluster, topic, group_instance_id="b", metadata_max_age_ms=50) as successor:
                successor.others = [second]
                await together(second, successor, reached=lambda: len(successor.held) == 2)
                assert (held, epoch) == (successor.held, second.reader.consumer.member_epoch)
                assert [True] == [each["leader"] for each in successor.reader.events("group_joined")]
                assert [] == sent(cluster, topic, "SyncGroup")[-1].fields["assignments"]
    assert [] == sent(cluster, topic, "LeaveGroup")
    assert {""} == {seen.fields["member_id"] for seen in sent(cluster, topic, "JoinGroup")[-2:]}


async def test_a_replaced_static_member_is_fenced(cluster: ScriptedBroker) -> None:
    """Two members with one instance id: the older one loses its partitions, and raises FENCED_INSTANCE_ID."""
    topic = fresh_topic(cluster, 2)
    async with classic(cluster, topic, group_instance_id="a") as older:
        await holding(older, 2)
        async with classic(cluster, topic, group_instance_id="a") as newer:
            await holding(newer, 2)
            with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
                await older.reader.until(lambda: False, "no error")
            assert [("assigned", [0, 1]), ("lost", [0, 1])] == older.calls
    assert 2 == len(older.calls)


async def test_an_idle_static_member_does_not_leave(cluster: ScriptedBroker) -> None:
    """``max.poll.interval.ms``: its partitions stay assigned to it until its session times out."""
    topic = fresh_topic(cluster, 2)
    async with classic(cluster, topic, group_instance_id="a", max_poll_interval_ms=150) as alone:
        await holding(alone, 2)
        await eventually(lambda: bool(alone.reader.events("poll_timeout")), "it did not notice")
        assert ["member-1"] == cluster.members(topic)
        await alone.reader.until(lambda: len(alone.calls) == 3, "it did not come back")
        assert [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])] == alone.calls
        assert ["member-2"] == cluster.members(topic)
    assert [] == sent(cluster, topic, "LeaveGroup")


# ---- patterns


async def test_a_pattern_is_matched_with_the_names_of_all_topics(cluster: ScriptedBroker) -> None:
    """A new topic that matches makes the member join again; another topic does not."""
    topic = fresh_topic(cluster, 2)
    async with classic(cluster, topic, topics=re.compile(f"{topic}(-.*)?"), metadata_max_age_ms=50) as alone:
        await holding(alone, 2)
        cluster.create(f"not-{topic}", 1)
        cluster.create(f"{topic}-more", 1)
        append(cluster, f"{topic}-more", 0)
        assert [(f"{topic}-more", 0, 0)] == await alone.reader.take(1)
        await holding(alone, 3)
        assert "subscription has changed" in [each["reason"] for each in alone.reader.events("rebalance_started")]
        cluster.delete(f"{topic}-more")
        await holding(alone, 2)
    assert None in [seen.fields["topics"] for seen in cluster.journal("Metadata") if seen.client_id == topic]


async def test_a_member_takes_matching_topics_that_it_does_not_know_yet(cluster: ScriptedBroker) -> None:
    """The leader has newer metadata: its assignment holds, without another rebalance of the follower's making."""
    topic = fresh_topic(cluster)
    pattern = re.compile(f"{topic}(-.*)?")
    async with classic(cluster, topic, topics=pattern, metadata_max_age_ms=50) as leading:
        await holding(leading, 1)
        async with classic(cluster, topic, topics=pattern) as second:
            second.others = [leading]
            await together(leading, second, reached=lambda: len(leading.held | second.held) == 1)
            cluster.create(f"{topic}-more", 4)

            def both_have_some() -> bool:
                topics = {tp.topic for tp in second.held}
                return len(leading.held | second.held) == 5 and f"{topic}-more" in topics

            await together(leading, second, reached=both_have_some)


async def test_a_topic_that_appears_during_a_rebalance_is_not_forgotten(cluster: ScriptedBroker) -> None:
    """The member has joined without it, so it joins again, although its assignment is what it has asked for."""
    topic = fresh_topic(cluster, 2)
    pattern = re.compile(f"{topic}(-.*)?")
    async with (
        classic(cluster, topic, topics=pattern, metadata_max_age_ms=50) as first,
        classic(cluster, topic, topics=pattern) as second,
    ):
        first.others, second.others = [second], [first]
        await together(first, second, reached=lambda: len(first.held) == len(second.held) == 1)
        cluster.rebalance(topic)
        joins = len(sent(cluster, topic, "JoinGroup"))
        await first.reader.until(lambda: len(sent(cluster, topic, "JoinGroup")) > joins, "it did not join again")
        cluster.create(f"{topic}-more", 1)
        known = len(first.reader.events("metadata_refreshed"))
        await first.reader.until(lambda: len(first.reader.events("metadata_refreshed")) > known + 1, "no metadata")

        def reasons() -> set[object]:
            return {details["reason"] for details in first.reader.events("rebalance_started")}

        await together(first, second, reached=lambda: "subscription has changed" in reasons())
        await together(first, second, reached=lambda: len(first.held | second.held) == 3)
