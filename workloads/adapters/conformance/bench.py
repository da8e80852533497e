"""Parts of the conformance checks of client programs (a cluster, a running client program, and Kafka's log)."""

import itertools
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from aftershock.errors import ClusterError
from aftershock.workloads.adapters.exec_child import NO_LINES, Child
from aftershock.workloads.adapters.exec_orders import Close, Header, parse_order, start_order
from aftershock.workloads.adapters.exec_protocol import (
    Acked,
    Bye,
    Died,
    Failed,
    Ready,
    Report,
    Rule,
    parse_report,
)
from aftershock.workloads.load.assignment import (
    ClientAssignment,
    CommitAssignment,
    ConsumeAssignment,
    ProduceAssignment,
    Setting,
)
from aftershock.workloads.load.schedule import HEADER, pack

PARTITIONS = 4
_PATIENCE_S = 30.0


class NotExaminable(Exception):  # noqa: N818  # the check is skipped, which is not an error
    """Error of a check that stops brokers of the user's own cluster, or needs reports that a program may omit."""


class Cluster(Protocol):
    """Cluster for conformance checks whose brokers keep their logs and addresses during an outage."""

    bootstrap: str

    def create(self, topic: str) -> None:
        """Create a topic with PARTITIONS partitions, and wait until every partition has a leader."""

    def down(self) -> None:
        """Cut clients off from all brokers; raise ``NotExaminable`` if that is not allowed."""

    def up(self) -> None:
        """Let clients reach all brokers again."""


@contextmanager
def cluster_errors(bootstrap: str, action: str) -> Iterator[None]:
    """Raise ClusterError, which says that the cluster did not ``action``, for an error of librdkafka."""
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        reason = str(error) or "no answer in time"
        raise ClusterError(
            f"the cluster at {bootstrap} did not {action} ({reason}); check the address, and that its brokers run"
        ) from error


class StandingCluster:
    """Existing cluster of the user; conformance checks create topics there, but delete no topic and stop no broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create(self, topic: str) -> None:
        until = time.monotonic() + _PATIENCE_S
        # a client for this call alone: one that lives through an outage fills standard error with complaints
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        with cluster_errors(self.bootstrap, f"create the topic {topic}"):
            admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(_PATIENCE_S)
            while True:
                partitions = admin.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions.values()
                if sum(partition.leader >= 0 for partition in partitions) >= PARTITIONS:
                    return
                if time.monotonic() > until:
                    raise TimeoutError("some partitions have no leader")
                time.sleep(0.05)

    def down(self) -> None:
        raise NotExaminable(f"the check cuts brokers off, which is not done to your own cluster {self.bootstrap}")

    def up(self) -> None:
        """Do nothing, because no broker of the user's cluster was cut off."""


QUIET_S = 1.0

GROUPS = 8
DEADLINE_MS = 15_000
R = TypeVar("R", bound=Report)


ALWAYS_READ = Rule("Rules", "**Always read.**")
END_OF_INPUT = Rule("Rules", "**The end of standard input means exit**")
NEVER_GUESS = Rule("Rules", "**Never guess.** An acknowledgement comes from Kafka.")
READY = Rule("All operations", "`ready` means that the first record can be sent, or read, without delay")
CLOSE = Rule("All operations", "On `close`, report what is pending, commit, leave the group, say `bye` and exit")
AFTER_BYE = Rule("All operations", "Say nothing after `bye`.")
DIED = Rule("All operations", "you cannot continue; exit with a status other than 0")
ONCE = Rule("produce", "Report each `seq` **exactly once**")
FAILED = Rule("produce", "`failed`: you gave up.")


class Violation(Exception):  # noqa: N818  # the client's error, not the harness's
    """Error of a client program that violates a rule of ``docs/EXEC.md``."""

    def __init__(self, text: str, rule: Rule) -> None:
        super().__init__(text)
        self.rule = rule


class ExpectedRecord(NamedTuple):
    """Record that Kafka's log must contain, because the client program was ordered to send it."""

    key: bytes | None
    value: bytes
    headers: tuple[Header, ...]


