"""Models of a plan's topics, workloads and timing.

Parsed durations are in ms, sizes in bytes, rates per second. A model validates only its own fields; references to other
parts of a plan are checked by ``plan/references.py``.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self
from warnings import catch_warnings

import re2
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

from aftershock.faults.sections.cluster import ConfigText, Part, RackName, TopicName, text_of
from aftershock.faults.sections.document import INTEGER_MAX
from aftershock.faults.sections.services import MEMBERS_MAX, QUIET, GroupName, Pipe, Ready
from aftershock.faults.sections.transactions import Transaction
from aftershock.faults.sections.units import Duration, Rate, Size, parse_duration_ms
from aftershock.names import LIBRARIES, Client

_MIB = 1_048_576
ARMS_MAX = 8
_RECORDS = re.compile(r"([1-9]\d{0,6}) records?")


def _setting(value: object) -> object:
    if isinstance(value, int) and abs(value) > INTEGER_MAX:
        raise ValueError(f"`{value}` is too large; give at most {INTEGER_MAX}")
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError("a client setting must be text, a number, true or false")


def _commit_interval(text: str) -> str:
    text = " ".join(text.split())
    if text != "auto" and not _RECORDS.fullmatch(text):
        try:
            ms = parse_duration_ms(text)
        except ValueError:
            raise ValueError(
                f"commits can't be made every `{text}`: write a time like 1s, `100 records`, or auto"
            ) from None
        if ms < 1:
            raise ValueError("commits need at least 1ms between them: write a longer time")
    return text


def _deadline(ms: int) -> int:
    if not 100 <= ms <= 300_000:  # noqa: PLR2004 -- the message explains the numbers
        why = "the run waits for the last record's deadline before it ends"
        raise ValueError(f"a deadline must be between 100ms and 5m: {why}")
    return ms


Deadline = Annotated[Duration, AfterValidator(_deadline)]
WorkloadName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,39}$")]
ArmName = WorkloadName
Setting = Annotated[StrictBool | StrictInt | float | str, BeforeValidator(_setting)]
Acks = Annotated[Literal["all", "1", "0"], BeforeValidator(text_of)]


class Topic(Part):
    """A Kafka topic of a plan; the run creates the topic before the load."""

    name: TopicName
    partitions: Annotated[StrictInt, Field(ge=1, le=1000)]
    replication: Annotated[StrictInt, Field(ge=1)]
    config: dict[str, ConfigText] = {}  # noqa: RUF012 -- pydantic copies defaults


class RecordSize(Part):
    """Size of a record's value in bytes (``1000`` or ``10kB`` in a plan), or drawn between ``min`` and ``max``."""

    min: Annotated[Size, Field(ge=1, le=_MIB)]
    max: Annotated[Size, Field(ge=1, le=_MIB)]

    @model_validator(mode="before")
    @classmethod
    def _from_single_value(cls, value: Any) -> Any:
        return value if isinstance(value, dict | cls) else {"min": value, "max": value}

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}: swap the two values")
        return self

    @model_serializer(mode="wrap")
    def _to_single_value(self, handler: SerializerFunctionWrapHandler) -> Any:
        return self.min if self.min == self.max else handler(self)


_PATTERN_PART = re.compile(
    r"""\\(?P<escape>.)                               # an escaped character
    | \[ \^? \]? (?P<set>(?:\\.|[^\]\\])*) \]        # a set of characters
    | (?P<group>\(\?.?)                              # a group that is not a plain one
    | (?P<repeated>[*+?}][*+?])                      # a quantifier of a quantifier
    """,
    re.VERBOSE | re.DOTALL,
)
_PATTERN_MAX = 249  # a topic's name is no longer


