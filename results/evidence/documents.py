"""The evidence documents of a run as they may come from a stranger: the type of each field that any command reads.

Fields that are not listed here are kept and not read. Later versions may add fields, so a field that older versions did
not write is not required; commands that need it say so (``files.require_fields``).
"""

from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, Strict, with_config
from typing_extensions import TypedDict

STRICT = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
"""Configuration of a document; it holds for the documents within it, too."""

Int = Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Time = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]
"""Microseconds, or nanoseconds since 1970 divided by 1,000: up to 285 years."""
Name = Annotated[str, Field(max_length=1_000)]
Number = Annotated[str, Field(pattern=r"^\d{1,9}$")]
"""Number of a partition, as the key of an object."""
Place = Annotated[tuple[Name, Int], Strict(False)]
"""Topic and partition."""


_NUMBERS = frozenset(
    (
        *("min.insync.replicas", "offsets.topic.num.partitions", "broker.session.timeout.ms"),
        *("max.in.flight.requests.per.connection", "max.in.flight", "num-records", "warmup-records"),
        *("socket.timeout.ms", "request.timeout.ms", "session.timeout.ms"),
    )
)
_NUMBER_MAX = 1 << 31


def _with_numbers(settings: dict[str, Any]) -> dict[str, Any]:
    """Raise ValueError unless the settings that the checks calculate with are whole numbers."""
    for name in sorted(_NUMBERS & settings.keys()):
        text = str(settings[name])
        if not text.isascii() or not text.isdecimal() or not 0 < int(text) <= _NUMBER_MAX:
            raise ValueError(f"{name} should be a whole number from 1 to {_NUMBER_MAX}")
    return settings


Settings = Annotated[dict[Name, str], AfterValidator(_with_numbers)]
ClientSettings = Annotated[dict[Name, Any], AfterValidator(_with_numbers)]


class Producer(TypedDict):
    """Which arm of a workload a producer id belongs to."""

    producer_id: Int
    workload: Name
    arm: Name


class Broker(TypedDict, total=False):
    id: Int
    rack: Name | None
    container: Name
    kafka: Name


class Marks(TypedDict, total=False):
    """Times of the load, those that the run reached."""

    load_start_us: Time | None
    steady_start_us: Time | None
    faults_start_us: Time | None
    load_end_us: Time | None


class WarmUp(TypedDict, total=False):
    settled: bool
    after_ms: Int
    why: str
    unsettled: list[Name]
    silent: list[Name]


class PlacedTopic(TypedDict):
    name: Name
    topic_id: Name
    partitions: NotRequired[Count]
    assignment: NotRequired[dict[Number, list[Int]]]


class Image(TypedDict, total=False):
    name: Name
    digest: Name
    origin: Name


class Calibration(TypedDict, total=False):
    timer_late_ms: float | None
    timers: Int
    probe_ms: float | None
    probes: Int


class Host(TypedDict, total=False):
    cores: Int
    memory_bytes: Int
    kernel: Name
    hostname: Name


@with_config(STRICT)
class ClientHost(TypedDict):
    """Host of clients of the run, other than the runner's own; ``clock_bound_us`` is the largest error of its times."""

    name: Name
    clients: list[Name]
    clock_bound_us: Time


