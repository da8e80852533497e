"""Cases of faults on Kafka itself: topics, leaders, controllers, settings, records and sessions."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.static.primitive import i32Timedelta

from aftershock.errors import AdminError
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.harness.kafka.admin import still_lacking
from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.probe import PARTITIONS, TOPIC
from aftershock.tests.chaos.kinds.process_cases import balanced
from aftershock.tests.chaos.kinds.stand import Stand
from aftershock.workloads.kafka.rules.fetch_session import FETCH_SESSION_ID_NOT_FOUND
from aftershock.workloads.kafka.wire.connection import Address, Connection

RECORDS, RECORD_BYTES = 4_000, 1_000
Effect = Callable[[Observation], None]


def topic_of(seen: Observation, name: str) -> TopicMetadata:
    """Return a topic's metadata as a client of rack a gets it."""
    admin = AdminClient({"bootstrap.servers": seen.stand.cluster.bootstrap("a")})
    return admin.list_topics(name, timeout=10).topics[name]


def readable(seen: Observation, name: str) -> int:
    """Return the number of records that a client of rack a can read from partition 0, from its beginning to its end."""
    consumer = Consumer({"bootstrap.servers": seen.stand.cluster.bootstrap("a"), "group.id": "cases"})
    try:
        start, end = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=10)
        consumer.assign([TopicPartition(name, 0, start)])
        read = 0
        while read < end - start and (batch := consumer.consume(500, timeout=5)):
            read += sum(message.error() is None for message in batch)
        return read
    finally:
        consumer.close()


async def put(stand: Stand, name: str, replicas: Mapping[int, tuple[int, ...]], records: int = 0) -> None:
    """Create a topic of the case with these replicas, and so many records in partition 0."""
    await stand.world.delete_topic(name)
    wanted = {partition: tuple(map(BrokerId, ids)) for partition, ids in replicas.items()}
    await stand.world.create_topic(name, wanted, {})
    await asyncio.to_thread(stand.cluster.await_in_sync, 30.0, [name])
    producer = Producer({"bootstrap.servers": stand.cluster.bootstrap("a")})
    for number in range(records):
        producer.produce(name, b"x" * RECORD_BYTES, partition=0)
        if number % 100 == 0:
            producer.poll(0)
    assert await asyncio.to_thread(producer.flush, 30) == 0


async def heavy_topic(stand: Stand) -> None:
    """Create a topic with one replica and 4 MB, so that copying it takes time."""
    await put(stand, "heavy_topic", {0: (1,)}, RECORDS)


async def topic_on_broker_1(stand: Stand) -> None:
    """Create a topic with its only replica on broker 1."""
    await put(stand, "topic_on_broker_1", {0: (1,)}, 10)


async def topic_led_elsewhere(stand: Stand) -> None:
    """Create a topic whose leader isn't its preferred replica."""
    await put(stand, "topic_led_elsewhere", {0: (1, 2, 3)})
    await stand.world.reassign({("topic_led_elsewhere", 0): (BrokerId(2), BrokerId(3), BrokerId(1))})
    await asyncio.to_thread(stand.cluster.await_in_sync, 30.0, ["topic_led_elsewhere"])


async def topic_with_records(stand: Stand) -> None:
    """A topic with some records."""
    await put(stand, "topic_with_records", {0: (1, 2, 3)}, 100)


def leaders_moved(seen: Observation) -> None:
    """Assert that a client that sent to an old leader learned the new one and sent again."""
    assert seen.slowest_ms("during") > 2 * seen.median_ms("before") + 20
    assert seen.failures("during") == []


def replicas_changed(seen: Observation) -> None:
    """Assert that metadata has other replicas."""
    assert {2} == set(topic_of(seen, "topic_on_broker_1").partitions[0].replicas)
    assert 10 == readable(seen, "topic_on_broker_1")


def nothing_lost(topic: str) -> Effect:
    """Return an assertion: a client reads all records, and metadata has one replica as before."""

    def effect(seen: Observation) -> None:
        assert RECORDS == readable(seen, topic)
        assert 1 == len(topic_of(seen, topic).partitions[0].replicas)

    return effect


def fewer_replicas(seen: Observation) -> None:
    """Assert that metadata has two replicas, and that a client reads all records."""
    assert 2 == len(topic_of(seen, "topic_with_records").partitions[0].replicas)
    assert 100 == readable(seen, "topic_with_records")


