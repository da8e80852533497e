"""The parts of a plan that its faults are judged against, beside its cluster: topics, workloads, timing.

Rules: a field is named as its key in YAML (``for`` and ``from``, which Python keeps for itself, are ``for_`` and
``from_``); unknown keys are errors; durations are ms, sizes bytes, rates per second once parsed, and dump back to text
with units. A model knows only itself: what refers to another part of the plan is judged by ``check``, all at once.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictInt,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from aftershock.faults.plan.cluster import ConfigText, Part, RackName, text_of
from aftershock.faults.plan.units import Duration, Rate, Size

_MIB = 1_048_576
_NONE = "none"


def _scalar(value: object) -> object:
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise _refused("a client's setting is text, a number, true or false: write one of these")


def _bearable(ms: int) -> int:
    if not 100 <= ms <= 300_000:  # noqa: PLR2004 -- the message explains the numbers
        raise _refused("a deadline is between 100ms and 5m: the run waits for the last record's before it ends")
    return ms


Deadline = Annotated[Duration, AfterValidator(_bearable)]
TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
GroupName = TopicName
WorkloadName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,39}$")]
ArmName = WorkloadName
Setting = Annotated[StrictBool | StrictInt | float | str, BeforeValidator(_scalar)]
Acks = Annotated[Literal["all", "1", "0"], BeforeValidator(text_of)]


class Topic(Part):
    """A topic, created before the load."""

    name: TopicName
    partitions: Annotated[StrictInt, Field(ge=1, le=1000)]
    replication: Annotated[StrictInt, Field(ge=1)]
    config: dict[str, ConfigText] = {}  # noqa: RUF012 -- pydantic copies defaults


class RecordSize(Part):
    """The size of a record's value: ``1000``, ``10kB``, or drawn between ``min`` and ``max``."""

    min: Annotated[Size, Field(ge=1, le=_MIB)]
    max: Annotated[Size, Field(ge=1, le=_MIB)]

    @model_validator(mode="before")
    @classmethod
    def _from_one(cls, value: Any) -> Any:
        return value if isinstance(value, dict | cls) else {"min": value, "max": value}

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise _refused(f"min {self.min} is more than max {self.max}: swap them")
        return self

    @model_serializer(mode="wrap")
    def _to_one(self, handler: SerializerFunctionWrapHandler) -> Any:
        return self.min if self.min == self.max else handler(self)


class Produce(Part):
    """Open-loop production at ``rate`` for each arm. ``keys``: how many distinct ones; none: no key."""

    topic: TopicName
    rate: Rate
    record_size: RecordSize = RecordSize(min=1000, max=1000)
    keys: Annotated[StrictInt, Field(ge=1)] | None = None
    acks: Acks = "all"
    idempotence: StrictBool = True
    rack: RackName | None = None
    linger: Duration = 5
    deadline: Deadline = 30_000

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.idempotence and self.acks != "all":
            raise _refused(
                f"idempotence needs acks: all, and here acks is {self.acks}; say idempotence: false, or acks: all"
            )
        return self


class Consume(Part):
    """Consumption by each arm, in a group of its own (``<group>-<arm>``); without ``group``, of every partition."""

    topic: TopicName
    group: GroupName | None = None
    from_: Annotated[Literal["earliest", "latest"], Field(alias="from")] = "earliest"
    rack: RackName | None = None


class Commit(Part):
    """OffsetCommits by each arm, dealt in turn to ``groups`` groups without members (KIP-1224).

    At ``rate`` (open loop), or ``in_flight`` at a time (closed loop: the next is sent when one has ended).
    ``by_coordinator``: to all groups of one coordinator, then to those of the next. What is committed are positions in
    ``topic``, the plan's first one where none is named.
    """

    groups: Annotated[StrictInt, Field(ge=1, le=10_000)] = 1
    rate: Rate | None = None
    in_flight: Annotated[StrictInt, Field(ge=1, le=1_000)] | None = None
    by_coordinator: StrictBool = False
    topic: TopicName | None = None
    rack: RackName | None = None
    deadline: Deadline = 30_000

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        if (self.rate is None) == (self.in_flight is None):
            raise _refused(
                "commits come at a `rate` (open loop) or with so many `in_flight` (closed loop): say one of the two"
            )
        if self.in_flight is not None and self.in_flight > self.groups:
            raise _refused(
                f"in_flight {self.in_flight} is more than groups {self.groups}, and a group has one commit in flight: "
                "have more groups"
            )
        return self