def _pattern(text: str) -> str:
    """Return a pattern of topic names; raise ValueError if it doesn't mean the same to all clients and to brokers.

    Brokers use RE2, Kafka's Java client uses Java's syntax, librdkafka that of POSIX (extended).
    """
    if not text or len(text) > _PATTERN_MAX:
        raise ValueError(f"a pattern has 1 to {_PATTERN_MAX} characters, got {len(text)}: shorten it, or list `topics`")
    try:
        with catch_warnings(action="ignore"):  # of Python's syntax in future, which is none of the clients'
            re.compile(text)  # never matched, because its time to match a name of 48 characters may be a year
    except re.error as error:
        where = "" if error.pos is None else f" at its character {error.pos + 1}"
        raise ValueError(f"`{text}` is not a regular expression ({error.msg}{where}): correct it") from None
    except (RecursionError, OverflowError):
        raise ValueError(f"`{text}` is too large a regular expression: shorten it, or list `topics`") from None
    for part in _PATTERN_PART.finditer(text):
        in_set = part["set"] or ""
        is_foreign = (part["escape"] or "").isalnum() or "\\" in in_set or "[" in in_set or "&&" in in_set
        if is_foreign or part["group"] or part["repeated"]:
            raise ValueError(
                f"`{part[0]}` in `{text}` doesn't mean the same to Kafka's brokers and all clients: use names, sets "
                "like [a-z0-9], groups ( ), |, ., *, + and ?"
            )
    try:
        re2.compile(text, QUIET)
    except re2.error as error:
        raise ValueError(f"Kafka's brokers can't read `{text}` ({error.args[0].decode()}): correct it") from None
    return text


TopicPattern = Annotated[str, AfterValidator(_pattern)]


class TopicSection(Part):
    """Section of a workload with one ``topic`` or several ``topics``."""

    topic: TopicName | None = None
    topics: tuple[TopicName, ...] = ()

    @field_validator("topics")
    @classmethod
    def _distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"`{twice}` is listed twice: remove one of the two")
        return names

    def topic_names(self, _declared: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the section's topics; ``declared`` are those of the plan, which a pattern may match."""
        return self.topics if self.topic is None else (self.topic,)


FIELDS_MAX = 64
RECORD_WORDS = ("mark", "key", "seq")
"""Words in texts of a JSON ``value`` that each record replaces, in braces."""


def _json_value(value: dict[str, Any]) -> dict[str, Any]:
    fields = list(json_fields(value))
    if not 1 <= len(fields) <= FIELDS_MAX:
        raise ValueError(f"a JSON value has 1 to {FIELDS_MAX} fields, got {len(fields)}")
    for path, field in fields:
        if not isinstance(field, str | bool | int | float) or (isinstance(field, float) and not math.isfinite(field)):
            word = path.rpartition(".")[2]
            quotes = (
                f'; to send the {word} of each record, write "{{{word}}}" in quotes' if word in RECORD_WORDS else ""
            )
            raise ValueError(
                f"the field {path} must be a text, a number, true, false, or an object of such fields{quotes}"
            )
    return value


def json_fields(value: Mapping[str, Any], path: str = "$") -> Iterator[tuple[str, Any]]:
    """Yield the path (``$.order.id``) and the value of each field of a JSON object that is not an object itself."""
    for name, field in value.items():
        if isinstance(field, Mapping):
            yield from json_fields(field, f"{path}.{name}")
        else:
            yield f"{path}.{name}", field


class Produce(TopicSection):
    """Open-loop production of records at ``rate`` for each arm, with ``keys`` distinct record keys, or without keys.

    The ``producers`` of an arm share the rate, and the records go to the ``topics`` in turn. A record's value has
    random bytes of ``record_size``, or it is the JSON object ``value``, in whose texts ``{mark}`` is the record's mark
    as text, ``{key}`` its key and ``{seq}`` its number.
    """

    producers: Annotated[StrictInt, Field(ge=1, le=MEMBERS_MAX)] = 1
    rate: Rate
    record_size: RecordSize = RecordSize(min=1000, max=1000)
    value: Annotated[dict[str, Any], AfterValidator(_json_value)] | None = None
    keys: Annotated[StrictInt, Field(ge=1)] | None = None
    acks: Acks = "all"
    idempotence: StrictBool = True
    rack: RackName | None = None
    linger: Duration = 5
    deadline: Deadline = 30_000
    transaction: Transaction | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.topic is None) == (not self.topics):
            raise ValueError("give either `topic` or `topics` to produce to")
        if self.transaction is not None and not self.idempotence:
            raise ValueError("`transaction` needs an idempotent producer: remove `idempotence: false`")
        if self.value is not None and "record_size" in self.model_fields_set:
            raise ValueError("`value` is the whole value of a record, whose size follows from it: remove `record_size`")
        if self.idempotence and self.acks != "all":
            raise ValueError(f"idempotence needs acks: all, got {self.acks}; set idempotence: false or acks: all")
        return self


