"""Measurements of a run as plain values (``Facts``), and the measurements that its SLOs request.

Times are microseconds; clients are named ``workload/arm``. A measurement without observations has n = 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Each = Literal["rack", "partition", "broker", "producer", "epoch", "member", "block"]


@dataclass(frozen=True, order=True)
class Cut:
    """Request for a metric in a window, divided by subject, by time, or both.

    ``every_us`` is the length of the time slots, which begin at the start of each interval of the window; an incomplete
    last slot is omitted. A division by rack uses the broker's rack.
    """

    metric: str
    window: str
    each: Each | None = None
    every_us: int | None = None


@dataclass(frozen=True)
class RecoveryCriterion:
    """Definition of recovery, that for ``for_us`` all records succeed and quantile ``q`` is <= ``factor`` x steady."""

    fault: str
    q: float = 0.95
    factor: float = 2
    for_us: int = 2_000_000

    @property
    def is_default(self) -> bool:
        return self == RecoveryCriterion(self.fault)


@dataclass(frozen=True)
class MeasurementRequest:
    """All measurements that a run's SLOs request; ``confidences`` are the levels of the confidence bands of ``qs``.

    ``members`` is True if an SLO judges each member of a consumer group, so that the members' lag is measured.
    """

    qs: tuple[float, ...] = ()
    confidences: tuple[float, ...] = (0.95,)
    cuts: tuple[Cut, ...] = ()
    recoveries: tuple[RecoveryCriterion, ...] = ()
    members: bool = False


MAX = 1.0
Band = tuple[int | None, int | None]


@dataclass(frozen=True)
class Distribution:
    """Latencies of one metric, client and window; ``at`` maps quantiles (1.0 for max) to latencies, None if censored.

    ``mean_us`` does not include censored values. ``bands`` maps (quantile, confidence) to the two sample values between
    which the quantile lies with that confidence; None stands for an unknown end of a band.
    """

    n: int = 0
    censored: int = 0
    slowest_us: int | None = None
    at: Mapping[float, int | None] = field(default_factory=dict)
    mean_us: float | None = None
    bands: Mapping[tuple[float, float], Band] = field(default_factory=dict)


@dataclass(frozen=True)
class Slice:
    """Measurement of one subject, such as ``rack=a``, ``orders/3``, ``broker=2``, ``orders/3@5`` or ``unknown``.

    ``start_us`` is the start of the time slot, None if the measurement covers the whole window. ``values`` holds
    latencies, or the longest gap.
    """

    subject: str
    start_us: int | None
    values: Distribution


@dataclass(frozen=True)
class LongestGap:
    """Longest time without a success (None if no record was due in the window), and the number ``n`` of successes."""

    n: int = 0
    longest_us: int | None = None


@dataclass(frozen=True)
class Recovered:
    """Time from the inject of a fault until a client was normal again, by the ``definition`` of its run.

    Definition 1 is the start of the first calm period, definition 2 that of the calm that lasts until the next fault.
    ``recovered_us`` is None if the client was not normal again in the ``observed_us`` after the inject. ``n`` records
    were examined; one that took longer than ``limit_us`` was slow. The heal began ``heal_us`` after the inject (None
    for a fault that does not last, and by definition 1). ``slow_after`` counts the slow and failed records after the
    first calm.
    """

    n: int
    recovered_us: int | None
    observed_us: int
    definition: int = 1
    limit_us: int | None = None
    heal_us: int | None = None
    first_calm_us: int | None = None
    slow_after: int | None = None

    @property
    def after_heal_us(self) -> int | None:
        """Time from the start of the heal until the client was normal again, negative if that was before the heal."""
        return None if self.recovered_us is None or self.heal_us is None else self.recovered_us - self.heal_us

    @property
    def before_heal(self) -> bool | None:
        """True if the client was normal again before the heal began; None if there was no heal, or nobody knows."""
        if self.heal_us is None or (self.recovered_us is None and self.observed_us < self.heal_us):
            return None
        return self.recovered_us is not None and self.recovered_us <= self.heal_us

    @property
    def row(self) -> dict[str, Any]:
        """Fields in ``analysis.json``."""
        return vars(self) | {"after_heal_us": self.after_heal_us, "before_heal": self.before_heal}


@dataclass(frozen=True)
class Explained:
    """Number ``n`` of breaches that one cause explains; if not ``certain``, the evidence can't tell."""

    cause: str
    evidence: str
    n: int
    certain: bool = True