def led_by(topic: str, leader: int) -> Effect:
    """Return an assertion: metadata has that leader."""

    def effect(seen: Observation) -> None:
        assert leader == topic_of(seen, topic).partitions[0].leader

    return effect


def only_partition_1_moved(seen: Observation) -> None:
    """Assert that metadata has another leader and another order of replicas for partition 1 alone."""
    partitions = topic_of(seen, "topic_of_two_partitions").partitions
    leaders = {number: (partition.leader, list(partition.replicas)) for number, partition in partitions.items()}
    assert {0: (1, [1, 2, 3]), 1: (3, [3, 1, 2])} == leaders


def partition_1_moved_again_and_again(seen: Observation) -> None:
    """Assert that partition 1 had at least five new leaders, the last of which is its first, and partition 0 none."""
    first, second = seen.stand.cluster.admin.partitions(["topic_of_two_partitions"])
    assert (1, 0) == (first.leader, first.leader_epoch)
    assert 2 == second.leader
    assert 5 <= second.leader_epoch


async def partition_without_leader(stand: Stand) -> None:
    """Create a partition whose only in-sync replica, broker 1, is dead; broker 2 lives and lacks the newest records."""
    await put(stand, "partition_without_leader", {0: (1, 2)})
    await stand.world.kill(BrokerId(2))
    await _until(stand, lambda state: state.isr == (1,))
    producer = Producer({"bootstrap.servers": stand.cluster.bootstrap("a")})
    for _ in range(10):
        producer.produce("partition_without_leader", b"x", partition=0)
    assert await asyncio.to_thread(producer.flush, 30) == 0
    await stand.world.kill(BrokerId(1))
    await _until(stand, lambda state: state.leader is None)
    await stand.world.start(BrokerId(2))
    await _until(stand, lambda _: 2 in _registered(stand))


def _registered(stand: Stand) -> set[int]:
    return {member.id for member in stand.cluster.admin.members() if not member.fenced}


async def _until(stand: Stand, so: Callable[[PartitionState], bool]) -> None:
    def lacking() -> str:
        try:
            (state,) = stand.cluster.admin.partitions(["partition_without_leader"])
        except AdminError as error:
            return str(error)
        return "" if so(state) else str(state)

    assert "" == await asyncio.to_thread(still_lacking, lacking, 30.0)


async def revive_broker_1(stand: Stand) -> None:
    """Start broker 1."""
    await stand.world.start(BrokerId(1))


def records_lost(seen: Observation) -> None:
    """Assert that a client reads from the lagging replica, without the acknowledged records that it lacked."""
    led_by("partition_without_leader", 2)(seen)
    assert 0 == readable(seen, "partition_without_leader")


def half_is_gone(seen: Observation) -> None:
    """Assert that a client reads the newer half only."""
    assert 50 == readable(seen, "topic_with_records")


def all_is_gone(seen: Observation) -> None:
    """Assert that a client reads no record."""
    assert 0 == readable(seen, "topic_with_records")


async def topic_of_two_partitions(stand: Stand) -> None:
    """A topic of two partitions."""
    await put(stand, "topic_of_two_partitions", {0: (1, 2, 3), 1: (2, 3, 1)})


def more_partitions(seen: Observation) -> None:
    """Assert that metadata has all partitions."""
    assert 4 == len(topic_of(seen, "topic_of_two_partitions").partitions)


def created_anew(seen: Observation) -> None:
    """Assert that the producer was disturbed and sends to the new topic; the old topic's records are gone."""
    assert seen.failures("during") or seen.slowest_ms("during") > 2 * seen.median_ms("before")
    acked = sum(ack.latency_ms is not None for ack in seen.acks)
    assert seen.latencies_ms("after")
    assert readable(seen, TOPIC) < acked / PARTITIONS


def flooded(seen: Observation) -> None:
    """Assert that the logs took a good part of the flood, that no record of the probe failed, and that none is left."""
    rates = [witness.observed for witness in seen.witnesses]
    assert max(rates) > 0.3 * seen.witnesses[0].asked
    assert not seen.failures("during")
    assert not [topic for topic in asyncio.run(seen.stand.world.topic_ids()) if topic.startswith("aftershock-flood")]


def too_large(seen: Observation) -> None:
    """Assert that records are refused during the fault, and accepted before and after it."""
    assert {"MSG_SIZE_TOO_LARGE"} == set(seen.failures("during"))
    assert seen.failures("before") == []
    assert seen.latencies_ms("after")


