"""How kinds on Kafka itself are shown: topics, leaders, controllers, settings, records and sessions."""

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
from aftershock.tests.chaos.kinds.case import Case, Seen
from aftershock.tests.chaos.kinds.probe import PARTITIONS, TOPIC
from aftershock.tests.chaos.kinds.process_cases import balanced
from aftershock.tests.chaos.kinds.stand import Stand
from aftershock.workloads.kafka.rules.fetch_session import FETCH_SESSION_ID_NOT_FOUND
from aftershock.workloads.kafka.wire.connection import Address, Connection

RECORDS, RECORD_BYTES = 4_000, 1_000
Effect = Callable[[Seen], None]


def topic_of(seen: Seen, name: str) -> TopicMetadata:
    """A topic as a client of rack a is told of it."""
    admin = AdminClient({"bootstrap.servers": seen.stand.cluster.bootstrap("a")})
    return admin.list_topics(name, timeout=10).topics[name]


def readable(seen: Seen, name: str) -> int:
    """How many records a client of rack a can read of a topic's partition 0, from its beginning to its end."""
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
    """A topic of the case's own, new, with these replicas, and so many records in partition 0."""
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


async def heavy(stand: Stand) -> None:
    """A topic with one replica and 4 MB, so that copying it takes its time."""
    await put(stand, "heavy", {0: (1,)}, RECORDS)


async def lone(stand: Stand) -> None:
    """A topic that broker 1 alone holds."""
    await put(stand, "lone", {0: (1,)}, 10)


async def astray(stand: Stand) -> None:
    """A topic whose leader isn't its preferred replica any more."""
    await put(stand, "astray", {0: (1, 2, 3)})
    await stand.world.reassign({("astray", 0): (BrokerId(2), BrokerId(3), BrokerId(1))})
    await asyncio.to_thread(stand.cluster.await_in_sync, 30.0, ["astray"])


async def filled(stand: Stand) -> None:
    """A topic with some records."""
    await put(stand, "filled", {0: (1, 2, 3)}, 100)


def leaders_moved(seen: Seen) -> None:
    """Whoever sent to a leader of before had to learn of another and send again."""
    assert seen.slowest_ms("during") > 2 * seen.median_ms("before") + 20
    assert seen.failures("during") == []


def held_elsewhere(seen: Seen) -> None:
    """A client is told of other replicas."""
    assert {2} == set(topic_of(seen, "lone").partitions[0].replicas)
    assert 10 == readable(seen, "lone")


def nothing_lost(topic: str) -> Effect:
    """A client reads all that was there, and is told of one replica as before."""

    def effect(seen: Seen) -> None:
        assert RECORDS == readable(seen, topic)
        assert 1 == len(topic_of(seen, topic).partitions[0].replicas)

    return effect


def fewer_replicas(seen: Seen) -> None:
    """A client is told of two replicas, and reads all of it."""
    assert 2 == len(topic_of(seen, "filled").partitions[0].replicas)
    assert 100 == readable(seen, "filled")


def led_by(topic: str, leader: int) -> Effect:
    """A client is told of that leader."""

    def effect(seen: Seen) -> None:
        assert leader == topic_of(seen, topic).partitions[0].leader

    return effect


async def orphan(stand: Stand) -> None:
    """A partition whose only replica in sync, broker 1, is dead; broker 2 lives and lacks what came last."""
    await put(stand, "orphan", {0: (1, 2)})
    await stand.world.kill(BrokerId(2))
    await _until(stand, lambda state: state.isr == (1,))
    producer = Producer({"bootstrap.servers": stand.cluster.bootstrap("a")})
    for _ in range(10):
        producer.produce("orphan", b"x", partition=0)
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
            (state,) = stand.cluster.admin.partitions(["orphan"])
        except AdminError as error:
            return str(error)
        return "" if so(state) else str(state)

    assert "" == await asyncio.to_thread(still_lacking, lacking, 30.0)


async def revived(stand: Stand) -> None:
    """Broker 1 is back."""
    await stand.world.start(BrokerId(1))


def records_lost(seen: Seen) -> None:
    """A client is served by the replica that lacked them, and reads none of the records that were acknowledged."""
    led_by("orphan", 2)(seen)
    assert 0 == readable(seen, "orphan")


def half_is_gone(seen: Seen) -> None:
    """A client reads the newer half alone."""
    assert 50 == readable(seen, "filled")


def all_is_gone(seen: Seen) -> None:
    """A client finds nothing."""
    assert 0 == readable(seen, "filled")


async def grown(stand: Stand) -> None:
    """A topic of two partitions."""
    await put(stand, "grown", {0: (1, 2, 3), 1: (2, 3, 1)})


def more_partitions(seen: Seen) -> None:
    """A client is told of all of them."""
    assert 4 == len(topic_of(seen, "grown").partitions)