@dataclass(frozen=True)
class Finding:
    """Number of a client's records that an integrity rule examined, and number of those that broke the rule.

    ``explained`` counts the broken ones that a witnessed cause permits, or that the evidence can't tell from such; the
    ``samples`` begin with those that nothing explains.
    """

    rule: str
    side: str
    client: str
    examined: int
    broken: int
    samples: tuple[tuple[int, int], ...] = ()
    explained: tuple[Explained, ...] = ()

    @property
    def permitted(self) -> int:
        return sum(part.n for part in self.explained if part.certain)

    @property
    def undecided(self) -> int:
        return sum(part.n for part in self.explained if not part.certain)

    @property
    def unexplained(self) -> int:
        return self.broken - self.permitted - self.undecided


@dataclass(frozen=True)
class MissingRows:
    """Number ``n`` of records to a topic that have no row, intended after one time and before another."""

    topic: str
    n: int
    after_us: int
    before_us: int


@dataclass(frozen=True)
class SentRows:
    """Rows of the records or commits that one process sent, compared with its schedule; see measure/load.

    ``expected`` is the number of records that were due in the load, None if it can't be known, and ``rows`` the number
    of these that have a row. ``missing`` lists the longest spans without rows. ``contradictions`` say what can't be
    true of any load. ``unanswered`` are records that were sent, the first at ``unanswered_us`` and the last at
    ``unanswered_last_us``, and never got a result; ``answered_us`` is the time of the last success.
    """

    side: str
    client: str
    worker: str
    expected: int | None
    rows: int
    missing: tuple[MissingRows, ...] = ()
    contradictions: tuple[str, ...] = ()
    unanswered: int = 0
    unanswered_us: int | None = None
    unanswered_last_us: int | None = None
    answered_us: int | None = None


@dataclass(frozen=True)
class ProxyTraffic:
    """Bytes that clients sent through the proxies of a fault, from ``n`` samples of the proxies' counters."""

    bytes: int = 0
    n: int = 0


@dataclass(frozen=True)
class Host:
    """Punctuality and load of the host, as counts of 100 ms ticks and mean shares of CPU time (None if unknown)."""

    ticks: int = 0
    late_ticks: int = 0
    cpu_busy: float | None = None
    steal: float | None = None


@dataclass(frozen=True)
class Bin:
    """Latencies of the records intended in a span of time, a point of a latency plot; an unknown rack is null."""

    metric: str
    client: str
    rack: str | None
    start_us: int
    n: int
    censored: int
    p50_us: int | None
    p99_us: int | None
    slowest_us: int | None


@dataclass(frozen=True)
class Stall:
    """Time in which records waited and no record succeeded; a stall of the client as a whole has no ``partition``.

    Without a ``topic`` the partition is that of the client's only topic. ``waited_us`` is how long the most patient of
    its records waited until it succeeded or failed; None if that is unknown.
    """

    side: str
    client: str
    partition: int | None
    start_us: int
    end_us: int
    topic: str | None = None
    waited_us: int | None = None


@dataclass(frozen=True)
class FailureSpan:
    """Number ``n`` of failed records that were intended and given up between two times, rounded to seconds."""

    start_us: int
    end_us: int
    n: int


@dataclass(frozen=True)
class GivenUp:
    """Records that a producer gave up with one error: ``n`` in all, and ``early`` of them before half of their time.

    Of a producer of transactions, these are the transactions whose begin or end it gave up.

    ``earliest_us`` is the shortest time after which one was given up, and ``samples`` are ids (producer_id, seq) of
    those that were given up early.
    """

    n: int
    early: int
    earliest_us: int
    samples: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Outage:
    """Time that a partition (None means the whole client) spent in stalls of a second or more, in one window."""

    partition: int | None
    total_us: int
    longest_us: int
    n: int
    topic: str | None = None


@dataclass(frozen=True)
class Lag:
    """Lag at the end of a second: number of acknowledged, undelivered records, and the age of the oldest of them.

    A second in which the end of the topic or the reader's position is unknown has no lag, which differs from lag 0.
    """

    at_us: int
    records: int
    oldest_us: int


@dataclass(frozen=True)
class Standstill:
    """Time between two samples in which a partition's last stable offset stood, below the high watermark ``end``."""

    offset: int
    end: int
    start_us: int
    end_us: int


@dataclass(frozen=True)
class StableOffsets:
    """Last stable offset of a partition over time; ``advances`` counts the samples in which it was higher than before.

    The last sample is of ``last_us``, with ``offset`` and high watermark ``end``. ``standstills`` are the long ones.
    """

    advances: int
    last_us: int
    offset: int
    end: int
    standstills: tuple[Standstill, ...] = ()
    lags: tuple[Lag, ...] = ()


