"""Without scripts, the scripted broker behaves like Kafka."""

import asyncio
import time
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from aftershock.tests.scripted.messages import SERVED
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.scripted.client import TIMEOUT_S, Client, Dial, bases, batch, first_error
from aftershock.workloads.kafka.wire.batch import parse


@pytest.mark.parametrize(
    ("api", "version"),
    [(name, version) for name, low, high in SERVED.values() for version in range(low, high + 1)],
)
def test_every_version_that_is_offered_is_served(broker: ScriptedBroker, api: str, version: int, dial: Dial) -> None:
    """Each API in each version: kio reads the response, and its only error is that the asker isn't known."""
    if api == "JoinGroup":
        fields = {"group_id": f"joined-{version}", "session_timeout": 5000, "protocols": [{"name": "p"}]}
    else:
        fields = every_field({"name": "t", "topic": "t", "topic_id": broker.create("t")})
    unknown = 25 if api in OF_MEMBERS else 49 if api in OF_TRANSACTIONS else 0
    error = 79 if api == "JoinGroup" and version >= 4 else unknown
    assert error == first_error(dial(broker).ask(api, version, **fields))


OF_MEMBERS = {"SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "ConsumerGroupHeartbeat"}
OF_TRANSACTIONS = {"AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"}


def every_field(topic: dict[str, Any]) -> dict[str, Any]:
    """A request of any API for one partition, in the words of all versions."""
    entry = {"partition": 0, "partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    entry["partition_max_bytes"] = 1000
    topics = [topic | {"partitions": [entry], "partition_indexes": [0]}]
    unknown = {"generation_id": -1, "generation_id_or_member_epoch": -1, "producer_id": -1, "producer_epoch": -1}
    return unknown | {
        "topic_data": [topic | {"partition_data": [{"index": 0, "records": batch()}]}],
        "topics": topics,
        "groups": [{"group_id": "g", "topics": topics}],
        "acks": -1,
        "session_epoch": -1,
        "member_epoch": -1,
        "replica_id": -1,
        "group_id": "g",
        "member_id": "m",
        "members": [{"member_id": "m"}],
        "key": "g",
        "coordinator_keys": ["g"],
        "max_bytes": 1000,
    }


def test_librdkafka_produces_and_consumes_in_a_group(broker: ScriptedBroker) -> None:
    """An idempotent producer, two members that share the partitions, and committed offsets."""
    broker.create("t", 4)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(200):
        producer.produce("t", str(number), partition=number % 4)
    assert 0 == producer.flush(TIMEOUT_S)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    members = [Consumer(settings | {"enable.auto.commit": False}) for _ in range(2)]
    try:
        got = consume_all(members, 200)
        assert sorted(map(str, range(200))) == sorted(value.decode() for value in set(got))
        assert 2 == len(broker.members("g"))
        for member in members:
            read = [TopicPartition("t", owned.partition, 50) for owned in member.assignment()]
            member.commit(offsets=read, asynchronous=False)
    finally:
        for member in members:
            member.close()
    assert {("t", partition): 50 for partition in range(4)} == broker.committed("g")
    assert [] == broker.members("g")


def consume_all(members: list[Consumer], count: int) -> list[bytes]:
    """Both members have partitions, and all values were seen."""
    got: list[bytes] = []
    deadline_s = time.monotonic() + 30
    for member in members:
        member.subscribe(["t"])
    while len(set(got)) < count or not all(member.assignment() for member in members):
        assert time.monotonic() < deadline_s, f"{len(set(got))} of {count}"
        for member in members:
            got += [value for message in member.consume(50, 0.1) if (value := message.value()) is not None]
    return got


def test_a_producers_sequences(broker: ScriptedBroker, dial: Dial) -> None:
    """``ProducerAppendInfo``, row by row: in order, again, a gap, a fenced epoch, a new one; then all forgotten."""
    broker.create("t")
    client = dial(broker)

    def append(sequence: int, epoch: int = 0) -> tuple[int, int]:
        told = {"producer_id": 7, "producer_epoch": epoch, "base_sequence": sequence}
        answer, _ = client.produce("t", batch(3, **told))
        return int(answer.error_code), answer.base_offset

    assert (0, 0) == append(0)
    assert (0, 3) == append(3)
    assert (0, 0) == append(0), "one of the last five is answered as it was"
    assert (45, -1) == append(9)
    assert (45, -1) == append(4, epoch=1), "a new epoch begins with 0"
    assert (0, 6) == append(0, epoch=1)
    assert (47, -1) == append(3, epoch=0)
    broker.forget_producers()
    assert (0, 9) == append(80, epoch=0), "a producer that isn't known may begin anywhere"
    assert [0, 3, 6, 9] == bases(broker.log("t"))


def test_a_corrupt_batch_is_refused(broker: ScriptedBroker, dial: Dial) -> None:
    """A wrong CRC: CORRUPT_MESSAGE, and nothing is stored."""
    broker.create("t")
    answer, _ = dial(broker).produce("t", batch()[:-1] + b"x")
    assert 2 == answer.error_code
    assert b"" == broker.log("t")


def test_a_moved_leader_and_what_the_old_one_says(broker: ScriptedBroker, dial: Dial) -> None:
    """NOT_LEADER_OR_FOLLOWER with CurrentLeader and its endpoint, in the versions that have them."""
    broker.create("t", leaders=[1])
    assert 1 == broker.move_leader("t", 0, to=2)
    answer, response = dial(broker).produce("t", batch(), version=10)
    assert (6, 2, 1) == (answer.error_code, answer.current_leader.leader_id, answer.current_leader.leader_epoch)
    (endpoint,) = response.node_endpoints
    assert (2, "127.0.0.1", broker.addresses[2].port, "b") == (
        endpoint.node_id,
        endpoint.host,
        endpoint.port,
        endpoint.rack,
    )
    assert 6 == dial(broker).produce("t", batch(), version=9)[0].error_code
    assert 0 == dial(broker, 2).produce("t", batch())[0].error_code
    assert 1 == next(parse(broker.log("t"))).leader_epoch


def test_a_leader_that_is_down_has_no_endpoint(broker: ScriptedBroker, dial: Dial) -> None:
    """Kafka knows the leader and names no address of one that is fenced."""
    broker.create("t", leaders=[1])
    broker.move_leader("t", 0, to=2)
    broker.down(2)
    answer, response = dial(broker).produce("t", batch())
    assert (2, ()) == (answer.current_leader.leader_id, response.node_endpoints)


def test_unaware_nodes_go_on_from_what_they_knew(broker: ScriptedBroker, dial: Dial) -> None:
    """Stale metadata, a stale hint, and a new leader that refuses, until all is published."""
    broker.create("t", leaders=[1])
    broker.move_leader("t", 0, to=2, unaware=[2, 3])
    assert {1: (2, 1), 2: (1, 0), 3: (1, 0)} == {node: leader_seen(dial(broker, node)) for node in (1, 2, 3)}
    answer, _ = dial(broker, 2).produce("t", batch())
    assert (6, 1, 0) == (answer.error_code, answer.current_leader.leader_id, answer.current_leader.leader_epoch)
    broker.publish()
    assert {1: (2, 1), 2: (2, 1), 3: (2, 1)} == {node: leader_seen(dial(broker, node)) for node in (1, 2, 3)}
    assert 0 == dial(broker, 2).produce("t", batch())[0].error_code


def leader_seen(client: Client) -> tuple[int, int]:
    (partition,) = client.ask("Metadata", 12, topics=[{"name": "t"}]).topics[0].partitions
    return partition.leader_id, partition.leader_epoch


def test_unknown_topics(broker: ScriptedBroker, dial: Dial) -> None:
    """By name and by id, each with its own error; a topic made anew has another id."""
    nobody = UUID(int=1)
    old = broker.create("t")
    broker.delete("t")
    assert old != broker.create("t")
    client = dial(broker)
    assert 3 == client.produce("u", batch())[0].error_code
    assert [100, 100] == [client.read(gone, 0).error_code for gone in (nobody, old)]
    told = client.ask("Metadata", 12, topics=[{"name": "u"}, {"topic_id": nobody}]).topics
    assert [3, 100] == [topic.error_code for topic in told]


def test_topics_are_made_when_asked_for(dial: Dial) -> None:
    """With ``auto_create``, as brokers do by default."""
    with ScriptedBroker(auto_create=2) as broker:
        (topic,) = dial(broker).ask("Metadata", 12, topics=[{"name": "new"}]).topics
        assert 2 == len(topic.partitions)


def test_fetch_gives_whole_batches_within_its_bytes(broker: ScriptedBroker, dial: Dial) -> None:
    """From the batch that holds the offset on; one at least; none from the log's end; errors outside of it."""
    topic = broker.create("t")
    for _ in range(3):
        broker.append("t", 0, batch())
    client, size = dial(broker), len(batch())
    assert [3, 6] == bases(client.read(topic, 4).records)
    assert [0, 3] == bases(client.read(topic, 0, partition_max_bytes=2 * size).records)
    assert [0] == bases(client.read(topic, 0, partition_max_bytes=1).records)
    assert (0, b"") == (client.read(topic, 9).error_code, bytes(client.read(topic, 9).records))
    assert 1 == client.read(topic, 10).error_code
    broker.set_log("t", 0, start=3)
    assert 1 == client.read(topic, 0).error_code


async def test_fetch_waits_for_records(broker: ScriptedBroker, dial: Dial) -> None:
    """It is answered when records come, long before its wait is over."""
    topic = broker.create("t")
    waiting = asyncio.create_task(asyncio.to_thread(dial(broker).read, topic, 0, max_wait=60_000, min_bytes=1))
    await broker.until("Fetch")
    assert not waiting.done()
    broker.append("t", 0, batch())
    assert [0] == bases((await waiting).records)


def test_fetch_checks_the_leader_epoch(broker: ScriptedBroker, dial: Dial) -> None:
    """Older than the node's: FENCED_LEADER_EPOCH with a hint; newer: UNKNOWN_LEADER_EPOCH, without."""
    topic = broker.create("t", leaders=[1])
    broker.move_leader("t", 0, to=2)
    old, new = (dial(broker).read(topic, 0, leader_epoch=epoch) for epoch in (0, 2))
    assert (74, 2, 1) == (old.error_code, old.current_leader.leader_id, old.current_leader.leader_epoch)
    assert (75, -1) == (new.error_code, new.current_leader.leader_id)


def test_sessions_tell_only_news(broker: ScriptedBroker, dial: Dial) -> None:
    """KIP-227 by the model of its broker's half: granted, incremental, wrong epoch, lost."""
    topic = broker.create("t")
    broker.append("t", 0, batch())
    client = dial(broker)
    granted = client.fetch(topic, 0, session_epoch=0)
    assert granted.session_id
    again = client.fetch(topic, 3, session_id=granted.session_id, session_epoch=1)
    assert (granted.session_id, ()) == (again.session_id, again.responses)
    assert 71 == client.fetch(topic, 3, session_id=granted.session_id, session_epoch=9).error_code
    broker.forget_sessions()
    assert 70 == client.fetch(topic, 3, session_id=granted.session_id, session_epoch=2).error_code
    assert [0, 1, 9, 2] == [seen.fields["session_epoch"] for seen in broker.journal("Fetch")]


def test_sessions_may_be_refused(dial: Dial) -> None:
    """A full cache: each request is served, and none gets a session."""
    with ScriptedBroker(sessions=False) as broker:
        assert 0 == dial(broker).fetch(broker.create("t"), 0, session_epoch=0).session_id


def test_followers_serve_consumers(broker: ScriptedBroker, dial: Dial) -> None:
    """The leader sends consumers of one rack there, and the follower gives what it has."""
    topic = broker.create("t", leaders=[1])
    broker.append("t", 0, batch())
    broker.append("t", 0, batch())
    broker.prefer_replica("t", 0, 2, rack="b")
    sent = dial(broker).read(topic, 0, rack_id="b")
    assert (2, b"") == (sent.preferred_read_replica, bytes(sent.records))
    assert -1 == dial(broker).read(topic, 0, rack_id="a").preferred_read_replica
    broker.set_log("t", 0, lagging={2: 3})
    followed = dial(broker, 2).read(topic, 0, rack_id="b")
    assert (3, [0]) == (followed.high_watermark, bases(followed.records))
    assert 1 == dial(broker, 2).read(topic, 4, rack_id="b").error_code
    broker.prefer_replica("t", 0, -1, rack="b")
    assert [0, 3] == bases(dial(broker).read(topic, 0, rack_id="b").records)


def test_a_high_watermark_held_back_hides_records(broker: ScriptedBroker, dial: Dial) -> None:
    """Between it and the log's end a fetch is empty and without error, as Kafka's."""
    topic = broker.create("t")
    broker.append("t", 0, batch())
    broker.set_log("t", 0, high_watermark=0)
    held = dial(broker).read(topic, 1)
    assert (0, 0, b"") == (held.error_code, held.high_watermark, bytes(held.records))
    broker.set_log("t", 0)
    assert [0] == bases(dial(broker).read(topic, 1).records)


def test_where_epochs_end(broker: ScriptedBroker, dial: Dial) -> None:
    """OffsetForLeaderEpoch on the leader, before and after a truncation; elsewhere an error."""
    broker.create("t", leaders=[1])
    broker.append("t", 0, batch())
    broker.move_leader("t", 0, to=1, epoch=4)
    broker.append("t", 0, batch())

    def end(epoch: int, node: int = 1) -> tuple[int, int, int]:
        asked = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": -1}
        topics = [{"topic": "t", "partitions": [asked]}]
        answer = dial(broker, node).ask("OffsetForLeaderEpoch", 4, replica_id=-1, topics=topics)
        (told,) = answer.topics[0].partitions
        return int(told.error_code), told.leader_epoch, told.end_offset

    assert [(0, 0, 3), (0, 0, 3), (0, 4, 6), (0, -1, -1)] == [end(epoch) for epoch in (0, 3, 4, 5)]
    assert (6, -1, -1) == end(0, node=2)
    broker.truncate("t", 0, 3)
    assert [(0, 0, 3), (0, -1, -1)] == [end(epoch) for epoch in (0, 4)]


def test_offsets_by_time(broker: ScriptedBroker, dial: Dial) -> None:
    """ListOffsets: the first, the next, that of the largest timestamp, the first at a time or later."""
    broker.create("t", leaders=[1])
    broker.append("t", 0, batch())

    def offset(timestamp: int, node: int = 1) -> tuple[int, int]:
        asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        topics = [{"name": "t", "partitions": [asked]}]
        (told,) = dial(broker, node).ask("ListOffsets", 10, topics=topics).topics[0].partitions
        return int(told.error_code), told.offset

    assert [(0, 0), (0, 3), (0, 2), (0, 1), (0, -1)] == [offset(at) for at in (-2, -1, -3, 1001, 5000)]
    assert (6, -1) == offset(-1, node=2)


def test_groups_answer_at_their_coordinator_alone(broker: ScriptedBroker, dial: Dial) -> None:
    """FindCoordinator says where; all others say NOT_COORDINATOR; it moves."""
    broker.move_coordinator("g", 2)
    found = dial(broker).ask("FindCoordinator", 4, coordinator_keys=["g"]).coordinators[0]
    assert (2, broker.addresses[2].port) == (found.node_id, found.port)
    for node, error in ((1, 16), (2, 25)):
        asked = {"group_id": "g", "member_id": "m", "generation_id": 1}
        assert error == dial(broker, node).ask("Heartbeat", 4, **asked).error_code


def test_members_join_sync_and_are_rebalanced(broker: ScriptedBroker, dial: Dial) -> None:
    """The classic protocol by hand: a member's id, its assignment, and the errors that make it join again."""
    client = dial(broker)
    joining: dict[str, Any] = {"group_id": "g", "session_timeout": 30_000, "rebalance_timeout": 30_000}
    joining |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"topics"}]}
    named = client.ask("JoinGroup", 9, **joining)
    assert 79 == named.error_code
    joined = client.ask("JoinGroup", 9, **joining, member_id=named.member_id)
    assert (0, 1, named.member_id) == (joined.error_code, joined.generation_id, joined.leader)
    own: dict[str, Any] = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
    assignments = [{"member_id": joined.member_id, "assignment": b"all"}]
    assert b"all" == client.ask("SyncGroup", 5, **own, assignments=assignments).assignment
    assert 0 == client.ask("Heartbeat", 4, **own).error_code
    assert 22 == client.ask("Heartbeat", 4, **(own | {"generation_id": 2})).error_code
    broker.rebalance("g")
    assert 27 == client.ask("Heartbeat", 4, **own).error_code
    assert 2 == client.ask("JoinGroup", 9, **joining, member_id=joined.member_id).generation_id
    assert 0 == client.ask("LeaveGroup", 5, group_id="g", members=[{"member_id": joined.member_id}]).error_code
    assert [] == broker.members("g")


