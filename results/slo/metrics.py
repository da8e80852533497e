"""Table of SLO metrics, with each metric's name in an SLO, its measurement, and the sentence that reports it.

To add an SLO metric, add a row to ``METRICS`` and, if necessary, functions for its value and its sentence. Times are in
microseconds, shares are fractions of 1.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Literal, TypeAlias

Op: TypeAlias = Literal["<", "<=", ">", ">=", "=="]
Side: TypeAlias = Literal["produce", "consume", "commit", "pipe"]
EachWord: TypeAlias = Literal["rack", "partition", "broker", "producer", "epoch", "member"]
Aggregate: TypeAlias = float | Literal["max", "mean"]
Source: TypeAlias = Literal[
    "latency",
    "service",
    "gap",
    "stalls",
    "lag",
    "age",
    "rebalances",
    "duration",
    "unowned",
    "stopped",
    "skew",
    "transaction",
    "stable",
    "lost",
    "restarts",
    "fatal",
]
"""Measurement that a metric reads: latency from the intended time or (service) from the send, the longest gap between
successes, stalls, the lag (records, or age of the oldest record) at the end of each second, or the rebalances of a
group (their number, their longest duration, the longest wait without a delivering owner, the longest silence of a
partition that kept its owner, and the largest difference between the members' numbers of partitions), how long a
producer's transactions took from the intended time of their last record to their end, for how long readers of
committed records could not read the oldest record above the last stable offset, or what happened to a client: the
partitions that it lost, restarts of a producer's sequence numbers, and fatal errors."""
OF_GROUPS: frozenset[Source] = frozenset({"rebalances", "duration", "unowned", "stopped", "skew"})
OF_EVENTS: frozenset[Source] = frozenset({"lost", "restarts", "fatal"})

UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000}
UNITS_READ_US = UNITS_US | {"m": 60_000_000, "h": 3_600_000_000}
"""Units that an SLO may use. Minutes and hours are written as seconds, so that check ids do not depend on the unit."""
MAX = 1.0  # the quantile that is the maximum
MEAN_NEEDS = 30  # from this size on, the mean of most samples is nearly normal


def number(value: Decimal) -> str:
    """Format a number without an exponent and trailing zeros, such as ``0.7`` or ``100``."""
    return f"{value.normalize():f}"


def percent(share: Decimal) -> str:
    """Format the share 0.999 as ``99.9%``."""
    return f"{number(share * 100)}%"


def time(us: int, units_us: Mapping[str, int] = UNITS_US) -> str:
    """Format a time in the largest unit that gives an integer, such as ``250ms``, ``5s`` or ``1500us``."""
    unit = max((unit for unit in units_us if us % units_us[unit] == 0), key=units_us.__getitem__)
    return f"{us // units_us[unit]}{unit}"


def moment(us: int) -> str:
    """Format a time of the run as ``17.0 s``, or from an hour on as ``2:00:16.0``, like the axes of the report."""
    minutes, tenths = divmod(round(us / 1e5), 600)
    return f"{us / 1e6:.1f} s" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{tenths / 10:04.1f}"  # noqa: PLR2004


def aggregate_name(aggregate: Aggregate) -> str:
    """Return an aggregate as in an SLO, such as ``p95``, ``p99.9``, ``max`` or ``mean``."""
    return aggregate if isinstance(aggregate, str) else f"p{number(Decimal(repr(aggregate)) * 100)}"


def quantile_needs(q: float) -> int:
    """Return 10/(1-q), the least sample size with ten values beyond the quantile, exactly (in floats p90 needs 101)."""
    return math.ceil(10 / (1 - Fraction(repr(q))))


def share_needs(share: Decimal) -> int:
    """Return 1/(1-share), the least sample size at which one failure does not exceed the limit; 1 for 100 %."""
    missing = 1 - Fraction(share)
    return math.ceil(1 / missing) if missing else 1


