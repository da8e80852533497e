"""Check of stored documents when they are read (``files.py``), so that no command meets a value of another type.

The evidence documents are described in ``documents.py``; here are ``verdict.json`` and ``analysis.json``, as they may
come from a stranger: the type of each field.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from aftershock.results.evidence.documents import (
    STRICT,
    Campaign,
    Count,
    Event,
    Int,
    Moment,
    Name,
    Place,
    Run,
    Time,
    Timeline,
    Window,
)
from aftershock.results.evidence.leadership import Leadership

Quantile = Annotated[str, Field(pattern=r"^(0\.\d{1,9}|1\.0)$")]
WindowName = Annotated[Name, Field(pattern="^(warmup|steady|fault|recovery|run)(/.+)?$")]
Client = Annotated[Name, Field(pattern="./.")]
"""Workload and arm, ``orders/baseline``."""


class StoredExplained(TypedDict):
    cause: str
    evidence: str
    n: Count
    certain: bool


@with_config(STRICT | ConfigDict(extra="forbid"))
class StoredCheck(TypedDict):
    """A check of ``verdict.json`` (``results.checks.check``)."""

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


class StoredNormality(TypedDict):
    measured: Count
    recovered: Count
    worst_us: Time | None
    observed_us: Time
    healed: Count
    before_heal: Count


@with_config(STRICT | ConfigDict(extra="forbid"))
class StoredAnswer(TypedDict):
    """An answer of ``verdict.json`` (``results.model.answer``)."""

    client: Name
    fault: Name | None
    injections: Count
    counts: bool
    lost: Count | None
    lost_permitted: Count
    twice: Count | None
    twice_permitted: Count
    stopped_us: dict[Literal["produce", "consume", "pipe"], Time | None]
    partition: Annotated[tuple[Name, Time], Strict(False)] | None
    normality: StoredNormality | None


@with_config(STRICT)
class StoredVerdict(TypedDict):
    """``verdict.json``, without its schema version."""

    run_id: NotRequired[Name]
    status: Literal["PASS", "FAIL", "INCONCLUSIVE", "ERROR"]
    plan: NotRequired[Name]
    seed: NotRequired[Int | None]
    arms: NotRequired[list[Name]]
    answers: NotRequired[list[StoredAnswer]]
    checks: NotRequired[list[StoredCheck]]
    trusted: NotRequired[list[str]]
    provisional: NotRequired[dict[Name, Any]]
    unplanned: NotRequired[list[str]]
    figures: NotRequired[list[str]]


class Band(TypedDict):
    q: float
    confidence: float
    low_us: Time | None
    high_us: Time | None


class _Values(TypedDict):
    """A distribution; the keys of ``at`` are quantiles, its values microseconds."""

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
    metric: Name
    client: Client
    window: WindowName
    n: Count
    longest_us: Time


class _Calm(TypedDict):
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
    n: Count
    bytes: Count


class Ticks(TypedDict, total=False):
    ticks: Count
    late_ticks: Count
    cpu_busy: float | None
    steal: float | None


class Spectrum(TypedDict):
    metric: Name
    client: Client
    window: WindowName
    points: list[Annotated[tuple[float, Time | None], Strict(False)]]


class RackFlow(TypedDict):
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
    op: Name
    client: Client
    records: list[SlowRecord]


class LatencyCounts(TypedDict):
    """Numbers of a client's records by latency in ms, from record ``first`` on."""

    client: Client
    first: Count
    counts: list[Annotated[tuple[Count, Count], Strict(False)]]
    failed: Count


class Stall(TypedDict):
    side: Name
    client: Client
    start_us: Time
    end_us: Time
    topic: NotRequired[Name | None]
    partition: NotRequired[Int | None]
    waited_us: NotRequired[Time | None]


class Failures(TypedDict):
    side: Name
    client: Client
    start_us: Time
    end_us: Time
    n: Count


class GivenUp(TypedDict):
    client: Client
    error: Name
    n: Count
    early: Count
    earliest_us: Int
    samples: list[Annotated[tuple[Int, Int], Strict(False)]]


class StoredFinding(TypedDict):
    rule: Name
    side: Name
    client: Name
    examined: Count
    broken: Count
    samples: list[Annotated[tuple[Int, Int], Strict(False)]]
    explained: NotRequired[list[StoredExplained]]


class Outage(TypedDict):
    topic: NotRequired[Name | None]
    partition: NotRequired[Int | None]
    total_us: Time
    longest_us: Time
    n: Count


class Unavailable(TypedDict):
    side: Name
    client: Client
    window: WindowName
    partitions: list[Outage]


class Lag(TypedDict):
    client: Client
    seconds: list[Annotated[tuple[Time, Int | None, Time | None], Strict(False)]]


class Perf(TypedDict):
    """The figures of Kafka's own producer test."""

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
    place: Place
    former: Name | None
    owner: Name | None
    freed_us: Time | None
    assigned_us: Time | None
    read_us: Time | None
    unowned_us: Time | None
    again: Int | None


class Rebalance(TypedDict):
    start_us: Time
    end_us: Time
    moved: list[Move]
    returned: Int
    kept_us: Time | None
    skew: Int | None


class Rebalances(TypedDict):
    client: Client
    rebalances: list[Rebalance]


class Wait(TypedDict):
    place: Place
    start_us: Time
    end_us: Time
    lacking_us: Time


class Unowned(TypedDict):
    client: Client
    waits: list[Wait]


class Slice(_Values):
    subject: Name
    start_us: Time | None


class Cut(TypedDict):
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
    side: Name
    client: Client
    worker: Name
    expected: Count
    rows: Count
    missing: list[dict[Name, Any]]
    contradictions: list[Any]


@with_config(STRICT)
class Analysis(TypedDict):
    """``analysis.json`` (``results.evidence.stored``), without its schema version."""

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
    latencies: NotRequired[list[LatencyCounts]]
    stalls: NotRequired[list[Stall]]
    failures: NotRequired[list[Failures]]
    given_up: NotRequired[list[GivenUp]]
    findings: NotRequired[list[StoredFinding]]
    load: NotRequired[list[Sent]]
    unavailable: NotRequired[list[Unavailable]]
    lag: NotRequired[list[Lag]]
    stable_lag: NotRequired[list[Lag]]
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
    "leaders.jsonl": TypeAdapter(Leadership),
    "verdict.json": TypeAdapter(StoredVerdict),
    "analysis.json": TypeAdapter(Analysis),
    "campaign.json": TypeAdapter(Campaign),
}
"""Shape of a document, or of each line of it, by the name of its file."""


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
