"""Messages of the runner to a client process, first the assignment, then orders, each on one line of JSON."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from aftershock.names import Client
from aftershock.workloads.load.schedule import groups_by_coordinator
from aftershock.workloads.load.security import PLAINTEXT_SETTINGS, SecuritySettings

Setting = str | int | float | bool
if TYPE_CHECKING:
    import numpy as np  # not imported in a worker, whose memory is measured

    Number = TypeVar("Number", int, np.ndarray[Any, Any])


NUM_RECORDS, WARMUP_RECORDS = "num-records", "warmup-records"
"""Settings of ``client: java`` with which Kafka's ProducerPerformance sends so many records; the tool's own options.

The tool leaves the first ``warmup-records`` of them out of its last statistic.
"""


def parse_setting(text: str) -> tuple[str, Setting]:
    """Return key and value of ``KEY=VALUE``; a number, ``true`` or ``false`` as such, for programs with typed settings.

    Raises ValueError for other text.
    """
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise ValueError(text)
    try:
        typed = json.loads(value)
    except ValueError:
        return key, value
    return key, typed if isinstance(typed, int | float) else value


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Place = tuple[str, int]
"""Topic and partition."""


class AssignedTopic(_Message):
    """Topic that a client produces to, or consumes from."""

    name: str
    topic_id: str
    partitions: int = Field(ge=1)

    @property
    def places(self) -> list[Place]:
        return [(self.name, number) for number in range(self.partitions)]


class _Assignment(_Message):
    op: str
    run_id: str
    origin_ns: int  # `time.monotonic_ns()` at the start of the run
    number: int = Field(default=1, ge=1)  # of the arm's workers of an operation
    worker: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")  # names process, log file and spool: unique in the run
    workload: str
    arm: str
    client: Client = "confluent"
    version: str | None = None  # of the library in a program that was built for it
    topic: str  # the first of several
    topic_id: str
    partitions: int = Field(ge=1)
    more_topics: tuple[AssignedTopic, ...] = ()
    bootstrap: str
    rack: str  # location of the client; its bootstrap address belongs to this rack
    client_rack: str | None = None  # rack that the client reports to Kafka
    settings: dict[str, Setting] = Field(default_factory=dict)  # in the client's own names; override the harness's
    switches: dict[str, Any] = Field(default_factory=dict)  # rules of a reference client that the plan set
    command: tuple[str, ...] = ()  # starts the program of any client but `confluent` and `reference`
    values: dict[str, dict[str, Any]] = Field(default_factory=dict)  # by topic, the template of its JSON values
    broker_racks: dict[int, str] = Field(default_factory=dict)
    security: SecuritySettings = PLAINTEXT_SETTINGS  # names the variables of the secrets, never the secrets
    life: int = Field(default=0, ge=0)  # restarts after a fault; the worker continues where the last process ended
    ended: bool = False  # the client has ended by itself; the process only records that nothing is sent or read
    spool: Path
    events: Path

    @property
    def side(self) -> str:
        """Return the operation that rows and events of the worker have in the evidence."""
        return self.op

    @property
    def topics(self) -> tuple[AssignedTopic, ...]:
        first = AssignedTopic(name=self.topic, topic_id=self.topic_id, partitions=self.partitions)
        return (first, *self.more_topics)


class TransactionSettings(_Message):
    """Transactions of a producer, as ``produce.transaction`` of the plan has them; ``abort`` is a share."""

    records: int = Field(ge=1)
    abort: float = Field(default=0, ge=0, le=1)
    timeout_ms: int = Field(default=60_000, ge=1)
    on_commit_timeout: Literal["retry", "abort", "close"] = "retry"

    def number_of(self, seq: int) -> int:
        return seq // self.records

    def last_of(self, number: int) -> int:
        return (number + 1) * self.records - 1


class ProduceAssignment(_Assignment):
    """Assignment of one producer; record n goes to topic n modulo the number of topics.

    ``offset_us`` delays the schedule of one arm, so that the arms of a workload do not all send at the same instant.
    ``keys`` is the number of distinct record keys, null for records without a key.
    """

    op: Literal["produce"] = "produce"
    producer_id: int = Field(ge=0, lt=2**31)
    rate_per_s: float = Field(gt=0)
    offset_us: int = Field(default=0, ge=0)
    record_size_min: int = Field(ge=0)  # bytes of a record's value
    record_size_max: int = Field(ge=0)
    keys: int | None = Field(default=None, ge=1)
    mark_is_key: bool = False  # the record's mark as text is its key
    acks: Literal["all", "1", "0"] = "all"
    idempotence: bool = True
    linger_ms: float = Field(default=5, ge=0)
    deadline_ms: int = Field(default=30_000, ge=1)
    transaction: TransactionSettings | None = None
    seed: int

    @property
    def delivery_timeout_ms(self) -> int:
        """``delivery.timeout.ms``: the deadline, but no longer than a transaction may last, as librdkafka requires."""
        return min(self.deadline_ms, self.transaction.timeout_ms) if self.transaction else self.deadline_ms

    @property
    def transactional_id(self) -> str | None:
        """``transactional.id`` of the producer, by which a plan names it: the worker's name; None without any."""
        return self.worker if self.transaction else None

    @property
    def num_records(self) -> int | None:
        """Return how many records Kafka's ProducerPerformance sends; None if the client sends what is due."""
        number = self.settings.get(NUM_RECORDS) if self.client == "java" else None
        return None if number is None else int(number)

    @model_validator(mode="after")
    def _sizes_in_order(self) -> Self:
        if self.record_size_min > self.record_size_max:
            raise ValueError(f"record_size_min {self.record_size_min} is above record_size_max {self.record_size_max}")
        return self


