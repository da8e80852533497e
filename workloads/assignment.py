"""What one client process is told: everything it needs, and nothing it has to ask for.

An assignment is one line of JSON on the worker's standard input, and it is kept beside the worker's spool, so that the
spool can be turned into evidence without the worker (it may have been killed).
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

Setting = str | int | float | bool


class _Assignment(BaseModel):
    """What producers and consumers are both told.

    ``worker`` names the process, its log file and its spool: unique in the run. ``rack`` is where the client stands
    (its bootstrap address belongs to that rack); ``client_rack`` is what it says about itself, null for nothing.
    ``origin_ns`` is ``time.monotonic_ns()`` at the start of the run: all times are integer microseconds since then.
    ``settings`` are the plan's own librdkafka settings and win over ours.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    origin_ns: int
    worker: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    workload: str
    arm: str
    client: Literal["confluent"] = "confluent"
    topic: str
    topic_id: str
    partitions: int = Field(ge=1)
    bootstrap: str
    rack: str
    client_rack: str | None = None
    settings: dict[str, Setting] = Field(default_factory=dict)
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


class ConsumeAssignment(_Assignment):
    """One consumer: with a ``group`` it subscribes and commits; without, it is assigned every partition."""

    op: Literal["consume"] = "consume"
    group: str | None = None
    from_: Literal["earliest", "latest"] = "earliest"


Assignment = Annotated[ProduceAssignment | ConsumeAssignment, Field(discriminator="op")]

_ADAPTER: TypeAdapter[ProduceAssignment | ConsumeAssignment] = TypeAdapter(Assignment)


def parse_assignment(line: str | bytes) -> ProduceAssignment | ConsumeAssignment:
    """The assignment in one line of JSON; pydantic's ``ValidationError`` when it isn't one."""
    return _ADAPTER.validate_json(line)