NO_OWNER = ""
"""In place of a member's process: the lag of partitions that have no owner, and get none until the load ends."""


@dataclass(frozen=True)
class RackFlow:
    """Traffic between a client's rack and a broker's rack in a window; None stands for an unknown rack."""

    op: str
    client: str
    client_rack: str | None
    broker_rack: str | None
    window: str
    n: int
    bytes: int
    p50_us: int | None
    p99_us: int | None


@dataclass(frozen=True)
class SlowRecord:
    """Failed or slow record or commit; it has no ``done_us`` if it was neither acknowledged nor delivered."""

    producer_id: int | None
    seq: int | None
    topic: str | None
    partition: int | None
    offset: int | None
    intended_us: int
    sent_us: int | None
    done_us: int | None
    status: str
    error: str | None = None
    broker_id: int | None = None
    leader_epoch: int | None = None
    attempts: int | None = None


@dataclass(frozen=True)
class Perf:
    """Figures that ``kafka-producer-perf-test`` prints, of acknowledged records; 1 MB = 2**20 bytes."""

    records: int
    seconds: float
    records_per_s: float
    mb_per_s: float
    avg_ms: float
    max_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float


@dataclass(frozen=True)
class Suspect:
    """Time in which a process of the load generator, or the host, stood still for ``stalled_us``; see checks/doubts.

    The process ``worker`` noticed the stall, which concerns one side of one client, or (``client`` None) all clients.
    """

    cause: str
    worker: str
    side: str | None
    client: str | None
    start_us: int
    end_us: int
    stalled_us: int


@dataclass(frozen=True)
class Change:
    """Change of a partition's owner, from the end of the former tenure to the first delivery in the next.

    ``unowned_us`` is how long a record waited for the new owner, None if the new owner delivered no new record;
    ``again`` counts the records that the new owner delivered once more.
    """

    place: tuple[str, int]
    former: str
    owner: str
    freed_us: int
    assigned_us: int
    read_us: int
    unowned_us: int | None
    again: int


@dataclass(frozen=True)
class Rebalance:
    """Rebalance of a consumer group, with the partitions that got another owner.

    ``returned`` counts the partitions that their owner gave up and got back. ``kept_us`` is the longest silence of a
    partition with the same owner before and after, None if there is none. ``skew`` is the difference between the most
    and the fewest partitions of a member afterwards.
    """

    start_us: int
    end_us: int
    moved: tuple[Change, ...]
    returned: int
    kept_us: int | None
    skew: int


@dataclass(frozen=True)
class OwnerlessWait:
    """Time in which records of a partition waited while it lacked a delivering owner; see ``measure/rebalances.py``.

    ``lacking_us`` is the first moment of the wait at which the partition had no delivering owner, or changed hands.
    """

    place: tuple[str, int]
    start_us: int
    end_us: int
    lacking_us: int


@dataclass(frozen=True)
class WriteCycles:
    """Committed transactions that partitions hold in different orders; see ``measure/write_cycles.py``.

    They are ``cyclic`` of the ``examined`` ones, which wrote to several partitions. ``whole`` is False if only the
    first transactions of each producer were examined. ``example`` has two transactions (by their first records), a
    partition in which the first is earlier, and one in which it is later.
    """

    examined: int
    cyclic: int
    whole: bool = True
    example: tuple[str, ...] = ()

    def __str__(self) -> str:
        number = f"{self.cyclic:,}" if self.whole else f"at least {self.cyclic:,}"
        text = f"write cycles: {number} of {self.examined:,} committed transactions over several partitions"
        text += "" if self.whole else " (the first ones of each producer)"
        if not self.cyclic:
            return f"{text} are in different orders in two partitions"
        if self.example:
            one, other, earlier, later = self.example
            text += f" are in a cycle; that of record {one} is before that of {other} in {earlier}, after it in {later}"
        else:
            text += " are in a cycle of three or more"
        return f"{text}. Kafka promises no order over partitions, so no check judges it"