@with_config(STRICT)
class Run(TypedDict):
    """``run.json``, without its schema version."""

    run_id: Name
    status: Name
    plan: NotRequired[Name]
    seed: NotRequired[Int | None]
    started_at: NotRequired[Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")]]
    why: NotRequired[str | None]
    rehearse: NotRequired[bool]
    versions: NotRequired[dict[Name, str | None]]
    git: NotRequired[str | None]
    host: NotRequired[Host]
    origin_ns: NotRequired[Int]
    origin_unix_us: NotRequired[Time | None]
    profile: NotRequired[Settings | None]
    images: NotRequired[dict[Name, Image]]
    producers: NotRequired[list[Producer]]
    topics: NotRequired[list[PlacedTopic]]
    voters: NotRequired[list[Int]]
    bootstrap: NotRequired[dict[Name, str]]
    brokers: NotRequired[list[Broker]]
    calibration: NotRequired[Calibration | None]
    warmup: NotRequired[WarmUp | None]
    marks: NotRequired[Marks | None]
    recovery_definition: NotRequired[Int]
    hosts: NotRequired[list[ClientHost]]
    reports: NotRequired[dict[Name, list[Name]]]
    values_compared: NotRequired[list[Name]]
    stable_offsets: NotRequired[list[Name]]
    plan_file: NotRequired[str | None]


class Slo(TypedDict):
    text: str
    at: NotRequired[str | None]
    gate: NotRequired[str]
    advice: NotRequired[str | None]


class Step(TypedDict):
    """A fault of the timeline."""

    id: Name
    kind: NotRequired[Name]
    entry: NotRequired[Name | None]
    at_ms: NotRequired[Time]
    for_ms: NotRequired[Time | None]
    block: NotRequired[Int]
    draws: NotRequired[dict[Name, Any]]
    parameters: NotRequired[dict[Name, Any] | None]
    severs: NotRequired[bool]
    takes: NotRequired[Name | None]
    told: NotRequired[bool]
    met_by: NotRequired[Name | None]
    silence: NotRequired[Name | None]
    delay_ms: NotRequired[Int | float | None]


class PlannedTopic(TypedDict):
    name: Name
    partitions: Count
    replication: Count
    config: NotRequired[Settings | None]


class Arm(TypedDict, total=False):
    client: Name
    settings: ClientSettings | None
    command: list[str] | None


class Produce(TypedDict, total=False):
    topic: Name | None
    topics: list[Name] | None
    acks: Name | Int
    idempotence: bool
    rack: Name | None
    producers: Count
    rate_per_s: float
    deadline_ms: Time


class Commits(TypedDict, total=False):
    every_ms: Time | None
    every_records: Int | None


class Consume(TypedDict, total=False):
    topic: Name | None
    topics: list[Name] | None
    group: Name | None
    rack: Name | None
    members: Count
    reserve: dict[Name, Count] | None
    commit: Commits | None
    protocol: Name
    processing_ms: Time


class Commit(TypedDict, total=False):
    topic: Name | None
    groups: Count
    rack: Name | None
    rate_per_s: float
    deadline_ms: Time


Pipe = TypedDict(
    "Pipe",
    {
        "from": Name,
        "to": dict[Name, Name],
        "groups": dict[Name, Name],
        "members": Count,
        "reserve": NotRequired[dict[Name, Count]],
        "rack": NotRequired[Name | None],
        "mark": Name,
        "outputs_min": Count,
        "outputs_max": Count,
        "restart_ms": NotRequired[Time],
        "transactional": NotRequired[bool],
    },
)
"""Services under test: ``to`` and ``groups`` have the topic of the outputs and the group of each arm."""


class Workload(TypedDict):
    name: Name
    arms: dict[Name, Arm | None]
    produce: NotRequired[Produce | None]
    consume: NotRequired[Consume | None]
    commit: NotRequired[Commit | None]
    pipe: NotRequired[Pipe | None]


class Timing(TypedDict):
    fault_ms: Time
    recovery_ms: NotRequired[Time]
    steady_ms: NotRequired[Time]
    warmup_min_ms: NotRequired[Time]
    warmup_max_ms: NotRequired[Time]


class Cluster(TypedDict, total=False):
    racks: dict[Name, Count | list[Int]] | None
    controllers: Int
    config: Settings | None
    kafka: Name | None
    attach: dict[Name, Any]


@with_config(STRICT)
class Timeline(TypedDict):
    """``timeline.json``, the compiled plan, without its schema version."""

    name: NotRequired[Name]
    why: NotRequired[str]
    seed: NotRequired[Int | None]
    cluster: NotRequired[Cluster]
    topics: NotRequired[list[PlannedTopic]]
    workloads: NotRequired[list[Workload]]
    steps: NotRequired[list[Step]]
    timing: NotRequired[Timing]
    slo: NotRequired[list[Slo]]
    blocks_ms: NotRequired[list[Time | list[Time]]]
    length_ms: NotRequired[Time]
    plan_source: NotRequired[str]
    abort: NotRequired[list[Any]]


@with_config(STRICT)
class Window(TypedDict):
    """A phase of ``phases.json``, or the window of a fault."""

    name: Name
    fault: Name | None
    start_us: Time
    end_us: Time
    block: NotRequired[Int]
    entry: NotRequired[Name | None]


class Rule(TypedDict, total=False):
    """A rule of the wire proxy."""

    name: Name
    do: Name
    api: Name | None
    error: Int | Name | None
    chances: str | None
    nth: Int | None
    delay_ms: Int | None
    topic: Name | None
    topic_id: Name | None
    partition: Int | None
    connection: Name | None


class Roles(TypedDict, total=False):
    """What the targets of a fault were, and what the fault may do to them."""

    asked: Name | None
    leads: dict[Name, Int] | None
    controller: bool | None
    rack: Name | None
    group: Name | None
    permits: list[Name]
    exposed: dict[Name, list[Int]]
    leaderless: list[Int]
    before: dict[Name, Int | Name | None]
    offsets: dict[Number, Int | None]
    crossing: dict[Name, list[Int]]
    rule: Rule | None
    topic_id: Name | None


class Targets(TypedDict, total=False):
    brokers: list[Int]
    links: list[Name]
    topics: list[Name]
    clients: list[Name]
    roles: Roles | None


class Undo(TypedDict, total=False):
    verb: Name
    args: dict[Name, Any]


class Witness(TypedDict):
    ok: bool
    what: NotRequired[str]
    asked: NotRequired[bool | Int | float | str | list[Any] | dict[Name, Any] | None]
    observed: NotRequired[bool | Int | float | str | list[Any] | dict[Name, Any] | None]
    unit: NotRequired[Name]
    n: NotRequired[Int]


@with_config(STRICT)
class Moment(TypedDict):
    """A line of ``journal.jsonl``."""

    t_us: Time
    fault: Name
    state: Name
    kind: NotRequired[Name]
    why: NotRequired[str | None]
    targets: NotRequired[Targets | None]
    undo: NotRequired[Undo | None]
    witness: NotRequired[Witness | None]


@with_config(STRICT)
class Event(TypedDict):
    """A line of ``events.jsonl``; the same field has the same type in every event."""

    t_us: Time
    event: Name
    arm: NotRequired[Name | None]
    workload: NotRequired[Name | None]
    op: NotRequired[Name]
    worker: NotRequired[Name]
    partitions: NotRequired[list[Place]]
    offsets: NotRequired[list[Annotated[tuple[Name, Int, Int], Strict(False)]]]
    positions: NotRequired[list[Annotated[tuple[Name, Int, Int, Int], Strict(False)]]]
    epoch: NotRequired[Int | None]
    topic: NotRequired[Name]
    partition: NotRequired[Int]
    offset: NotRequired[Int]
    node_id: NotRequired[Int | None]
    took_us: NotRequired[Time | None]
    since_us: NotRequired[Time]
    until_us: NotRequired[Time]
    late_us: NotRequired[Time]
    suspended_us: NotRequired[Time]
    stepped_us: NotRequired[Time]
    stolen: NotRequired[float]
    before_us: NotRequired[Time]
    idle_us: NotRequired[Time | None]
    rows: NotRequired[Int]
    read: NotRequired[Int]
    count: NotRequired[Int]
    token: NotRequired[Int | None]
    records: NotRequired[Int]
    attempts: NotRequired[Int]
    immediate: NotRequired[bool]
    told: NotRequired[Int]
    left: NotRequired[list[list[Int]] | None]
    life: NotRequired[Int]
    session_id: NotRequired[Int]
    replica: NotRequired[Int]
    producer_id: NotRequired[Int]
    kafka_producer_id: NotRequired[Int]
    kafka_epoch: NotRequired[Int]
    fatal: NotRequired[bool]
    leader: NotRequired[bool]
    critical: NotRequired[bool]
    brokers: NotRequired[dict[Name, Any]]
    counters: NotRequired[dict[Name, Any]]
    phase: NotRequired[Name]
    reason: NotRequired[str]
    error: NotRequired[str | None]
    detail: NotRequired[str | None]
    why: NotRequired[str | None]
    verdict: NotRequired[str | None]
    group: NotRequired[Name | None]
    protocol: NotRequired[Name | None]
    assignor: NotRequired[Name | None]
    member_id: NotRequired[str | None]
    owners: NotRequired[list[Annotated[tuple[Name, Int, str], Strict(False)]]]
    idle: NotRequired[bool]
    commits: NotRequired[bool]
    status: NotRequired[Int]
    lines: NotRequired[list[str]]
    exits: NotRequired[Int]
    after_us: NotRequired[Time]


RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")]


class FinishedRun(TypedDict):
    digest: Name
    blocks: Count | None
    run: RunName
    version: NotRequired[Count]
    claims: NotRequired[list[Name] | None]


@with_config(STRICT)
class Campaign(TypedDict):
    """Record of the runs of a trial, an audit or a measurement of power cuts (``harness/campaigns/store.py``)."""

    campaign: Name
    version: Count
    seed: Int
    runs: dict[Name, FinishedRun]
    left_out: dict[Name, str]
    claims: dict[Name, str] | None
    launches: NotRequired[list[dict[Name, RunName]]]
