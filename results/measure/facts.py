"""What the SLOs of a run want measured besides what always is: quantiles, cuts through a selection, recoveries.

What Spark measured, as plain values: all that the checks and the report are told of the records.

Rules: everything here is a measurement, none a judgement; times are microseconds; clients are named ``workload/arm``;
where nothing was seen there is an empty measurement, never an exception. What is asked for is in ``wanted.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Each = Literal["rack", "partition", "broker", "producer", "epoch", "block"]


@dataclass(frozen=True, order=True)
class Cut:
    """A selection that the standing measurements lack: a metric in a window, told apart by subject, by time, or both.

    ``metric``: ``produce.latency`` and its like (``.success`` is the distribution of latency), ``.gap``,
    ``consume.lag``, ``consume.freshness``. ``every_us``: slots of this length from the start of each of the window's
    intervals; a last one that is cut short is left out. A rack is the broker's.
    """

    metric: str
    window: str
    each: Each | None = None
    every_us: int | None = None


@dataclass(frozen=True)
class Calm:
    """When a client counts as recovered from a fault: for ``for_us`` all succeed, quantile ``q`` <= factor x steady."""

    fault: str
    q: float = 0.95
    factor: float = 2
    for_us: int = 2_000_000


@dataclass(frozen=True)
class Wanted:
    """All that a run's SLOs ask for. ``confidences``: of the bands around each of ``qs``."""

    qs: tuple[float, ...] = ()
    confidences: tuple[float, ...] = (0.95,)
    cuts: tuple[Cut, ...] = ()
    recoveries: tuple[Calm, ...] = ()


MAX = 1.0
Band = tuple[int | None, int | None]


@dataclass(frozen=True)
class Distribution:
    """Latencies of one metric, client and window. ``at`` maps quantiles (1.0: max) to a value, None where censored.

    ``mean_us`` is of those that are not censored. ``bands`` maps (quantile, confidence) to the order statistics between
    which the quantile lies with that confidence, as far as drawing samples goes; None is the end that is not known.
    """

    n: int = 0
    censored: int = 0
    slowest_us: int | None = None
    at: Mapping[float, int | None] = field(default_factory=dict)
    mean_us: float | None = None
    bands: Mapping[tuple[float, float], Band] = field(default_factory=dict)


@dataclass(frozen=True)
class Slice:
    """A part of a selection: ``rack=a``, ``orders/3``, ``broker=2``, ``orders/3@5``, ``unknown``, or "" for all of it.

    The times are those of its slot, None where the selection is not cut into slots. What ``seen`` holds is the metric's
    own: latencies, the longest gap (``slowest_us``), or records of lag.
    """

    subject: str
    start_us: int | None
    seen: Distribution


@dataclass(frozen=True)
class Longest:
    """The longest time without a success, of ``n`` successes; None where nothing was due or the window never was."""

    n: int = 0
    longest_us: int | None = None


@dataclass(frozen=True)
class Recovered:
    """``recovered_us`` from inject to calm, None if calm never came in the ``observed_us`` there were to look at."""

    n: int
    recovered_us: int | None
    observed_us: int


@dataclass(frozen=True)
class Finding:
    """How many records an integrity rule examined and found broken, for one client."""

    rule: str
    side: str
    client: str
    examined: int
    broken: int
    samples: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Crossed:
    """Bytes that clients sent through the proxies of a fault, of ``n`` samples of counters."""

    bytes: int = 0
    n: int = 0


@dataclass(frozen=True)
class Host:
    """How punctual and how busy the host was: counts of 100 ms ticks, means of shares (None: not sampled)."""

    ticks: int = 0
    late_ticks: int = 0
    cpu_busy: float | None = None
    steal: float | None = None


@dataclass(frozen=True)
class Bin:
    """One bin of the plot: latencies of the records intended in it; the rack is None where rows don't tell it."""

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
    """A time in which records waited and none succeeded; ``partition`` None: of the client's whole side."""

    side: str
    client: str
    partition: int | None
    start_us: int
    end_us: int


@dataclass(frozen=True)
class Failed:
    """``n`` records that failed: wanted and given up between these two moments, to the second."""

    start_us: int
    end_us: int
    n: int