class ClientSession:
    """Running client program, with all reports that the client program has written."""

    def __init__(self, command: Sequence[str], patience_s: float) -> None:
        self.child = Child(command, echo=False)
        self.patience_s = patience_s
        self.reports: list[Report] = []
        self.topic = ""

    def start(self, assignment: ClientAssignment, positions: Mapping[int, int] | None = None) -> None:
        self.topic = assignment.topic
        places = None if positions is None else {(self.topic, number): at for number, at in positions.items()}
        self.order(start_order(assignment, places))
        self.until(lambda: self.reports_of(Ready), "say ready", READY)

    def order(self, line: bytes) -> None:
        parse_order(line)  # the harness keeps to the protocol, too
        if not self.child.write(line):
            raise Violation(
                "the client does not read its orders; read standard input also while Kafka is unavailable", ALWAYS_READ
            )

    def reports_of(self, kind: type[R]) -> list[R]:
        return [report for report in self.reports if isinstance(report, kind)]

    def until(self, condition: Callable[[], object], action: str, rule: Rule, patience_s: float | None = None) -> None:
        """Read reports of the client until ``condition`` is true; raise Violation of ``rule`` after ``patience_s``."""
        patience_s = self.patience_s if patience_s is None else patience_s
        deadline = time.monotonic() + patience_s
        while not condition():
            if (remaining_s := deadline - time.monotonic()) <= 0:
                raise Violation(f"the client does not {action} within {patience_s:g} s", rule)
            self.listen(remaining_s)

    def quiet(self) -> None:
        """Read reports of the client for QUIET_S seconds, so that the caller can then look for wrong reports."""
        deadline = time.monotonic() + QUIET_S
        while (remaining_s := deadline - time.monotonic()) > 0:
            self.listen(remaining_s)

    def close(self) -> None:
        """Order the client to close; raise Violation unless the client reports ``bye`` and exits with status 0."""
        self.order(Close().line())
        self.until(lambda: self.reports_of(Bye), "say bye after close", CLOSE)
        if status := self.child.end(self.patience_s):
            limit = f"within {self.patience_s:g} s"
            raise Violation(f"the client said bye but did not exit with status 0 {limit}: {status}", CLOSE)

    def listen(self, wait_s: float) -> None:
        """Read the reports that the client writes within ``wait_s``; raise Violation if it has given up."""
        for line in self.child.hear(wait_s):
            report = parse_report(line)
            if isinstance(report, Died):
                raise Violation(str(self.child.death(report.why or "without a reason")), DIED)
            if self.reports_of(Bye):
                raise Violation(f"the client wrote {line!r} after bye; write nothing after bye", AFTER_BYE)
            self.reports.append(report)