class Commits(Part):
    """When a consumer commits what it has processed: ``every: 1s``, ``every: 100 records``, or ``every: auto``.

    With ``auto``, the client library commits, as with ``enable.auto.commit``.
    """

    every: Annotated[str, AfterValidator(_commit_interval)]

    @property
    def every_records(self) -> int | None:
        match = _RECORDS.fullmatch(self.every)
        return int(match[1]) if match else None

    @property
    def every_ms(self) -> int | None:
        return None if self.every == "auto" or self.every_records else parse_duration_ms(self.every)


Assignor = Literal["uniform", "range", "roundrobin", "sticky", "cooperative-sticky"]
ASSIGNORS: Mapping[str, tuple[str, ...]] = {
    "consumer": ("uniform", "range"),
    "classic": ("range", "roundrobin", "sticky", "cooperative-sticky"),
}
"""Assignors of the group protocols: those of the coordinator (KIP-848), and those of the group's leader."""


class Consume(TopicSection):
    """Consumption by each arm in its own group ``<group>-<arm>``, or of all partitions without a group.

    A group may also subscribe to a ``pattern``, a regular expression that whole names of topics match. Without a group
    a consumer reads all partitions of all its topics.

    The group of an arm has ``members`` consumers, in the ``racks`` in turn. ``static`` members keep their membership
    over a restart (KIP-345). ``processing`` is the time that a consumer spends on each record before the record counts
    as delivered. ``isolation`` is Kafka's ``isolation.level``; if it is missing, the client's own default applies.
    """

    pattern: TopicPattern | None = None
    group: GroupName | None = None
    from_: Annotated[Literal["earliest", "latest"], Field(alias="from")] = "earliest"
    rack: RackName | None = None
    racks: tuple[RackName, ...] = ()
    members: Annotated[StrictInt, Field(ge=1, le=MEMBERS_MAX)] = 1
    protocol: Literal["consumer", "classic"] | None = None
    assignor: Assignor | None = None
    static: StrictBool = False
    commit: Commits | None = None
    processing: Annotated[Duration, Field(le=60_000)] = 0
    isolation: Literal["read_committed", "read_uncommitted"] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum((self.topic is not None, bool(self.topics), self.pattern is not None)) != 1:
            raise ValueError("give one of `topic`, `topics` and `pattern` to consume from")
        for key in ("protocol", "assignor", "static", "commit", "pattern"):
            if self.group is None and getattr(self, key):
                raise ValueError(f"`{key}` is a property of a group: add `group`")
        if self.group is None and self.members > 1:
            raise ValueError(f"{self.members} members need a `group`, in which they share the partitions: add `group`")
        if self.rack is not None and self.racks:
            raise ValueError("`rack` and `racks` exclude each other: keep one of them")
        if self.assignor is not None and self.protocol is None:
            raise ValueError(
                "`assignor` depends on the group protocol: add `protocol: consumer` or `protocol: classic`"
            )
        if self.assignor is not None and self.assignor not in (names := ASSIGNORS[self.protocol or ""]):
            raise ValueError(f"the protocol {self.protocol} has no assignor {self.assignor}; use {' or '.join(names)}")
        return self

    def topic_names(self, declared: Iterable[str]) -> tuple[str, ...]:
        if self.pattern is None:
            return super().topic_names(declared)
        pattern = re2.compile(self.pattern, QUIET)
        return tuple(name for name in declared if pattern.fullmatch(name))


def group_protocol(planned: str | None, client: str, settings: Mapping[str, object]) -> str:
    """Return the group protocol of an arm: that of ``consume.protocol``, of its settings, or its client's default."""
    default = "consumer" if client == "reference" else "classic"
    return str(planned or settings.get("group.protocol") or default)


class Commit(Part):
    """OffsetCommit load of each arm, which commits in turn to ``groups`` groups that have no members (KIP-1224).

    The load is either open-loop at ``rate`` commits per second, or closed-loop with ``in_flight`` concurrent commits.
    With ``by_coordinator`` the arm commits to all groups of one coordinator, then to all groups of the next
    coordinator. ``topic`` is the topic of the committed offsets, by default the plan's first topic.
    """

    groups: Annotated[StrictInt, Field(ge=1, le=10_000)] = 1
    rate: Rate | None = None
    in_flight: Annotated[StrictInt, Field(ge=1, le=1_000)] | None = None
    by_coordinator: StrictBool = False
    topic: TopicName | None = None
    rack: RackName | None = None
    deadline: Deadline = 30_000

    @model_validator(mode="after")
    def _one_load_model(self) -> Self:
        if (self.rate is None) == (self.in_flight is None):
            raise ValueError("give either `rate` (open loop) or `in_flight` (closed loop) for commits")
        if self.in_flight is not None and self.in_flight > self.groups:
            raise ValueError(
                f"in_flight {self.in_flight} exceeds groups {self.groups}, and a group has at most one commit in "
                "flight: add groups"
            )
        return self