class CommitAssignment(_Assignment):
    """Assignment of one committer, which commits offsets for consumer groups without members.

    Commit n belongs to consumer group n mod ``groups``. Each consumer group commits the offsets 0, 1, 2 and so on for
    one partition of ``topic``. If ``offsets_partitions``, the number of partitions of ``__consumer_offsets``, is given,
    the consumer groups are ordered by their coordinator, otherwise by their number.
    """

    op: Literal["commit"] = "commit"
    producer_id: int = Field(ge=0, lt=2**31)
    rate_per_s: float | None = Field(default=None, gt=0)
    in_flight: int | None = Field(default=None, ge=1)
    offset_us: int = Field(default=0, ge=0)
    groups: int = Field(ge=1)
    offsets_partitions: int | None = Field(default=None, ge=1)
    deadline_ms: int = Field(default=30_000, ge=1)

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        if (self.rate_per_s is None) == (self.in_flight is None):
            raise ValueError("a committer needs either rate_per_s or in_flight, not both")
        return self

    def group_of(self, seq: int) -> str:
        prefix, number = f"{self.workload}-{self.arm}", seq % self.groups
        if self.offsets_partitions is None:
            return f"{prefix}-{number}"
        return groups_by_coordinator(prefix, self.groups, self.offsets_partitions)[number]

    def partition_of(self, seq: "Number") -> "Number":
        return seq % self.groups % self.partitions

    def offset_of(self, seq: "Number") -> "Number":
        return seq // self.groups


class CommitSchedule(_Message):
    """When a consumer commits: automatically (neither is given), or after a time or a number of processed records."""

    every_ms: int | None = Field(default=None, ge=1)
    every_records: int | None = Field(default=None, ge=1)


class ConsumeAssignment(_Assignment):
    """Assignment of one consumer, which subscribes and commits with a ``group``, and otherwise reads every partition.

    With a ``pattern`` it subscribes to the topics whose whole names match, of which ``topics`` are those of the run.
    The group of an arm has so many ``members``; one in ``reserve`` starts only when a fault lets it join. A static
    member (KIP-345) has an ``instance_id``. A consumer commits what it has processed after a time or a number of
    records (``commit``), or as its client library does by default. Processing a record takes ``processing_ms``, after
    which the record counts as delivered.

    The reader of a pipe's outputs ``observes`` them: the value is the place of the mark that a service copies from the
    input (``schedule.mark_in``).

    If a topic existed before the run, ``begin`` maps its name and each partition to the offset of the run's first
    record; records at lower offsets are not checked, even if an earlier run of Aftershock wrote them.
    """

    op: Literal["consume"] = "consume"
    pattern: str | None = None
    group: str | None = None
    members: int = Field(default=1, ge=1)
    reserve: bool = False
    protocol: Literal["consumer", "classic"] | None = None
    assignor: str | None = None
    instance_id: str | None = None
    commit: CommitSchedule | None = None
    processing_ms: int = Field(default=0, ge=0)
    from_: Literal["earliest", "latest"] = "earliest"
    isolation: Literal["read_committed", "read_uncommitted"] | None = None
    begin: dict[str, dict[int, int]] = Field(default_factory=dict)
    observes: str | None = None

    @property
    def side(self) -> str:
        return "pipe" if self.observes else self.op

    @property
    def places(self) -> list[Place]:
        """Return all partitions of all topics."""
        return [place for topic in self.topics for place in topic.places]

    @property
    def own_commits(self) -> CommitSchedule | None:
        """When the consumer itself commits; None if its client library does, or nobody."""
        return None if self.commit == CommitSchedule() else self.commit