@dataclass(frozen=True)
class Selection:
    """Measured value of an SLO, with metric, aggregate, window and arm, as in ``produce.latency p99 in fault for a``.

    Without a window, the value covers ``run``, the time after warm-up; without an arm, it covers every arm that has the
    metric. With ``every_us``, each time slot of this length is measured separately. ``target`` is the success rate from
    which an error budget follows.
    """

    metric: str
    aggregate: Aggregate | None = None
    window: str | None = None
    every_us: int | None = None
    arm: str | None = None
    target: Decimal | None = None

    @property
    def about(self) -> "Metric":
        return METRICS[self.metric]

    @property
    def fault(self) -> str | None:
        """The fault id ``<id>`` of an SLO on the window ``fault/<id>``, None for any other window."""
        return self.window.removeprefix("fault/") if self.window and self.window.startswith("fault/") else None

    @property
    def spread(self) -> str:
        """Aggregate that an SLO limits, such as ``p99``; empty for a metric with a single value."""
        return "" if self.aggregate is None else aggregate_name(self.aggregate)

    @property
    def place(self) -> str:
        """Window of an SLO in words, ``fault`` or ``every 1s of fault``; empty for the time after warm-up."""
        if self.every_us is None:
            return self.window or ""
        return f"every {time(self.every_us)} of {self.window or 'run'}"

    @property
    def window_text(self) -> str:
        return self.window or "the time after warm-up"

    def needs(self) -> int:
        """Return the least number of values from which an SLO's aggregate (quantile, mean, ...) can be computed."""
        if self.target is not None:
            return share_needs(self.target)
        if self.aggregate == "mean":
            return MEAN_NEEDS
        return quantile_needs(self.aggregate) if isinstance(self.aggregate, float) else 1

    def head(self) -> str:
        """Return the first words of an SLO, such as ``produce.latency p99`` or ``produce.budget(99.9%)``."""
        target = "" if self.target is None else f"({percent(self.target)})"
        return f"{self.metric}{target} {self.spread}".rstrip()

    def tail(self) -> str:
        """Return the window and the arm as an SLO names them, as in `` in fault for a``; empty if it names neither."""
        return (f" in {self.place}" if self.place else "") + (f" for {self.arm}" if self.arm else "")


@dataclass(frozen=True)
class Reading:
    """Measurements of a client in a window or slot, of all its records, or of one subject such as ``orders/3``.

    Of the ``n`` records, ``censored`` records never succeeded. ``at`` maps quantiles to latencies, None for a censored
    latency. ``value`` is the metric's value in base units; None exceeds any limit. ``length_us`` is the length of the
    window or time slot, ``start_us`` the start of the time slot, ``band`` the confidence band of the quantile.
    """

    n: int
    censored: int = 0
    at: Mapping[float, float | None] = field(default_factory=dict)
    mean: float | None = None
    value: Fraction | None = None
    subject: str = ""
    start_us: int | None = None
    length_us: int = 0
    band: tuple[int | None, int | None] | None = None


def aggregate_of(selection: Selection, reading: Reading) -> Fraction | None:
    """Return the quantile, mean or maximum that an SLO limits; the maximum if the SLO names no aggregate."""
    if selection.aggregate == "mean":
        return None if reading.censored or reading.mean is None else Fraction(reading.mean)
    value = reading.at.get(selection.aggregate if isinstance(selection.aggregate, float) else MAX)
    return None if value is None else Fraction(value)


def success_rate(_: Selection, reading: Reading) -> Fraction:
    return Fraction(reading.n - reading.censored, reading.n)


def budget_used(selection: Selection, reading: Reading) -> Fraction:
    """Return the used share of the error budget, which is failures divided by the failures that the target allows."""
    return Fraction(reading.censored, reading.n) / (1 - Fraction(selection.target or 0))


def aggregate_sentence(selection: Selection, reading: Reading) -> str:
    if reading.value is None:
        return f"{selection.spread} is censored: {reading.censored} of {reading.n} never succeeded"
    return f"{selection.spread} in {selection.window_text} is {selection.about.shown(reading.value)}"


def success_sentence(selection: Selection, reading: Reading) -> str:
    return f"{reading.n - reading.censored} of {reading.n} {selection.about.counted} were acknowledged"


def ended_sentence(_: Selection, reading: Reading) -> str:
    return f"{reading.n - reading.censored} of {reading.n} transactions ended as planned"


def budget_sentence(selection: Selection, reading: Reading) -> str:
    used = f"{float((reading.value or Fraction(0)) * 100):.4g}%"
    budget = percent(1 - (selection.target or Decimal(0)))
    return f"{reading.censored} of {reading.n} {selection.about.counted} failed: {used} of the error budget of {budget}"


def throughput(_: Selection, reading: Reading) -> Fraction:
    """Return the records that succeeded in the window or slot (by the time of their success), per second of it."""
    return Fraction((reading.n - reading.censored) * 1_000_000, max(1, reading.length_us))