class LeaderDiscovery(Part):
    """The rules of KIP-951 one by one; ``response`` is all of them, ``metadata`` none."""

    hints: StrictBool = True
    immediate_retry: StrictBool = True
    endpoint_merge: StrictBool = True
    highest_version: StrictBool = True

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in ("response", "metadata"):
            raise _refused(f"`{value}` is no way to find a leader: say response, metadata, or its rules one by one")
        return dict.fromkeys(cls.model_fields, value == "response")


class Arm(Part):
    """One variant of a client. ``client_rack`` is what the client tells Kafka (KIP-392); ``none``: nothing.

    ``settings`` are in the client's own words: librdkafka's for ``confluent``, Kafka's for ``reference`` and ``java``,
    whatever the program of ``exec`` takes. The last four are rules of the ``reference`` client, each on its own switch.
    """

    client: Literal["confluent", "reference", "java", "exec"] = "confluent"
    command: Annotated[tuple[str, ...], Field(description="how to start the program of an `exec` client")] = ()
    settings: dict[str, Setting] = {}  # noqa: RUF012 -- pydantic copies defaults
    client_rack: RackName | None = None
    leader_discovery: LeaderDiscovery | None = None
    fetch_session: StrictBool | None = None
    read_replica: StrictBool | None = None
    partitioner: Literal["sticky", "uniform", "adaptive", "availability"] | None = None

    @field_validator("client_rack", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return None if value == _NONE else value

    @model_validator(mode="after")
    def _words_of_its_client(self) -> Self:
        if self.switches and self.client != "reference":
            switch = next(iter(self.switches))
            raise _refused(f"`{switch}` is a switch of `client: reference`, and this is {self.client}: take it away")
        if bool(self.command) != (self.client == "exec"):
            raise _refused("`client: exec` needs a `command`, a list like [python3, my_client.py], and only it has one")
        return self

    @property
    def switches(self) -> dict[str, Any]:
        """The rules of the reference client that the plan speaks of, by name."""
        said = {name: getattr(self, name) for name in ("leader_discovery", "fetch_session", "read_replica")}
        said["partitioner"] = self.partitioner
        return {name: _plain(value) for name, value in said.items() if value is not None}


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, BaseModel) else value


class Workload(Part):
    """Traffic: produce, consume, commit or several of these, by every arm, side by side."""

    name: WorkloadName
    produce: Produce | None = None
    consume: Consume | None = None
    commit: Commit | None = None
    arms: Annotated[dict[ArmName, Arm], Field(min_length=1, max_length=8)] = {"baseline": Arm()}  # noqa: RUF012 -- pydantic copies defaults

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.produce is None and self.consume is None and self.commit is None:
            raise _refused("a workload needs `produce`, `consume` or `commit`; add one")
        return self

    @property
    def consumer_groups(self) -> tuple[str, ...]:
        """Kafka's names of the groups that its arms consume in, in their order; none without a group."""
        group = self.consume and self.consume.group
        return tuple(f"{group}-{arm}" for arm in self.arms) if group else ()


class Warmup(Part):
    """Warm-up ends when latency has stopped drifting: not before ``min``, and the run is INCONCLUSIVE after ``max``."""

    min: Duration = 5_000
    max: Duration = 60_000

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise _refused("min is more than max: swap them")
        return self


class Timing(Part):
    """How long the phases last. ``fault`` is the window of a fault that has no ``for``."""

    warmup: Warmup = Warmup()
    steady: Duration = 10_000
    fault: Duration = 5_000
    recovery: Duration = 10_000


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