@dataclass(frozen=True)
class Outage:
    """The time that a partition (None: the client's whole side) spent in stalls of a second or more, in one window."""

    partition: int | None
    total_us: int
    longest_us: int
    n: int


@dataclass(frozen=True)
class Lag:
    """At the end of a second: records acknowledged and not yet delivered, and how old the oldest of them was."""

    at_us: int
    records: int
    oldest_us: int


@dataclass(frozen=True)
class RackFlow:
    """What went between a client's rack and a broker's in a window; a rack is None where the rows don't tell it."""

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
class Slow:
    """One of a client's slowest: a record or commit that took long, or failed. ``done_us`` None: it never ended."""

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
    """As ``kafka-producer-perf-test`` counts: acknowledged records alone, each from its sending; MB are 2**20 bytes."""

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
class Facts:
    """All of it. The accessors give an empty measurement where nothing was seen.

    ``distributions``, ``longest`` and ``spectra`` are by (metric, client, window), ``recoveries`` by (fault, client),
    ``findings`` by (rule, side, client), ``cuts`` by what was asked and the client, ``calms`` likewise; ``failures``
    are by (side, client), ``unavailable`` by (side, client, window) and there for every window in which something was
    due; ``slowest`` by (op, client); ``lag`` and ``perf`` by client.

    ``produced`` counts records by (a fault's window, topic, partition); the partition is known once acknowledged.
    ``spectra`` are points (quantile, latency) for a plot on an axis of nines. ``backwards`` counts rows that were done
    before they were sent or wanted, and phases that end before they start: a clock that went backwards.
    """

    distributions: Mapping[tuple[str, str, str], Distribution] = field(default_factory=dict)
    longest: Mapping[tuple[str, str, str], Longest] = field(default_factory=dict)
    recoveries: Mapping[tuple[str, str], Recovered] = field(default_factory=dict)
    findings: Mapping[tuple[str, str, str], Finding] = field(default_factory=dict)
    crossed: Mapping[str, Crossed] = field(default_factory=dict)
    produced: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    host: Host = field(default_factory=Host)
    bins: tuple[Bin, ...] = ()
    bin_us: int = 1_000_000
    stalls: tuple[Stall, ...] = ()
    failures: Mapping[tuple[str, str], tuple[Failed, ...]] = field(default_factory=dict)
    cuts: Mapping[tuple[Cut, str], tuple[Slice, ...]] = field(default_factory=dict)
    calms: Mapping[tuple[Calm, str], Recovered] = field(default_factory=dict)
    spectra: Mapping[tuple[str, str, str], tuple[tuple[float, int | None], ...]] = field(default_factory=dict)
    racks: tuple[RackFlow, ...] = ()
    slowest: Mapping[tuple[str, str], tuple[Slow, ...]] = field(default_factory=dict)
    unavailable: Mapping[tuple[str, str, str], tuple[Outage, ...]] = field(default_factory=dict)
    lag: Mapping[str, tuple[Lag, ...]] = field(default_factory=dict)
    perf: Mapping[str, Perf] = field(default_factory=dict)
    backwards: int = 0

    def distribution(self, metric: str, client: str, window: str) -> Distribution:
        """Latencies of a metric (``produce.latency``), a client and a window (``run``, ``fault/kill-1``)."""
        return self.distributions.get((metric, client, window), Distribution())

    def produced_in(self, window: str, partitions: Mapping[str, Sequence[int]]) -> int:
        """Records produced to these partitions (by topic) and intended in the window."""
        return sum(
            self.produced.get((window, topic, number), 0) for topic, numbers in partitions.items() for number in numbers
        )

    def finding(self, rule: str, side: str, client: str) -> Finding:
        """What an integrity rule found for a client, as producer (``produce``) or reader (``consume``)."""
        return self.findings.get((rule, side, client), Finding(rule, side, client, 0, 0))

    def recovered(self, calm: Calm, client: str) -> Recovered | None:
        """How long a client took until it was calm as asked; None where there was nothing to compare with."""
        return self.calms.get((calm, client)) or (
            self.recoveries.get((calm.fault, client)) if calm == Calm(calm.fault) else None
        )

    def slices(self, cut: Cut, client: str) -> tuple[Slice, ...]:
        """The slices of a client that a cut asked for, in order of subject and time."""
        return self.cuts.get((cut, client), ())