def throttled(seen: Observation) -> None:
    """Assert that the quota delays acknowledgements."""
    assert seen.slowest_ms("during") > seen.slowest_ms("before") + 200


def undisturbed(seen: Observation) -> None:
    """Assert that producers and consumers are not affected: shipped plans use isolated controllers for that reason."""
    assert seen.failures("during") == []
    assert len(seen.latencies_ms("during")) == len(seen.records("during"))


def broker_was_missed(seen: Observation) -> None:
    """Assert that records waited for the broker that was stopped with its controller."""
    assert seen.slowest_ms("during") > 3 * seen.slowest_ms("before")


class Session:
    """A fetch session of a client in rack a with the leader of probe/0."""

    def __init__(self, stand: Stand) -> None:
        (self.leader,) = [state.leader for state in stand.cluster.admin.partitions([TOPIC]) if state.partition == 0]
        self._addresses = dict(zip([1, 2, 3], stand.cluster.bootstrap("a").split(","), strict=True))
        host, _, port = self._addresses[self.leader or 0].partition(":")
        self._connection = Connection(Address(host, int(port)), 5.0)
        self.id = self.fetch(0, 0)[1]

    def fetch(self, session: int, epoch: int) -> tuple[int, int]:
        """Return the error and the session id of the response; a full request names probe/0."""
        whole = FetchPartition(partition=_i(0), fetch_offset=_i(0), partition_max_bytes=_i(1000))
        request = FetchRequest(
            max_wait=i32Timedelta.parse(timedelta(0)),
            min_bytes=_i(0),
            session_id=_i(session),
            session_epoch=_i(epoch),
            topics=(FetchTopic(topic=_i(TOPIC), partitions=(whole,)),) if epoch == 0 else (),
            forgotten_topics_data=(),
        )
        answer: Any = self._connection.ask(request)
        return int(answer.error_code.value), answer.session_id


def _i(value: Any) -> Any:
    return value  # kio's phantom types


OPENED: list[Session] = []


async def open_session(stand: Stand) -> None:
    """Open a client with incremental fetches."""
    OPENED[:] = [Session(stand)]
    assert (0, OPENED[0].id) == OPENED[0].fetch(OPENED[0].id, 1)


class SessionCase(Case):
    """The session's id is known once it is opened."""

    @property
    def _said(self) -> dict[str, Any]:
        return super()._said | ({"session": OPENED[0].id} if OPENED else {})


GROUP = "cases"


async def group_with_commits(stand: Stand) -> None:
    """Create a topic, and commit an offset for each of its partitions in a group without members."""
    await put(stand, "topic_of_a_group", {0: (1, 2, 3), 1: (2, 3, 1)}, 20)
    consumer = Consumer({"bootstrap.servers": stand.cluster.bootstrap("a"), "group.id": GROUP})
    try:
        offsets = [TopicPartition("topic_of_a_group", number, 5 * number) for number in (0, 1)]
        await asyncio.to_thread(consumer.commit, offsets=offsets, asynchronous=False)
    finally:
        consumer.close()


def offsets_are_gone(seen: Observation) -> None:
    """Assert that a client finds no committed offset."""
    assert [-1001, -1001] == [place.offset for place in committed(seen)]


def offsets_are_served(seen: Observation) -> None:
    """Assert that the new coordinator has the committed offsets."""
    assert [0, 5] == [place.offset for place in committed(seen)]


def committed(seen: Observation) -> list[TopicPartition]:
    consumer = Consumer({"bootstrap.servers": seen.stand.cluster.bootstrap("a"), "group.id": GROUP})
    try:
        return consumer.committed([TopicPartition("topic_of_a_group", number) for number in (0, 1)], timeout=10)
    finally:
        consumer.close()


def session_was_replaced(_: Observation) -> None:
    """Assert that the client's next fetch is refused, and that the following full fetch gets another session."""
    assert FETCH_SESSION_ID_NOT_FOUND == OPENED[0].fetch(OPENED[0].id, 2)[0]
    error, again = OPENED[0].fetch(0, 0)
    assert 0 == error
    assert again not in {0, OPENED[0].id}