class LeaderDiscovery(Part):
    """Switches for a client's rules of KIP-951; a plan's word ``response`` turns all rules on, ``metadata`` all off."""

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
            raise ValueError(f"`{value}` is not a leader discovery mode: write response, metadata or a mapping")
        return dict.fromkeys(cls.model_fields, value == "response")


_LIST = "aftershock clients list"
_SERVICE_KEYS = ("image", "env", "file", "ready")
EnvText = Annotated[str, BeforeValidator(text_of), Field(max_length=4096)]


VERSION_PATTERN = r"\d{1,4}(\.\d{1,8}){1,3}([.-]?[A-Za-z]{1,9}([.-]?\d{1,4})?)?"
_VERSION = re.compile(VERSION_PATTERN)


def _version(value: object) -> object:
    if isinstance(value, int | float):
        how = f"`{value}` is a number, in which 2.10 would be 2.1: write all parts, such as 2.10.0"
        raise ValueError(how)  # noqa: TRY004  # pydantic reports a ValueError only
    if isinstance(value, str) and not _VERSION.fullmatch(value):
        raise ValueError(f"`{value}` is no version of a client: write it as its registry does, such as 2.10.0")
    return value


class Arm(Part):
    """One variant of a client in a workload, which reports the rack ``client_rack`` to Kafka (KIP-392), or none.

    A library (``names.LIBRARIES``) runs at one ``version`` in a shipped program that is built from the library's
    package registry. So does ``java`` with a ``version``; without one it has the version of the brokers.

    The names in ``settings`` are librdkafka's for the client ``confluent``, Kafka's for ``reference`` and ``java``,
    those of the library, and those of the user's program for ``exec``. ``leader_discovery``, ``fetch_session``,
    ``read_replica``, ``partitioner`` and ``switch`` (of the partitioner) turn rules of the ``reference`` client on or
    off.

    A ``service`` is a program (``command``) or a container (``image``, with ``command`` as its arguments) that knows
    nothing of Aftershock. In ``command``, in the values of its environment ``env``, and in the text of its ``file``,
    the words ``{bootstrap}``, ``{from}``, ``{to}``, ``{group}``, ``{member}`` (the process's name) and ``{file}`` (the
    path of the file) are replaced.
    """

    client: Client = "confluent"
    version: Annotated[
        str | None,
        BeforeValidator(_version),
        Field(description="version of the library in its package registry, such as 2.3.0"),
    ] = None
    command: Annotated[
        tuple[str, ...], Field(description="command line of the program that an `exec` client or a `service` runs")
    ] = ()
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:@-]{0,254}$")] | None = None
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")], EnvText] = {}  # noqa: RUF012 -- pydantic copies defaults
    file: Annotated[str, Field(max_length=65_536)] | None = None
    ready: Ready | None = None
    settings: dict[str, Setting] = {}  # noqa: RUF012 -- pydantic copies defaults
    client_rack: RackName | None = None
    leader_discovery: LeaderDiscovery | None = None
    fetch_session: StrictBool | None = None
    read_replica: StrictBool | None = None
    partitioner: Literal["sticky", "uniform", "adaptive", "availability"] | None = None
    switch: Literal["delayed", "sharp"] | None = None

    @field_validator("client_rack", mode="before")
    @classmethod
    def _none_is_no_rack(cls, value: Any) -> Any:
        return None if value == "none" else value

    @model_validator(mode="after")
    def _keys_fit_the_client(self) -> Self:
        if self.switches and self.client != "reference":
            switch = next(iter(self.switches))
            sentence = f"`{switch}` only applies to `client: reference`, and the arm's client is {self.client}"
            raise ValueError(f"{sentence}: remove it")
        if self.version is None and self.client in LIBRARIES:
            raise ValueError(f"`client: {self.client}` needs a `version`, such as `version: 2.3.0`; see `{_LIST}`")
        if self.version is not None and self.client not in (*LIBRARIES, "java"):
            remedy = "write `client: librdkafka`" if self.client == "confluent" else "remove it"
            raise ValueError(f"`version` can't be chosen for the client {self.client}: {remedy}")
        if self.version is not None and "share" in self.settings:
            raise ValueError("`share` runs Kafka's client of the brokers' version: remove `version`")
        if self.switch and self.partitioner == "sticky":
            raise ValueError("`partitioner: sticky` has no `switch`, which is a rule of KIP-794: remove `switch`")
        if self.client == "service":
            if not (self.command or self.image):
                raise ValueError("a service needs a `command`, like [python3, billing.py], or an `image`")
        elif self.client == "exec" and not self.command:
            raise ValueError("`client: exec` needs a command: write `command: [python3, my_client.py]`")
        elif self.command and self.client != "exec":
            raise ValueError(
                f"the client {self.client} runs no `command`: write `client: service` if the workload has a `pipe`, "
                "`client: exec` if it has none, or remove `command`"
            )
        elif own := next((key for key in _SERVICE_KEYS if getattr(self, key)), None):
            raise ValueError(f"`{own}` belongs to a service: write `client: service`, or remove it")
        if self.client == "service" and self.settings:
            raise ValueError("a service gets no `settings`: give it `env`, `command` or a `file`")
        return self

    @property
    def switches(self) -> dict[str, Any]:
        """Keys of the arm, such as ``fetch_session``, that turn rules of the reference client on or off."""
        names = ("leader_discovery", "fetch_session", "read_replica", "partitioner", "switch")
        values = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in values.items()}