def created_anew(seen: Seen) -> None:
    """Who sends to it was disturbed, and sends to the new one; of all that it sent, the old one's records are gone."""
    assert seen.failures("during") or seen.slowest_ms("during") > 2 * seen.median_ms("before")
    acked = sum(ack.latency_ms is not None for ack in seen.acks)
    assert seen.latencies_ms("after")
    assert readable(seen, TOPIC) < acked / PARTITIONS


def too_large(seen: Seen) -> None:
    """What was well before is refused meanwhile, and is well afterwards."""
    assert {"MSG_SIZE_TOO_LARGE"} == set(seen.failures("during"))
    assert seen.failures("before") == []
    assert seen.latencies_ms("after")


def throttled(seen: Seen) -> None:
    """Acknowledgements are held back by the quota."""
    assert seen.slowest_ms("during") > seen.slowest_ms("before") + 200


def undisturbed(seen: Seen) -> None:
    """Nobody who only sends and receives notices: that is why plans that ship use isolated controllers."""
    assert seen.failures("during") == []
    assert len(seen.latencies_ms("during")) == len(seen.records("during"))


def waited(seen: Seen) -> None:
    """The broker that went with the controller was missed."""
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
        """The error and the session id of the answer; a full request names probe/0."""
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


async def session_opened(stand: Stand) -> None:
    """A client that fetches incrementally."""
    OPENED[:] = [Session(stand)]
    assert (0, OPENED[0].id) == OPENED[0].fetch(OPENED[0].id, 1)


class SessionCase(Case):
    """Its id is known when it was opened."""

    @property
    def _said(self) -> dict[str, Any]:
        return super()._said | ({"session": OPENED[0].id} if OPENED else {})


def asked_anew(_: Seen) -> None:
    """The client's next fetch is refused, and the one after, for everything, is granted another session."""
    assert FETCH_SESSION_ID_NOT_FOUND == OPENED[0].fetch(OPENED[0].id, 2)[0]
    error, again = OPENED[0].fetch(0, 0)
    assert 0 == error
    assert again not in {0, OPENED[0].id}


CASES = {
    "reassign": [
        Case("{kind: reassign, topic: probe, rotate: 1, for: 3s}", leaders_moved, before=balanced),
        Case("{kind: reassign, topic: probe, swap: {from: 1, to: 2}, for: 3s}", leaders_moved, before=balanced),
        Case("{kind: reassign, topic: lone, move: {from: 1, to: 2}}", held_elsewhere, before=lone),
        Case("{kind: reassign, topic: lone, replace: {from: 1, to: 2}}", held_elsewhere, before=lone),
        Case("{kind: reassign, topic: filled, replication: 2}", fewer_replicas, before=filled),
        Case(
            "{kind: reassign, topic: heavy, replication: 3, throttle: 100kB/s, for: 4s}",
            nothing_lost("heavy"),
            before=heavy,
        ),
        Case(
            "{kind: reassign, topic: heavy, replication: 3, throttle: 100kB/s, cancel_after: 1s}",
            nothing_lost("heavy"),
            before=heavy,
        ),
    ],
    "elect": [
        Case("{kind: elect, topic: astray}", led_by("astray", 2), before=astray),
        Case(
            "{kind: elect, topic: orphan, election: unclean}",
            records_lost,
            on="isolated",
            before=orphan,
            after=revived,
        ),
    ],
    "move_controller": [
        Case("{kind: move_controller}", undisturbed, on="isolated"),
        Case("{kind: move_controller, by: pause}", undisturbed, on="isolated"),
        Case("{kind: move_controller, by: kill}", undisturbed, on="isolated"),
    ],
    "kill_controller": [
        Case("{kind: kill_controller, for: 5s}", undisturbed, on="isolated"),
        Case("{kind: kill_controller, for: 5s}", waited),
    ],
    "fence_broker": [Case("{kind: fence_broker, for: 8s}", leaders_moved, on="isolated", before=balanced)],
    "config": [
        Case("{kind: config, topic: probe, set: {max.message.bytes: 100}, for: 3s}", too_large),
        Case("{kind: config, broker: 1, set: {message.max.bytes: 100}, for: 3s}", too_large),
        Case("{kind: config, client_id: rdkafka, set: {producer_byte_rate: 200}, for: 4s}", throttled),
    ],
    "delete_records": [
        Case("{kind: delete_records, topic: filled}", all_is_gone, before=filled),
        Case("{kind: delete_records, topic: filled, share: 0.5}", half_is_gone, before=filled),
    ],
    "close_session": [
        SessionCase("{kind: close_session, broker: leader of probe/0, session: 1}", asked_anew, before=session_opened)
    ],
    "recreate_topic": [Case("{kind: recreate_topic, topic: probe}", created_anew)],
    "add_partitions": [Case("{kind: add_partitions, topic: grown, to: 4}", more_partitions, before=grown)],
}