class Bench:
    """Command and settings of the client program that is checked, and the cluster for the conformance checks."""

    def __init__(
        self, command: Sequence[str], cluster: Cluster, patience_s: float, settings: Mapping[str, Setting] | None = None
    ) -> None:
        self._command, self._patience_s, self._settings = command, patience_s, settings or {}
        self._names = (f"conformance-{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count())
        self.cluster = cluster
        self.stderr = NO_LINES  # of the client program that ended last

    @contextmanager
    def session(
        self, assignment: ClientAssignment | None = None, positions: Mapping[int, int] | None = None
    ) -> Iterator[ClientSession]:
        """Start the client program, with the start order for ``assignment``; kill it when the ``with`` block ends."""
        session = ClientSession(self._command, self._patience_s)
        try:
            if assignment is not None:
                session.start(assignment, positions)
            yield session
        finally:
            session.child.kill()
            self.stderr = session.child.last_lines

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Keep every broker down until the ``with`` block ends."""
        self.cluster.down()
        try:
            yield
        finally:
            self.cluster.up()

    def topic(self) -> str:
        name = next(self._names)
        self.cluster.create(name)
        return name

    def producing(self, topic: str, **changes: Any) -> ProduceAssignment:
        plain = {"producer_id": 0, "rate_per_s": 1, "record_size_min": 0, "record_size_max": 0, "seed": 0}
        return ProduceAssignment.model_validate(self._plain(topic) | plain | {"deadline_ms": DEADLINE_MS} | changes)

    def consuming(self, topic: str, **changes: Any) -> ConsumeAssignment:
        return ConsumeAssignment.model_validate(self._plain(topic) | changes)

    def committing(self, topic: str, **changes: Any) -> CommitAssignment:
        """Return an assignment with consumer groups of its own, which no other check has used."""
        plain = {"workload": topic, "producer_id": 0, "rate_per_s": 1, "groups": GROUPS, "deadline_ms": DEADLINE_MS}
        return CommitAssignment.model_validate(self._plain(topic) | plain | changes)

    def _plain(self, topic: str) -> dict[str, Any]:
        names = dict.fromkeys(("run_id", "worker", "workload", "arm"), "conformance")
        cluster = {"bootstrap": self.cluster.bootstrap, "topic": topic, "topic_id": "", "partitions": PARTITIONS}
        unused = {"origin_ns": 0, "rack": "a", "spool": Path(), "events": Path()}  # fields that the client never sees
        return {**names, **cluster, **unused, "client": "exec", "settings": self._settings}

    def fill(self, topic: str, records: Mapping[int, Sequence[ExpectedRecord]]) -> None:
        """Append records to the partitions of a topic, for the client program to read."""
        with cluster_errors(self.cluster.bootstrap, "accept the records of the check"):
            producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 0})
            for partition, partition_records in records.items():
                for key, value, headers in partition_records:
                    producer.produce(topic, value, key, partition, headers=list(headers))
            if producer.flush(self._patience_s):
                raise TimeoutError

    def fill_in_transactions(self, topic: str, outcomes: Mapping[int, bool]) -> None:
        """Append ``marked_record`` n in a transaction of its own, which ends with a commit if ``outcomes[n]``."""
        with cluster_errors(self.cluster.bootstrap, "end the transactions of the check"):
            identity = {"transactional.id": f"filler-{topic}", "linger.ms": 0}
            producer = Producer({"bootstrap.servers": self.cluster.bootstrap, **identity})
            producer.init_transactions(self._patience_s)
            for number, commits in outcomes.items():
                key, value, headers = marked_record(number)
                producer.begin_transaction()
                producer.produce(topic, value, key, headers=list(headers))
                producer.flush(self._patience_s)
                (producer.commit_transaction if commits else producer.abort_transaction)(self._patience_s)

    def log(self, topic: str, *, committed: bool = False) -> list[Message]:
        """Return the records of a topic; with ``committed``, those that a reader of committed records gets."""
        config = {"bootstrap.servers": self.cluster.bootstrap, "group.id": "conformance-log"}
        config["isolation.level"] = "read_committed" if committed else "read_uncommitted"
        until = time.monotonic() + self._patience_s
        with (
            cluster_errors(self.cluster.bootstrap, f"return the records of the topic {topic}"),
            closing(Consumer(config | {"enable.auto.commit": False, "enable.partition.eof": True})) as reader,
        ):
            reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
            messages: list[Message] = []
            ended: set[int | None] = set()
            while len(ended) < PARTITIONS:
                if time.monotonic() > until:
                    raise TimeoutError
                for message in reader.consume(100, timeout=1):
                    error = message.error()
                    if error is None:
                        messages.append(message)
                        ended.discard(message.partition())
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's own errors
                        ended.add(message.partition())
            return messages

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit ``offsets``, by partition, for a consumer group without members."""
        config = {"bootstrap.servers": self.cluster.bootstrap, "group.id": group}
        with cluster_errors(self.cluster.bootstrap, "commit offsets"), closing(Consumer(config)) as consumer:
            targets = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
            consumer.commit(offsets=targets, asynchronous=False)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        config = {"bootstrap.servers": self.cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        with cluster_errors(self.cluster.bootstrap, "return committed offsets"), closing(Consumer(config)) as reader:
            commits = reader.committed(partitions, timeout=self._patience_s)
        return {commit.partition: commit.offset for commit in commits if commit.offset >= 0}


def marked_record(number: int, size_bytes: int = 100, key: bytes | None = None) -> ExpectedRecord:
    """Return a record with the header ``aftershock``, like the records that producers of a run send."""
    value = number.to_bytes(8, "big") * (size_bytes // 8 + 1)
    return ExpectedRecord(key, value[:size_bytes], ((HEADER, pack(0, number, number)),))


GRACE_S = 10.0
"""Longest wait for the result of a record or commit after its deadline, as in a run."""

EXIT_S = 5.0
"""Time limit for a client program to exit after the end of its standard input."""


def order_reports(session: ClientSession) -> list[Acked | Failed]:
    return [report for report in session.reports if isinstance(report, Acked | Failed)]


def await_reports(
    session: ClientSession, seqs: Sequence[int], action: str, patience_s: float | None = None
) -> dict[int, Acked | Failed]:
    """Return the reports about the orders ``seqs``; raise Violation for a missing, repeated or unknown report."""
    expected = set(seqs)
    session.until(lambda: expected <= {report.seq for report in order_reports(session)}, action, ONCE, patience_s)
    counts = Counter(report.seq for report in order_reports(session))
    if repeated := [seq for seq, times in counts.items() if times > 1]:
        raise Violation(f"the client reported the order {repeated[0]} twice; report each order once", ONCE)
    if unknown := counts.keys() - expected:
        raise Violation(
            f"the client reported seq {min(unknown)}, which was not ordered; give each report the seq of its order",
            ONCE,
        )
    return {report.seq: report for report in order_reports(session)}


def require_all_acked(reports: dict[int, Acked | Failed]) -> list[Acked]:
    """Return the reports; raise Violation if a report says that a record or commit failed."""
    for report in reports.values():
        if isinstance(report, Failed):
            raise Violation(
                f"the client reported order {report.seq} as failed ({report.error}), although all brokers were up",
                FAILED,
            )
    return [report for report in reports.values() if isinstance(report, Acked)]


def require_none_acked(session: ClientSession, first: int = 0) -> None:
    """Raise Violation if the client has reported ``acked`` for an order with a number of ``first`` or higher.

    The orders were sent while every broker was down.
    """
    if early := [report for report in session.reports_of(Acked) if report.seq >= first]:
        raise Violation(
            f"the client acked order {early[0].seq} while every broker was down; ack an order only after Kafka "
            "acknowledges it",
            NEVER_GUESS,
        )


def require_exit_at_end_of_input(session: ClientSession) -> None:
    """Close the client's standard input without a close order; raise Violation unless the client then exits."""
    session.child.hang_up()
    if session.child.end(EXIT_S) == -signal.SIGKILL:
        raise Violation(
            f"the client still runs {EXIT_S:g} s after the end of its standard input; exit at the end "
            "of standard input, because the worker has ended",
            END_OF_INPUT,
        )
