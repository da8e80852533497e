"""What one client process is told: everything it needs, and nothing it has to ask for.

An assignment is one line of JSON on the worker's standard input, and it is kept beside the worker's spool, so that the
spool can be turned into evidence without the worker (it may have been killed).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from aftershock.workloads.adapters.security import OPEN, Secured
from aftershock.workloads.load.schedule import by_coordinator

Setting = str | int | float | bool
if TYPE_CHECKING:
    import numpy as np  # a worker has no use for it, and its memory is measured

    Number = TypeVar("Number", int, np.ndarray[Any, Any])


class _Assignment(BaseModel):
    """What producers and consumers are both told.

    ``worker`` names the process, its log file and its spool: unique in the run. ``rack`` is where the client stands
    (its bootstrap address belongs to that rack); ``client_rack`` is what it says about itself, null for nothing.
    ``origin_ns`` is ``time.monotonic_ns()`` at the start of the run: all times are integer microseconds since then.
    ``settings`` are the plan's own settings of the client, in its own words (librdkafka's, Kafka's), and win over
    ours. ``switches`` are the rules of a reference client that the plan turned on or off. ``command`` starts the
    program of an ``exec`` or ``java`` client. ``broker_racks`` says in which rack each broker stands. ``security``
    names the variables of its secrets, never the secrets. ``life`` counts how often this worker was killed by a fault
    and started again: it goes on where the life before it ended.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    origin_ns: int
    worker: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    workload: str
    arm: str
    client: Literal["confluent", "reference", "java", "exec"] = "confluent"
    topic: str
    topic_id: str
    partitions: int = Field(ge=1)
    bootstrap: str
    rack: str
    client_rack: str | None = None
    settings: dict[str, Setting] = Field(default_factory=dict)
    switches: dict[str, Any] = Field(default_factory=dict)
    command: tuple[str, ...] = ()
    broker_racks: dict[int, str] = Field(default_factory=dict)
    security: Secured = OPEN
    life: int = Field(default=0, ge=0)
    spool: Path
    events: Path


class ProduceAssignment(_Assignment):
    """One producer: ``rate_per_s`` records a second, the first at ``start + offset_us``.

    ``offset_us`` shifts an arm's schedule, so that arms do not all send at the same instant. Sizes are of the record's
    value, in bytes. ``keys`` is the number of distinct keys, null for records without a key. ``seed`` and ``workload``
    name the stream that sizes and keys are drawn from, so all arms of a workload send the same records.
    """

    op: Literal["produce"] = "produce"
    producer_id: int = Field(ge=0, lt=2**31)
    rate_per_s: float = Field(gt=0)
    offset_us: int = Field(default=0, ge=0)
    record_size_min: int = Field(ge=0)
    record_size_max: int = Field(ge=0)
    keys: int | None = Field(default=None, ge=1)
    acks: Literal["all", "1", "0"] = "all"
    idempotence: bool = True
    linger_ms: float = Field(default=5, ge=0)
    deadline_ms: int = Field(default=30_000, ge=1)
    seed: int

    @model_validator(mode="after")
    def _sizes_in_order(self) -> Self:
        if self.record_size_min > self.record_size_max:
            raise ValueError(f"record_size_min {self.record_size_min} is above record_size_max {self.record_size_max}")
        return self


class CommitAssignment(_Assignment):
    """One committer: ``rate_per_s`` OffsetCommits a second, or ``in_flight`` at a time, dealt to ``groups`` in turn.

    Commit n is of group n mod ``groups``; what a group commits is 0, 1, 2 ... for one partition of ``topic``, so its
    offsets must never be seen to go back. The groups have no members. With ``offsets_partitions``, how many
    ``__consumer_offsets`` has, they are dealt coordinator by coordinator, else in the order of their numbers.
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
            raise ValueError("a committer has a rate_per_s or an in_flight, and not both")
        return self

    def group_of(self, seq: int) -> str:
        """The group that commit ``seq`` is of."""
        prefix, number = f"{self.workload}-{self.arm}", seq % self.groups
        if self.offsets_partitions is None:
            return f"{prefix}-{number}"
        return by_coordinator(prefix, self.groups, self.offsets_partitions)[number]

    def partition_of(self, seq: "Number") -> "Number":
        """The partition of ``topic`` that commit ``seq`` is of (one, or an array): always the same one for a group."""
        return seq % self.groups % self.partitions

    def offset_of(self, seq: "Number") -> "Number":
        """The offset that commit ``seq`` commits (one, or an array)."""
        return seq // self.groups


class ConsumeAssignment(_Assignment):
    """One consumer: with a ``group`` it subscribes and commits; without, it is assigned every partition.

    ``begin`` is the first offset of each partition that can be of this run, where that isn't 0: what lies before is
    foreign, also if an earlier run of ours wrote it, and leaves no row.
    """

    op: Literal["consume"] = "consume"
    group: str | None = None
    from_: Literal["earliest", "latest"] = "earliest"
    begin: dict[int, int] = Field(default_factory=dict)


Assignment = ProduceAssignment | ConsumeAssignment | CommitAssignment

_ADAPTER: TypeAdapter[Assignment] = TypeAdapter(Annotated[Assignment, Field(discriminator="op")])


def parse_assignment(line: str | bytes) -> Assignment:
    """The assignment in one line of JSON; pydantic's ``ValidationError`` when it isn't one."""
    return _ADAPTER.validate_json(line)
