"""The Kafka that a client is examined on: anything with these four, best one that can be broken on purpose.

What every check of a client needs: a cluster that can be broken, an instance of the client, the log to compare with.

Rule: what a client claims is never believed; it is compared with what stands in the log, read by confluent-kafka.

What producers and committers must do alike: report every order once, when Kafka has answered, and end when told.
"""

import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.exec_child import Child
from aftershock.workloads.adapters.exec_protocol import (
    Acked,
    Bye,
    Died,
    Failed,
    Header,
    Ready,
    Report,
    close_order,
    parse_report,
    start_order,
)
from aftershock.workloads.load.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.load.schedule import HEADER, pack

PARTITIONS = 4
_PATIENCE_S = 30.0


class Unbreakable(Exception):  # noqa: N818  # a check is left out, nothing is wrong
    """This cluster isn't ours to break, so what needs that is not examined."""


class Cluster(Protocol):
    """Brokers that keep their logs, and their ports, while they are away."""

    bootstrap: str

    def create(self, topic: str) -> None:
        """Make a topic of PARTITIONS partitions."""

    def down(self) -> None:
        """No broker answers any more, and none can be connected to; ``Unbreakable`` if that can't be."""

    def up(self) -> None:
        """All brokers are back."""


class StandingCluster:
    """Somebody's cluster at an address: topics are created there and left, and nothing is broken."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str) -> None:
        """Make the topic, and wait until every partition has a leader."""
        try:
            self._admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(_PATIENCE_S)
            self._await_leaders(topic)
        except (KafkaException, TimeoutError) as error:
            raise WorkloadError(f"{self.bootstrap} did not create the topic {topic}: {error!r}") from error

    def _await_leaders(self, topic: str) -> None:
        until = time.monotonic() + _PATIENCE_S
        while self._led(topic) < PARTITIONS:
            if time.monotonic() > until:
                raise WorkloadError(f"{self.bootstrap} found no leaders for the topic {topic}")
            time.sleep(0.05)

    def _led(self, topic: str) -> int:
        partitions = self._admin.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions.values()
        return sum(partition.leader >= 0 for partition in partitions)

    def down(self) -> None:
        """Not here."""
        raise Unbreakable(f"{self.bootstrap} is not ours to break")

    def up(self) -> None:
        """Nothing was down."""


QUIET_S = 1.0
"""How long nothing may be heard where nothing is to be heard."""

DEADLINE_MS = 15_000
R = TypeVar("R", bound=Report)


class Complaint(Exception):  # noqa: N818  # it is no error of ours
    """What a client does that it should not, or doesn't that it should."""


class Sent(NamedTuple):
    """A record as it was ordered, and as it must stand in the log."""

    key: bytes | None
    value: bytes
    headers: tuple[Header, ...]


class Talk:
    """One running instance of the client, and all that it has said."""

    def __init__(self, command: Sequence[str], patience_s: float) -> None:
        self.child = Child(command)
        self.patience_s = patience_s
        self.reports: list[Report] = []

    def start(self, told: Assignment, positions: Mapping[int, int] | None = None) -> None:
        """Tell it what to be, and wait for it to be ready."""
        self.order(start_order(told, positions))
        self.until(lambda: self.said(Ready), "say ready")

    def order(self, line: bytes) -> None:
        """Have it read a line; a Complaint when it reads none."""
        if not self.child.write(line):
            raise Complaint("it doesn't read what it is ordered: read standard input also while Kafka is away")

    def said(self, kind: type[R]) -> list[R]:
        """What it has said of that kind."""
        return [report for report in self.reports if isinstance(report, kind)]

    def until(self, reached: Callable[[], object], what: str, patience_s: float | None = None) -> None:
        """Listen until ``reached``; a Complaint that it doesn't ``what`` when that takes too long."""
        patience_s = self.patience_s if patience_s is None else patience_s
        until = time.monotonic() + patience_s
        while not reached():
            if (left_s := until - time.monotonic()) <= 0:
                raise Complaint(f"it does not {what} within {patience_s:g} s")
            self._listen(left_s)

    def quiet(self) -> None:
        """Listen for a while, to what had better not come."""
        until = time.monotonic() + QUIET_S
        while (left_s := until - time.monotonic()) > 0:
            self._listen(left_s)

    def close(self) -> None:
        """Tell it to close; it must say bye and end with status 0."""
        self.order(close_order())
        self.until(lambda: self.said(Bye), "say bye after close")
        if status := self.child.end(self.patience_s):
            raise Complaint(f"it said bye and then did not end with status 0 within {self.patience_s:g} s: {status}")

    def _listen(self, wait_s: float) -> None:
        for line in self.child.hear(wait_s):
            report = parse_report(line)
            if isinstance(report, Died):
                raise Complaint(f"it gave up: {report.why}")
            if self.said(Bye):
                raise Complaint(f"it said bye, and after that {line!r}")
            self.reports.append(report)