@pytest.mark.parametrize("version", [2, 9, 10])
def test_commits_are_read_back(broker: ScriptedBroker, version: int, dial: Dial) -> None:
    """By name and by topic id; a commit of a generation that isn't the group's is refused."""
    topic = {"name": "t", "topic_id": broker.create("t")}
    client = dial(broker)
    entry = {"partition_index": 0, "committed_offset": 41, "committed_metadata": "m"}
    asked: dict[str, Any] = {"group_id": "g", "topics": [topic | {"partitions": [entry]}]}
    epochs = {"generation_id_or_member_epoch": -1}
    assert 0 == first_error(client.ask("OffsetCommit", version, **asked, **epochs))
    assert {("t", 0): 41} == broker.committed("g")
    groups = [{"group_id": "g", "topics": [topic | {"partition_indexes": [0]}]}]
    (read,) = (
        client.ask("OffsetFetch", min(version + 5, 10), groups=groups, **groups[0]).groups[0].topics[0].partitions
        if version > 2
        else client.ask("OffsetFetch", 5, **groups[0]).topics[0].partitions
    )
    assert (41, "m") == (read.committed_offset, read.metadata)
    stale = {"generation_id_or_member_epoch": 5, "member_id": "gone"}
    assert 25 == first_error(client.ask("OffsetCommit", version, **asked, **stale))


def test_versions_can_be_capped_and_apis_left_out(dial: Dial) -> None:
    """What isn't offered isn't served: the connection is closed, and ApiVersions is answered in version 0."""
    with ScriptedBroker(versions={"Produce": (3, 9), "InitProducerId": None, "ApiVersions": (0, 3)}) as broker:
        offered = dial(broker).ask("ApiVersions", 3)
        ranges = {one.api_key: (one.min_version, one.max_version) for one in offered.api_keys}
        assert (3, 9) == ranges[0]
        assert 22 not in ranges
        assert 35 == dial(broker).ask("ApiVersions", 4).error_code
        for api, version in (("Produce", 10), ("InitProducerId", 4)):
            with pytest.raises(ConnectionResetError):
                dial(broker).ask(api, version)