CASES = {
    "reassign": [
        Case("{kind: reassign, topic: probe, rotate: 1, for: 3s}", leaders_moved, before=balanced),
        Case("{kind: reassign, topic: probe, swap: {from: 1, to: 2}, for: 3s}", leaders_moved, before=balanced),
        Case(
            "{kind: reassign, topic: topic_of_two_partitions, partition: 1, rotate: 1}",
            only_partition_1_moved,
            before=topic_of_two_partitions,
        ),
        Case(
            "{kind: reassign, topic: topic_of_two_partitions, partition: 1, rotate: 1, every: 500ms, for: 2s}",
            partition_1_moved_again_and_again,
            before=topic_of_two_partitions,
        ),
        Case(
            "{kind: reassign, topic: topic_on_broker_1, move: {from: 1, to: 2}}",
            replicas_changed,
            before=topic_on_broker_1,
        ),
        Case(
            "{kind: reassign, topic: topic_on_broker_1, replace: {from: 1, to: 2}}",
            replicas_changed,
            before=topic_on_broker_1,
        ),
        Case("{kind: reassign, topic: topic_with_records, replication: 2}", fewer_replicas, before=topic_with_records),
        Case(
            "{kind: reassign, topic: heavy_topic, replication: 3, throttle: 100kB/s, for: 4s}",
            nothing_lost("heavy_topic"),
            before=heavy_topic,
        ),
        Case(
            "{kind: reassign, topic: heavy_topic, replication: 3, throttle: 100kB/s, cancel_after: 1s}",
            nothing_lost("heavy_topic"),
            before=heavy_topic,
        ),
    ],
    "elect": [
        Case("{kind: elect, topic: topic_led_elsewhere}", led_by("topic_led_elsewhere", 2), before=topic_led_elsewhere),
        Case(
            "{kind: elect, topic: partition_without_leader, election: unclean}",
            records_lost,
            on="isolated",
            before=partition_without_leader,
            after=revive_broker_1,
        ),
    ],
    "move_controller": [
        Case("{kind: move_controller}", undisturbed, on="isolated"),
        Case("{kind: move_controller, by: pause}", undisturbed, on="isolated"),
        Case("{kind: move_controller, by: kill}", undisturbed, on="isolated"),
    ],
    "kill_controller": [
        Case("{kind: kill_controller, for: 5s}", undisturbed, on="isolated"),
        Case("{kind: kill_controller, for: 5s}", broker_was_missed),
    ],
    "fence_broker": [Case("{kind: fence_broker, for: 8s}", leaders_moved, on="isolated", before=balanced)],
    "config": [
        Case("{kind: config, topic: probe, set: {max.message.bytes: 100}, for: 3s}", too_large),
        Case("{kind: config, broker: 1, set: {message.max.bytes: 100}, for: 3s}", too_large),
        Case("{kind: config, client_id: rdkafka, set: {producer_byte_rate: 200}, for: 4s}", throttled),
    ],
    "delete_records": [
        Case("{kind: delete_records, topic: topic_with_records}", all_is_gone, before=topic_with_records),
        Case("{kind: delete_records, topic: topic_with_records, share: 0.5}", half_is_gone, before=topic_with_records),
    ],
    "close_session": [
        SessionCase(
            "{kind: close_session, broker: leader of probe/0, session: 1}", session_was_replaced, before=open_session
        )
    ],
    "recreate_topic": [
        Case("{kind: recreate_topic, topic: probe}", created_anew),
        Case("{kind: recreate_topic, topic: probe, for: 4s}", created_anew),
    ],
    "flood": [
        Case("{kind: flood, rate: 20MB/s, for: 4s}", flooded),
        Case(
            "{kind: flood, rate: 5MB/s, broker: leader of probe/0, replication: 3, record_size: 1000, for: 4s}", flooded
        ),
    ],
    "add_partitions": [
        Case(
            "{kind: add_partitions, topic: topic_of_two_partitions, to: 4}",
            more_partitions,
            before=topic_of_two_partitions,
        )
    ],
    "move_coordinator": [
        Case(f"{{kind: move_coordinator, group: {GROUP}, for: 3s}}", offsets_are_served, before=group_with_commits),
        Case(f"{{kind: move_coordinator, group: {GROUP}}}", offsets_are_served, before=group_with_commits),
    ],
    "delete_group_offsets": [
        Case(
            f"{{kind: delete_group_offsets, group: {GROUP}, topic: topic_of_a_group}}",
            offsets_are_gone,
            before=group_with_commits,
        ),
    ],
}