@dataclass(frozen=True)
class Facts:
    """All measurements of a run.

    =============================================  ==========================================================
    ``distributions``, ``longest``, ``spectra``    by (metric, client, window)
    ``recoveries`` (default criterion)             by (fault, client)
    ``calms`` (every criterion)                    by (criterion, client)
    ``cuts``                                       by (cut, client)
    ``findings``                                   by (rule, side, client)
    ``failures``                                   by (side, client)
    ``given_up``                                   by (client, error)
    ``unavailable``                                by (side, client, window), for windows with records due
    ``slowest``                                    by (op, client)
    ``member_lag`` (if requested)                  by (client, process), or (client, ``NO_OWNER``)
    ``lag``, ``perf``, ``rebalances``, ``unowned`` by client
    ``stable``, ``stable_lag``                     by (topic, partition), by client
    ``crossed`` (traffic through proxies)          by fault
    ``produced`` (records, partition known)        by (a fault's window, topic, partition)
    =============================================  ==========================================================

    The field ``spectra`` holds the points (quantile, latency) of latency plots. ``backwards`` counts records that ended
    before they were sent or intended, and phases that end before they start, because the clock went backwards. The
    field ``load`` compares the rows of each process with its schedule. In a second measurement, ``left_out`` holds the
    suspect times that it leaves out, by (side, client). ``recovery_definition`` is the definition by which recoveries
    were measured (``Recovered``). ``write_cycles`` is None without transactions.
    """

    distributions: Mapping[tuple[str, str, str], Distribution] = field(default_factory=dict)
    longest: Mapping[tuple[str, str, str], LongestGap] = field(default_factory=dict)
    recoveries: Mapping[tuple[str, str], Recovered] = field(default_factory=dict)
    recovery_definition: int = 1
    findings: Mapping[tuple[str, str, str], Finding] = field(default_factory=dict)
    crossed: Mapping[str, ProxyTraffic] = field(default_factory=dict)
    produced: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    host: Host = field(default_factory=Host)
    bins: tuple[Bin, ...] = ()
    bin_us: int = 1_000_000
    stalls: tuple[Stall, ...] = ()
    failures: Mapping[tuple[str, str], tuple[FailureSpan, ...]] = field(default_factory=dict)
    given_up: Mapping[tuple[str, str], GivenUp] = field(default_factory=dict)
    cuts: Mapping[tuple[Cut, str], tuple[Slice, ...]] = field(default_factory=dict)
    calms: Mapping[tuple[RecoveryCriterion, str], Recovered] = field(default_factory=dict)
    spectra: Mapping[tuple[str, str, str], tuple[tuple[float, int | None], ...]] = field(default_factory=dict)
    racks: tuple[RackFlow, ...] = ()
    slowest: Mapping[tuple[str, str], tuple[SlowRecord, ...]] = field(default_factory=dict)
    unavailable: Mapping[tuple[str, str, str], tuple[Outage, ...]] = field(default_factory=dict)
    lag: Mapping[str, tuple[Lag, ...]] = field(default_factory=dict)
    member_lag: Mapping[tuple[str, str], tuple[Lag, ...]] = field(default_factory=dict)
    stable: Mapping[tuple[str, int], StableOffsets] = field(default_factory=dict)
    stable_lag: Mapping[str, tuple[Lag, ...]] = field(default_factory=dict)
    perf: Mapping[str, Perf] = field(default_factory=dict)
    rebalances: Mapping[str, tuple[Rebalance, ...]] = field(default_factory=dict)
    unowned: Mapping[str, tuple[OwnerlessWait, ...]] = field(default_factory=dict)
    backwards: int = 0
    load: tuple[SentRows, ...] = ()
    left_out: Mapping[tuple[str, str], tuple[tuple[int, int], ...]] = field(default_factory=dict)
    write_cycles: WriteCycles | None = None

    def distribution(self, metric: str, client: str, window: str) -> Distribution:
        return self.distributions.get((metric, client, window), Distribution())

    def produced_in(self, window: str, partitions: Mapping[str, Sequence[int]]) -> int:
        """Return the number of records produced in ``window`` to ``partitions`` (topic and partition numbers)."""
        return sum(
            self.produced.get((window, topic, number), 0) for topic, numbers in partitions.items() for number in numbers
        )

    def finding(self, rule: str, side: str, client: str) -> Finding:
        return self.findings.get((rule, side, client), Finding(rule, side, client, 0, 0))

    def recovered(self, criterion: RecoveryCriterion, client: str) -> Recovered | None:
        """Return a client's recovery from a fault; None if ``steady`` had too few records for a baseline."""
        default = self.recoveries.get((criterion.fault, client)) if criterion.is_default else None
        return self.calms.get((criterion, client)) or default

    def slices(self, cut: Cut, client: str) -> tuple[Slice, ...]:
        return self.cuts.get((cut, client), ())