WORKERS_MAX = 64
Workers = Annotated[StrictInt, Field(ge=1, le=WORKERS_MAX)]


class WorkerPods(Part):
    """Pods in which clients run, on a Kubernetes cluster (``docs/LOAD.md``); ``workers`` is their number.

    The brokers are in pods, too, and these are beside them. ``image`` has Python and this version of Aftershock, by
    default the one that ``aftershock images --for PLAN`` builds. ``node_selector`` has the labels of the nodes that may
    have these pods, by default any.
    """

    workers: Workers
    image: Annotated[str | None, Field(pattern=r"^[a-z0-9][a-z0-9._/:@-]{0,254}$")] = None
    node_selector: dict[Annotated[str, Field(min_length=1, max_length=317)], ConfigText] = {}  # noqa: RUF012 -- pydantic copies defaults


class RunOn(Part):
    """Where the clients of a workload run, in the place of child processes: ``workers`` of this host, or in pods.

    A worker is a group of client processes with evidence and a clock of its own. The ``producers`` and ``members`` of
    an arm are spread over the workers in turn; without ``producers``, each worker has one.
    """

    workers: Workers | None = None
    kubernetes: WorkerPods | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.workers is None) == (self.kubernetes is None):
            raise ValueError("give either `workers`, a number, for this host, or `kubernetes: {workers: 8}` for pods")
        return self

    @property
    def count(self) -> int:
        return self.kubernetes.workers if self.kubernetes else self.workers or 0


POD_CLIENTS = ("confluent", "reference")
PIPE_CLIENTS = ("service", "confluent", "java", "reference")


