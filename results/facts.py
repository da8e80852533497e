"""What Spark measured, as plain values: all that the checks and the report are told of the records.

Rules: everything here is a measurement, none a judgement; times are microseconds; clients are named ``workload/arm``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAX = 1.0


@dataclass(frozen=True)
class Distribution:
    """Latencies of one metric, client and window. ``at`` maps quantiles (1.0: max) to a value, None where censored."""

    n: int = 0
    censored: int = 0
    slowest_us: int | None = None
    at: Mapping[float, int | None] = field(default_factory=dict)


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
class Facts:
    """All of it. The accessors give an empty measurement where nothing was seen.

    ``produced`` counts records by (a fault's window, topic, partition); the partition is known once acknowledged.
    ``failures`` are by (side, client).
    """

    distributions: Mapping[tuple[str, str, str], Distribution]
    longest: Mapping[tuple[str, str, str], Longest]
    recoveries: Mapping[tuple[str, str], Recovered]
    findings: Mapping[tuple[str, str, str], Finding]
    crossed: Mapping[str, Crossed]
    produced: Mapping[tuple[str, str, int], int]
    host: Host
    bins: tuple[Bin, ...]
    bin_us: int
    stalls: tuple[Stall, ...] = ()
    failures: Mapping[tuple[str, str], tuple[Failed, ...]] = field(default_factory=dict)

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