def throughput_sentence(_: Selection, reading: Reading) -> str:
    rate, length_s = float(reading.value or 0), reading.length_us / 1e6
    return f"{reading.n - reading.censored} records succeeded in {length_s:.3f} s, {rate:.4g} per second"


def gap_sentence(selection: Selection, reading: Reading) -> str:
    nothing = f"; {selection.about.counted} waited, and none succeeded" if reading.censored else ""
    longest_s = float(reading.value or 0) / 1e6
    return f"the longest time without a success was {longest_s:.3f} s{nothing}"


def stalls_sentence(_: Selection, reading: Reading) -> str:
    total_s = float(reading.value or 0) / 1e6
    return f"no progress for {total_s:.3f} s in total, in stalls of a second or more"


def rebalances_sentence(selection: Selection, reading: Reading) -> str:
    """Return what was measured of the group's rebalances."""
    value = reading.value or Fraction(0)
    what = {
        "rebalances": f"the number of the group's rebalances was {value}",
        "duration": f"the longest rebalance took {float(value) / 1e6:.3f} s",
        "unowned": f"records of a partition without a delivering owner waited for at most {float(value) / 1e6:.3f} s",
        "stopped": f"a partition that kept its owner stood still for at most {float(value) / 1e6:.3f} s",
        "skew": f"a member had up to {value} partitions more than another",
    }
    return what[selection.about.source]


def events_sentence(selection: Selection, reading: Reading) -> str:
    """Return how often something happened to the client."""
    value = reading.value or Fraction(0)
    what = {
        "lost": f"the client lost {value} partitions, because it was no longer a member of its group",
        "restarts": f"the sequence numbers of the producer began anew {value} times",
        "fatal": f"the client ended, or reported a fatal error, {value} times",
    }
    return what[selection.about.source]


BELOW: tuple[Op, ...] = ("<", "<=")
ABOVE: tuple[Op, ...] = (">=", ">")
_PRODUCER: tuple[EachWord, ...] = ("rack", "partition", "broker", "producer", "epoch")
_READER: tuple[EachWord, ...] = ("rack", "partition", "broker", "producer")
_COMMITTER: tuple[EachWord, ...] = ("rack", "broker")
_SCALES = {"ms": Fraction(1_000), "s": Fraction(1_000_000), "%": Fraction(1, 100)}


@dataclass(frozen=True)
class Metric:
    """SLO metric, such as ``produce.latency``; a row of ``METRICS``.

    The ``unit`` of a metric is ``time``, ``share``, ``records/s``, or the noun of a count. ``each`` lists the subjects
    allowed in an SLO's ``for each SUBJECT``, ``ops`` the allowed comparisons. ``value`` calculates the metric's value
    from n > 0 records, ``sentence`` reports the value. An SLO must name a quantile, ``max`` or ``mean`` if
    ``has_aggregate``, a success rate if ``has_target``. If ``slots``, the metric can be measured in time slots
    (``in every 1s of fault``).
    """

    side: Side
    source: Source
    unit: str
    each: tuple[EachWord, ...] = ()
    value: Callable[[Selection, Reading], Fraction | None] = aggregate_of
    sentence: Callable[[Selection, Reading], str] = aggregate_sentence
    ops: tuple[Op, ...] = BELOW
    has_aggregate: bool = False
    has_target: bool = False
    slots: bool = True

    @property
    def sampled(self) -> bool:
        """True if a metric has one value per second instead of one per record."""
        return self.source in ("lag", "age", "stable")

    @property
    def counts(self) -> bool:
        """True if a metric counts records or events, whatever their latency."""
        return self.unit == "share" or self.source in OF_EVENTS

    @property
    def confident(self) -> bool:
        """True if the metric's values are independent latencies, so that a quantile has a confidence band."""
        return self.has_aggregate and not self.sampled

    @property
    def counted(self) -> str:
        """Noun for what the sample size ``n`` counts, such as records."""
        if self.source in ("duration", "stopped", "skew"):
            return "rebalances"
        if self.source == "transaction":
            return "transactions"
        return "seconds" if self.sampled else "commits" if self.side == "commit" else "records"

    @property
    def shown_unit(self) -> str:
        """Unit of a metric in checks, which is s for gaps and stalls, ms for other times, % or the noun of a count."""
        in_s = self.source in ("gap", "stalls") or self.source in OF_GROUPS
        return {"time": "s" if in_s else "ms", "share": "%"}.get(self.unit, self.unit)

    def scaled(self, value: Fraction) -> float:
        return float(value / _SCALES.get(self.shown_unit, 1))

    def shown(self, value: Fraction | None) -> str:
        """Return a metric's value as text, such as ``41.7 ms``, or ``never`` for a censored value."""
        return "never" if value is None else f"{self.scaled(value):g} {self.shown_unit}"