class Workload(Part):
    """Concurrent traffic of all arms of a workload, to produce records, consume records or commit offsets.

    In a workload with a ``pipe``, each arm is a service. The records of its ``produce`` are sent by librdkafka.
    """

    name: WorkloadName
    produce: Produce | None = None
    consume: Consume | None = None
    commit: Commit | None = None
    pipe: Pipe | None = None
    run_on: RunOn | None = None
    arms: Annotated[dict[ArmName, Arm], Field(min_length=1, max_length=ARMS_MAX)] = {"baseline": Arm()}  # noqa: RUF012 -- pydantic copies defaults

    @model_validator(mode="before")
    @classmethod
    def _a_producer_for_each_worker(cls, value: Any) -> Any:
        run_on, produce = (value.get(key) for key in ("run_on", "produce")) if isinstance(value, dict) else (None, None)
        if isinstance(run_on, dict) and isinstance(produce, dict) and "producers" not in produce:
            inner = run_on.get("kubernetes")
            workers = (inner if isinstance(inner, dict) else run_on).get("workers")
            if type(workers) is int and 1 <= workers <= MEMBERS_MAX:
                return value | {"produce": produce | {"producers": workers}}
        return value

    @model_validator(mode="after")
    def _has_an_operation(self) -> Self:
        if self.produce is None and self.consume is None and self.commit is None and self.pipe is None:
            raise ValueError("a workload needs `produce`, `consume`, `commit` or `pipe`; add one")
        return self

    @model_validator(mode="after")
    def _suits_the_pipe(self) -> Self:
        if self.pipe and (self.consume or self.commit):
            other = "consume" if self.consume else "commit"
            raise ValueError(f"`{other}` and `pipe` exclude each other in one workload: give `{other}` one of its own")
        for name, arm in self.arms.items():
            if self.pipe and arm.version is not None:
                raise ValueError(
                    f"the pipe of the arm `{name}` runs Kafka's client of the brokers' version: remove `version`"
                )
            if self.pipe and arm.client not in PIPE_CLIENTS:
                ours = " or ".join(PIPE_CLIENTS[1:])
                raise ValueError(
                    f"the client {arm.client} of the arm `{name}` has no pipe: write `client: service`, or {ours}"
                )
            if self.pipe and arm.client != "service" and self.pipe.group is None:
                raise ValueError(f"the pipe of the arm `{name}` reads in a group: add `group` to `pipe`")
            if not self.pipe and arm.client == "service":
                raise ValueError(
                    f"the arm `{name}` is a service, which reads one topic and writes another: add `pipe: {{from: "
                    "orders, to: billed, group: biller}` to its workload"
                )
        return self

    @model_validator(mode="after")
    def _suits_the_workers(self) -> Self:
        if self.run_on is None:
            return self
        if self.pipe:
            raise ValueError("the processes of a service run on this host: remove `run_on`")
        clients = {
            "producers": self.produce.producers if self.produce else 0,
            "members": self.consume.members if self.consume else 0,
        }
        most = max(*clients.values(), 1 if self.commit else 0)
        if most < self.run_on.count:
            raise ValueError(
                f"an arm has {most} clients of a kind for {self.run_on.count} workers, so some would have none: lower "
                "`workers`, or add `producers` or `members`"
            )
        for name, arm in self.arms.items():
            if self.run_on.kubernetes and arm.client not in POD_CLIENTS:
                raise ValueError(
                    f"the client {arm.client} of the arm `{name}` is not in the image of worker pods, which have "
                    f"{' and '.join(POD_CLIENTS)}: remove `kubernetes` from `run_on`"
                )
        return self

    @model_validator(mode="after")
    def _suits_the_benchmark(self) -> Self:
        for arm in self.arms.values():
            number, produce = arm.settings.get("num-records"), self.produce
            if arm.client != "java" or number is None:
                continue
            if arm.version is not None:
                raise ValueError("`num-records` runs Kafka's tool, which has the brokers' version: remove `version`")
            if type(number) is not int or number < 1:
                raise ValueError(f"`num-records` is the number of records to send, got {number!r}: write 1200000")
            if produce is None or produce.topic is None or produce.keys or produce.producers > 1 or produce.transaction:
                raise ValueError(
                    "`num-records` runs Kafka's ProducerPerformance, which sends records without keys to one topic: "
                    "give `produce` one `topic`, one producer, no `keys` and no `transaction`"
                )
            if produce.record_size.min != produce.record_size.max:
                raise ValueError("Kafka's ProducerPerformance sends records of one size: give `record_size` one value")
        return self

    @property
    def consumer_groups(self) -> tuple[str, ...]:
        """Full names of the consumer groups of a workload's arms, in the order of the arms; empty without a group."""
        if self.pipe:
            return tuple(self.pipe.named(self.pipe.group, arm, len(self.arms)) for arm in self.arms if self.pipe.group)
        group = self.consume and self.consume.group
        return tuple(f"{group}-{arm}" for arm in self.arms) if group else ()


class Warmup(Part):
    """Limits of the warm-up, which ends when latency is stable; a run unstable after ``max`` is INCONCLUSIVE."""

    min: Duration = 5_000
    max: Duration = 60_000

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError("min is more than max: swap the two values")
        return self


class Timing(Part):
    """Lengths of a run's phases; ``fault`` is the length of the evaluated window after a fault without ``for``."""

    warmup: Warmup = Warmup()
    steady: Duration = 10_000
    fault: Duration = 5_000
    recovery: Duration = 10_000
