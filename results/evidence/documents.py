"""The documents of a run as they may come from a stranger: the type of each field that any command reads.

A document is checked when it is read (``files.py``), so no command meets a value of another type. Fields that are not
listed here are kept and not read. Later versions may add fields, so a field that older versions did not write is not
required.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

_STRICT = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
_STRICT_AND_CLOSED = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

Int = Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Time = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]
"""Microseconds, or nanoseconds since 1970 divided by 1,000: up to 285 years."""
Name = Annotated[str, Field(max_length=1_000)]
Quantile = Annotated[str, Field(pattern=r"^(0\.\d{1,9}|1\.0)$")]
WindowName = Annotated[Name, Field(pattern="^(warmup|steady|fault|recovery|run)(/.+)?$")]
Client = Annotated[Name, Field(pattern="./.")]
"""Workload and arm, ``orders/baseline``."""
Number = Annotated[str, Field(pattern=r"^\d{1,9}$")]
"""Number of a partition, as the key of an object."""
Place = Annotated[tuple[Name, Int], Strict(False)]
"""Topic and partition."""


_NUMBERS = frozenset(
    (
        *("min.insync.replicas", "offsets.topic.num.partitions", "broker.session.timeout.ms"),
        *("max.in.flight.requests.per.connection", "max.in.flight"),
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

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    producer_id: Int
    workload: Name
    arm: Name


class Broker(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    id: Int
    rack: Name | None
    container: Name
    kafka: Name


class Marks(TypedDict, total=False):
    """Times of the load, those that the run reached."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    load_start_us: Time | None
    steady_start_us: Time | None
    faults_start_us: Time | None
    load_end_us: Time | None