class Readiness(_Message):
    """How a service tells that it is ready: by a line of its output (a pattern), or a successful HTTP answer."""

    log: str | None = None
    http: str | None = None


CONTAINER_ID = "{file}.container"
"""File with the id of a service's container, beside the service's own file."""


class PipeAssignment(_Assignment):
    """Assignment of one process of a service, which reads ``topic`` and writes the topic ``to``.

    ``command`` is the whole command line, with ``docker run`` for a service in a container. The words ``{bootstrap}``,
    ``{from}``, ``{to}``, ``{group}``, ``{member}`` and ``{file}`` in ``command`` and ``env`` and the text of ``file``
    are replaced. A process that ends by itself is started again after ``restart_ms``. One in ``reserve`` starts only
    when a fault lets it join. If it is ``in_container``, ``command`` writes the container's id to the file
    ``CONTAINER_ID``.
    """

    op: Literal["pipe"] = "pipe"
    to: str
    group: str | None = None
    members: int = Field(default=1, ge=1)
    reserve: bool = False
    env: dict[str, str] = Field(default_factory=dict)
    file: str | None = None
    ready: Readiness = Readiness()
    restart_ms: int = Field(default=1_000, ge=1)
    in_container: bool = False

    @property
    def unmet(self) -> str:
        """What a service that is not ready has not done, for messages; empty if the plan does not say."""
        if self.ready.log:
            return f" (no line of its output matches `{self.ready.log}`)"
        return f" ({self.ready.http} gives no successful answer)" if self.ready.http else ""

    @property
    def places(self) -> list[Place]:
        """Return all partitions of the inputs."""
        return [place for topic in self.topics for place in topic.places]


ClientAssignment = ProduceAssignment | ConsumeAssignment | CommitAssignment
"""Assignments of clients that write a row for each record or commit."""

Assignment = ClientAssignment | PipeAssignment


def in_reserve(assignment: Assignment) -> bool:
    """Return True for a worker that starts only when a fault lets it join its group."""
    return isinstance(assignment, ConsumeAssignment | PipeAssignment) and assignment.reserve


parse_assignment = TypeAdapter[Assignment](Annotated[Assignment, Field(discriminator="op")]).validate_json


class Go(_Message):
    """Order to a producer or committer to start the schedule at ``start_us``, and end it at ``stop_us`` if given.

    Only a restarted worker gets ``stop_us``, if a ``stop`` order was given while the worker was down.
    """

    do: Literal["go"] = "go"
    start_us: int
    stop_us: int | None = None


class Stop(_Message):
    """Order to send no record whose intended time is ``at_us`` or later, and to answer when all records have ended."""

    do: Literal["stop"] = "stop"
    at_us: int


class Drain(_Message):
    """Order to a consumer to read up to ``end_offsets``, until ``until_us`` at most, and then to answer.

    ``end_offsets`` maps topics and partitions to offsets. The consumer gives up earlier if its positions don't advance
    for ``idle_us``, or advance too slowly to finish.
    """

    do: Literal["drain"] = "drain"
    end_offsets: dict[str, dict[int, int]]
    until_us: int
    idle_us: int | None = None


class Quit(_Message):
    """Order to a worker to write the final counters, close the client, and exit."""

    do: Literal["quit"] = "quit"


Order = Go | Stop | Drain | Quit

parse_order = TypeAdapter[Order](Annotated[Order, Field(discriminator="do")]).validate_json