class Bench:
    """The client under examination, and the cluster it is examined on."""

    def __init__(self, command: Sequence[str], cluster: Cluster, patience_s: float) -> None:
        self._command, self._patience_s = command, patience_s
        self._names = (f"conformance-{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count())
        self.cluster = cluster

    @contextmanager
    def talk(self) -> Iterator[Talk]:
        """A new instance of the client; gone when the block is left."""
        talk = Talk(self._command, self._patience_s)
        try:
            yield talk
        finally:
            talk.child.kill()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Every broker is away while the block lasts."""
        self.cluster.down()
        try:
            yield
        finally:
            self.cluster.up()

    def topic(self) -> str:
        """A new topic of PARTITIONS partitions, empty."""
        name = next(self._names)
        self.cluster.create(name)
        return name

    def producing(self, topic: str, **changes: Any) -> ProduceAssignment:
        """What a producer is told; ``changes`` are fields of the assignment."""
        plain = {"producer_id": 0, "rate_per_s": 1, "record_size_min": 0, "record_size_max": 0, "seed": 0}
        return ProduceAssignment.model_validate(self._plain(topic) | plain | {"deadline_ms": DEADLINE_MS} | changes)

    def consuming(self, topic: str, **changes: Any) -> ConsumeAssignment:
        """What a consumer is told."""
        return ConsumeAssignment.model_validate(self._plain(topic) | changes)

    def committing(self, topic: str, **changes: Any) -> CommitAssignment:
        """What a committer is told."""
        plain = {"producer_id": 0, "rate_per_s": 1, "groups": 1, "deadline_ms": DEADLINE_MS}
        return CommitAssignment.model_validate(self._plain(topic) | plain | changes)

    def _plain(self, topic: str) -> dict[str, Any]:
        names = dict.fromkeys(("run_id", "worker", "workload", "arm"), "conformance")
        where = {"bootstrap": self.cluster.bootstrap, "topic": topic, "topic_id": "", "partitions": PARTITIONS}
        nowhere = {"origin_ns": 0, "rack": "a", "spool": Path(), "events": Path()}  # what the client never hears of
        return {**names, **where, **nowhere, "client": "exec"}

    def fill(self, topic: str, records: Mapping[int, Sequence[Sent]]) -> None:
        """Append records to the log, by partition, as somebody else would."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 0})
        for partition, those in records.items():
            for key, value, headers in those:
                producer.produce(topic, value, key, partition, headers=list(headers))
        if producer.flush(self._patience_s):
            raise WorkloadError("the cluster does not take the records of a check")

    def log(self, topic: str) -> list[Message]:
        """All that stands in the log of a topic."""
        config = {"bootstrap.servers": self.cluster.bootstrap, "group.id": "conformance-log"}
        with closing(Consumer(config | {"enable.auto.commit": False})) as reader:
            ends = {
                number: reader.get_watermark_offsets(TopicPartition(topic, number), timeout=self._patience_s)[1]
                for number in range(PARTITIONS)
            }
            reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in ends])
            found: list[Message] = []
            while len(found) < sum(ends.values()):
                found += reader.consume(100, timeout=1)
            return found

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets for a group without members, by partition."""
        config = {"bootstrap.servers": self.cluster.bootstrap, "group.id": group}
        with closing(Consumer(config)) as other:
            places = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
            other.commit(offsets=places, asynchronous=False)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """What a group has committed, by partition."""
        config = {"bootstrap.servers": self.cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        with closing(Consumer(config)) as reader:
            found = reader.committed(partitions, timeout=self._patience_s)
        return {one.partition: one.offset for one in found if one.offset >= 0}


def marked(number: int, size_bytes: int = 100, key: bytes | None = None) -> Sent:
    """A record with a mark, as a worker orders them."""
    value = number.to_bytes(8, "big") * (size_bytes // 8 + 1)
    return Sent(key, value[:size_bytes], ((HEADER, pack(0, number, number)),))


GRACE_S = 10.0
"""How long after its deadline an order may be without a report, as in a run."""

END_S = 5.0
"""How long a client may outlive its worker."""


def reported(talk: Talk) -> list[Acked | Failed]:
    """All reports about orders so far, in the order in which they came."""
    return [report for report in talk.reports if isinstance(report, Acked | Failed)]


def settle(talk: Talk, seqs: Sequence[int], what: str, patience_s: float | None = None) -> dict[int, Acked | Failed]:
    """Listen until each of ``seqs`` is reported; a Complaint when one isn't, or is twice, or another is."""
    wanted = set(seqs)
    talk.until(lambda: wanted <= {report.seq for report in reported(talk)}, what, patience_s)
    told = Counter(report.seq for report in reported(talk))
    if twice := [seq for seq, times in told.items() if times > 1]:
        raise Complaint(f"it reported {twice[0]} twice: every order has one report")
    if others := told.keys() - wanted:
        raise Complaint(f"it reported {min(others)}, which it was not ordered: reports bear the order's own seq")
    return {report.seq: report for report in reported(talk)}


def all_acked(told: dict[int, Acked | Failed]) -> list[Acked]:
    """The same, every one acked; a Complaint with the first failure otherwise."""
    for report in told.values():
        if isinstance(report, Failed):
            raise Complaint(f"it failed {report.seq} with {report.error}, though nothing was wrong")
    return [report for report in told.values() if isinstance(report, Acked)]


def none_acked(talk: Talk, why: str, first: int = 0) -> None:
    """A Complaint if anything was acked of ``first`` and later."""
    if early := [report for report in talk.said(Acked) if report.seq >= first]:
        raise Complaint(f"it acked {early[0].seq} {why}: an ack is Kafka's, never the client's own")


def end_of_input_ends(talk: Talk) -> None:
    """A Complaint if the client outlives its worker: its standard input ends, and nobody told it to close."""
    talk.child.hang_up()
    if talk.child.end(END_S) == KILLED:
        raise Complaint(f"it lives on {END_S:g} s after its standard input has ended: end there, the worker is gone")


KILLED = -9