class WarmUp(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    settled: bool
    after_ms: Int
    why: str
    unsettled: list[Name]


class PlacedTopic(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    name: Name
    topic_id: Name
    partitions: NotRequired[Count]
    assignment: NotRequired[dict[Number, list[Int]]]


class Image(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    name: Name
    digest: Name
    origin: Name


class Calibration(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    timer_late_ms: float | None
    timers: Int
    probe_ms: float | None
    probes: Int


class Host(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    cores: Int
    memory_bytes: Int
    kernel: Name
    hostname: Name


class Run(TypedDict):
    """``run.json``, without its schema version."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
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
    reports: NotRequired[dict[Name, list[Name]]]
    values_compared: NotRequired[list[Name]]
    plan_file: NotRequired[str | None]


class Slo(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    text: str
    at: NotRequired[str | None]
    gate: NotRequired[str]
    advice: NotRequired[str | None]


class Step(TypedDict):
    """A fault of the timeline."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
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
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    name: Name
    partitions: Count
    replication: Count
    config: NotRequired[Settings | None]


class Arm(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    client: Name
    settings: ClientSettings | None
    command: list[str] | None


class Produce(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    topic: Name | None
    topics: list[Name] | None
    acks: Name | Int
    idempotence: bool
    rack: Name | None
    producers: Count
    rate_per_s: float
    deadline_ms: Time


class Commits(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    every_ms: Time | None
    every_records: Int | None


class Consume(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
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
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    topic: Name | None
    groups: Count
    rack: Name | None
    rate_per_s: float
    deadline_ms: Time


class Workload(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    name: Name
    arms: dict[Name, Arm | None]
    produce: NotRequired[Produce | None]
    consume: NotRequired[Consume | None]
    commit: NotRequired[Commit | None]


class Timing(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    fault_ms: Time
    recovery_ms: NotRequired[Time]
    steady_ms: NotRequired[Time]
    warmup_min_ms: NotRequired[Time]
    warmup_max_ms: NotRequired[Time]


class Cluster(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    racks: dict[Name, Count | list[Int]] | None
    controllers: Int
    config: Settings | None
    kafka: Name | None
    attach: dict[Name, Any]


class Timeline(TypedDict):
    """``timeline.json``, the compiled plan, without its schema version."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
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


class Window(TypedDict):
    """A phase of ``phases.json``, or the window of a fault."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    name: Name
    fault: Name | None
    start_us: Time
    end_us: Time
    block: NotRequired[Int]
    entry: NotRequired[Name | None]


class Rule(TypedDict, total=False):
    """A rule of the wire proxy."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
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

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    asked: Name | None
    leads: dict[Name, Int] | None
    controller: bool
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
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    brokers: list[Int]
    links: list[Name]
    topics: list[Name]
    clients: list[Name]
    roles: Roles | None


class Undo(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    verb: Name
    args: dict[Name, Any]


class Witness(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    ok: bool
    what: NotRequired[str]
    asked: NotRequired[bool | Int | float | str | list[Any] | dict[Name, Any] | None]
    observed: NotRequired[bool | Int | float | str | list[Any] | dict[Name, Any] | None]
    unit: NotRequired[Name]
    n: NotRequired[Int]


class Moment(TypedDict):
    """A line of ``journal.jsonl``."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    t_us: Time
    fault: Name
    state: Name
    kind: NotRequired[Name]
    why: NotRequired[str | None]
    targets: NotRequired[Targets | None]
    undo: NotRequired[Undo | None]
    witness: NotRequired[Witness | None]


class Event(TypedDict):
    """A line of ``events.jsonl``; the same field has the same type in every event."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
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
    producer_id: NotRequired[Int]
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


class StoredExplained(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    cause: str
    evidence: str
    n: Count
    certain: bool


class StoredCheck(TypedDict):
    """A check of ``verdict.json`` (``results.checks.check``)."""

    __pydantic_config__ = _STRICT_AND_CLOSED  # type: ignore[misc]
    id: Annotated[Name, Field(pattern="/")]
    kind: Name
    subject: Name
    status: Literal["PASS", "FAIL", "INCONCLUSIVE", "ERROR"]
    n: Count
    minimum: Count
    unit: Name
    why: str
    observed: NotRequired[float | None]
    threshold: NotRequired[float | None]
    arm: NotRequired[Name | None]
    phase: NotRequired[Name | None]
    censored: NotRequired[Count]
    at: NotRequired[str | None]
    next: NotRequired[str | None]
    samples: list[Annotated[tuple[Int, Int], Strict(False)]]
    gate: NotRequired[bool]
    explained: NotRequired[list[StoredExplained]]
    finding: NotRequired[str]
    share: NotRequired[Annotated[float, Field(ge=0, le=1)]]


class StoredVerdict(TypedDict):
    """``verdict.json``, without its schema version."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    run_id: NotRequired[Name]
    status: Literal["PASS", "FAIL", "INCONCLUSIVE", "ERROR"]
    plan: NotRequired[Name]
    seed: NotRequired[Int | None]
    arms: NotRequired[list[Name]]
    checks: NotRequired[list[StoredCheck]]
    trusted: NotRequired[list[str]]
    provisional: NotRequired[dict[Name, Any]]


class Band(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    q: float
    confidence: float
    low_us: Time
    high_us: Time


class _Values(TypedDict):
    """A distribution; the keys of ``at`` are quantiles, its values microseconds."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    n: Count
    censored: Count
    slowest_us: Time | None
    at: dict[Quantile, Time | None]
    mean_us: NotRequired[float | None]
    bands: NotRequired[list[Band]]


class Series(_Values):
    metric: Name
    client: Client
    window: WindowName


class Gap(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    metric: Name
    client: Client
    window: WindowName
    n: Count
    longest_us: Time


class _Calm(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    client: Client
    n: Count
    recovered_us: Time | None
    observed_us: NotRequired[Time]
    definition: NotRequired[Int]
    limit_us: NotRequired[Time | None]
    heal_us: NotRequired[Time | None]
    first_calm_us: NotRequired[Time | None]
    slow_after: NotRequired[Count | None]
    after_heal_us: NotRequired[Time | None]
    before_heal: NotRequired[bool | None]


class Recovery(_Calm):
    fault: Name


class Bin(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    metric: Name
    client: Client
    rack: NotRequired[Name | None]
    start_us: Time
    n: Count
    censored: Count
    p50_us: Time | None
    p99_us: Time | None
    slowest_us: Time | None


class Crossed(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    n: Count
    bytes: Count


class Ticks(TypedDict, total=False):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    ticks: Count
    late_ticks: Count
    cpu_busy: float | None
    steal: float | None


class Spectrum(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    metric: Name
    client: Client
    window: WindowName
    points: list[Annotated[tuple[float, Time | None], Strict(False)]]


class RackFlow(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    op: Name
    client: Client
    client_rack: Name | None
    broker_rack: Name | None
    window: WindowName
    n: Count
    bytes: Count | None
    p50_us: Time | None
    p99_us: Time | None


class SlowRecord(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    producer_id: Int | None
    seq: Int | None
    topic: Name | None
    partition: Int | None
    offset: Int | None
    intended_us: Time
    sent_us: Time | None
    done_us: Time | None
    status: Name
    error: NotRequired[str | None]
    broker_id: NotRequired[Int | None]
    leader_epoch: NotRequired[Int | None]
    attempts: NotRequired[Int | None]


class Slowest(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    op: Name
    client: Client
    records: list[SlowRecord]


class Stall(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    side: Name
    client: Client
    start_us: Time
    end_us: Time
    topic: NotRequired[Name | None]
    partition: NotRequired[Int | None]
    waited_us: NotRequired[Time | None]


class Failures(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    side: Name
    client: Client
    start_us: Time
    end_us: Time
    n: Count


class StoredFinding(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    rule: Name
    side: Name
    client: Name
    examined: Count
    broken: Count
    samples: list[Annotated[tuple[Int, Int], Strict(False)]]
    explained: NotRequired[list[StoredExplained]]


class Outage(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    topic: NotRequired[Name | None]
    partition: NotRequired[Int | None]
    total_us: Time
    longest_us: Time
    n: Count


class Unavailable(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    side: Name
    client: Client
    window: WindowName
    partitions: list[Outage]


class Lag(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    client: Client
    seconds: list[Annotated[tuple[Time, Int | None, Time | None], Strict(False)]]


class Perf(TypedDict):
    """The figures of Kafka's own producer test."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    client: Client
    records: Count
    seconds: float
    records_per_s: float
    mb_per_s: float
    avg_ms: float
    max_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float


class Move(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    place: Place
    former: Name | None
    owner: Name | None
    freed_us: Time | None
    assigned_us: Time | None
    read_us: Time | None
    unowned_us: Time | None
    again: Int | None


class Rebalance(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    start_us: Time
    end_us: Time
    moved: list[Move]
    returned: Int
    kept_us: Time | None
    skew: Int | None


class Rebalances(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    client: Client
    rebalances: list[Rebalance]


class Wait(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    place: Place
    start_us: Time
    end_us: Time
    lacking_us: Time


class Unowned(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    client: Client
    waits: list[Wait]


class Slice(_Values):
    subject: Name
    start_us: Time | None


class Cut(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    metric: Name
    window: WindowName
    each: Name | None
    every_us: Time | None
    client: Client
    slices: list[Slice]


class Calm(_Calm):
    fault: Name
    q: float
    factor: float
    for_us: Time


class Sent(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    side: Name
    client: Client
    worker: Name
    expected: Count
    rows: Count
    missing: list[dict[Name, Any]]
    contradictions: list[Any]


class Analysis(TypedDict):
    """``analysis.json`` (``results.evidence.stored``), without its schema version."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    distributions: list[Series]
    gaps: list[Gap]
    recovery_definition: NotRequired[Int]
    recoveries: list[Recovery]
    bin_us: NotRequired[Annotated[int, Field(ge=1, le=1 << 53)]]
    bins: NotRequired[list[Bin]]
    crossed: NotRequired[dict[Name, Crossed]]
    host: NotRequired[Ticks]
    spectra: NotRequired[list[Spectrum]]
    racks: NotRequired[list[RackFlow]]
    slowest: NotRequired[list[Slowest]]
    stalls: NotRequired[list[Stall]]
    failures: NotRequired[list[Failures]]
    findings: NotRequired[list[StoredFinding]]
    load: NotRequired[list[Sent]]
    unavailable: NotRequired[list[Unavailable]]
    lag: NotRequired[list[Lag]]
    perf: NotRequired[list[Perf]]
    rebalances: NotRequired[list[Rebalances]]
    unowned: NotRequired[list[Unowned]]
    cuts: NotRequired[list[Cut]]
    calms: NotRequired[list[Calm]]


SHAPES: Mapping[str, TypeAdapter[Any]] = {
    "run.json": TypeAdapter(Run),
    "timeline.json": TypeAdapter(Timeline),
    "phases.json": TypeAdapter(list[Window]),
    "journal.jsonl": TypeAdapter(Moment),
    "events.jsonl": TypeAdapter(Event),
    "verdict.json": TypeAdapter(StoredVerdict),
    "analysis.json": TypeAdapter(Analysis),
}
"""Shape of a document, or of each line of it, by the name of its file."""


NEWEST_VERSIONS = {"run.json": 1, "timeline.json": 1, "verdict.json": 1, "analysis.json": 2}
"""Newest schema version of a document that can be read."""


def misfit(where: str, value: Any) -> str | None:
    """Return which field of the parsed document ``where``, or of a line of it, has a wrong type; None if all fit."""
    shape = SHAPES.get(where.rpartition("/")[2])
    if shape is None:
        return None
    try:
        shape.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            return f"field {field!r} is missing"
        what = first["msg"].removeprefix("Value error, ").replace("dictionary", "object").replace("list", "array")
        return f"field {field!r}: {what[0].lower()}{what[1:]}" if field else "not a JSON object"
    return None