METRICS: dict[str, Metric] = {
    "produce.latency": Metric("produce", "latency", "time", _PRODUCER, has_aggregate=True),
    "produce.service": Metric("produce", "service", "time", _PRODUCER, has_aggregate=True),
    "consume.latency": Metric("consume", "latency", "time", _READER, has_aggregate=True),
    "commit.latency": Metric("commit", "latency", "time", _COMMITTER, has_aggregate=True),
    "commit.service": Metric("commit", "service", "time", _COMMITTER, has_aggregate=True),
    "produce.success": Metric("produce", "latency", "share", _PRODUCER, success_rate, success_sentence, ABOVE),
    "commit.success": Metric("commit", "latency", "share", _COMMITTER, success_rate, success_sentence, ABOVE),
    "transaction.latency": Metric("produce", "transaction", "time", has_aggregate=True, slots=False),
    "transaction.success": Metric(
        "produce", "transaction", "share", (), success_rate, ended_sentence, ABOVE, slots=False
    ),
    "stable_offset.lag": Metric("produce", "stable", "time", ("partition",), has_aggregate=True),
    "produce.gap": Metric("produce", "gap", "time", _PRODUCER, sentence=gap_sentence),
    "consume.gap": Metric("consume", "gap", "time", _READER, sentence=gap_sentence),
    "commit.gap": Metric("commit", "gap", "time", _COMMITTER, sentence=gap_sentence),
    "pipe.latency": Metric("pipe", "latency", "time", _READER, has_aggregate=True),
    "pipe.success": Metric("pipe", "latency", "share", _READER, success_rate, success_sentence, ABOVE),
    "pipe.gap": Metric("pipe", "gap", "time", _READER, sentence=gap_sentence),
    "pipe.throughput": Metric("pipe", "gap", "records/s", _READER, throughput, throughput_sentence, ABOVE),
    "produce.throughput": Metric("produce", "gap", "records/s", _PRODUCER, throughput, throughput_sentence, ABOVE),
    "consume.throughput": Metric("consume", "gap", "records/s", _READER, throughput, throughput_sentence, ABOVE),
    "produce.unavailable": Metric("produce", "stalls", "time", ("partition",), sentence=stalls_sentence, slots=False),
    "consume.unavailable": Metric("consume", "stalls", "time", ("partition",), sentence=stalls_sentence, slots=False),
    "consume.lag": Metric("consume", "lag", "records", ("member",), has_aggregate=True),
    "consume.freshness": Metric("consume", "age", "time", ("member",), has_aggregate=True),
    "rebalance.count": Metric("consume", "rebalances", "rebalances", sentence=rebalances_sentence, slots=False),
    "rebalance.duration": Metric("consume", "duration", "time", sentence=rebalances_sentence, slots=False),
    "consume.unowned": Metric("consume", "unowned", "time", ("partition",), sentence=rebalances_sentence, slots=False),
    "consume.stopped": Metric("consume", "stopped", "time", sentence=rebalances_sentence, slots=False),
    "assignment.skew": Metric("consume", "skew", "partitions", sentence=rebalances_sentence, slots=False),
    "assignment.lost": Metric("consume", "lost", "partitions", sentence=events_sentence, slots=False),
    "sequence.restarts": Metric("produce", "restarts", "restarts", sentence=events_sentence, slots=False),
    "produce.fatal": Metric("produce", "fatal", "errors", sentence=events_sentence, slots=False),
    "consume.fatal": Metric("consume", "fatal", "errors", sentence=events_sentence, slots=False),
    "commit.fatal": Metric("commit", "fatal", "errors", sentence=events_sentence, slots=False),
    "produce.budget": Metric("produce", "latency", "share", _PRODUCER, budget_used, budget_sentence, has_target=True),
    "commit.budget": Metric("commit", "latency", "share", _COMMITTER, budget_used, budget_sentence, has_target=True),
}
