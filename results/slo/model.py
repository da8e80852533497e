"""Values of the SLO language and the table of metrics.

``METRICS`` says which metric supports which operators, subjects, windows and quantiles; the parser, the checks and
``docs/SLO.md`` share it. The parser decides which combinations are valid; the values here only represent them and print
themselves: ``parse(str(slo)) == slo``. Times are microseconds, shares are fractions of 1. Numbers are printed exactly,
in the shortest unit of the language.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, Literal, TypeAlias

Op: TypeAlias = Literal["<", "<=", ">", ">=", "=="]
Side: TypeAlias = Literal["produce", "consume", "commit"]
Unit: TypeAlias = Literal["time", "share", "records"]
EachWord: TypeAlias = Literal["rack", "partition", "broker", "producer", "epoch"]
Aggregate: TypeAlias = float | Literal["max", "mean"]

WINDOWS = ("warmup", "steady", "fault", "recovery", "run")
UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000}
SECOND_US = 1_000_000
SLOT_US_MIN = 100_000

# The rules of results/checks/integrity.py, which this package must not import.
COUNTS = (
    "lost",
    "duplicate",
    "order",
    "phantom",
    "misplaced",
    "collision",
    "skipped",
    "backward",
    "beyond",
    "co_owned",
    "commit_ahead",
    "commit_behind",
    "corrupt",
    "immediate",
    "replica",
)

_BELOW: tuple[Op, ...] = ("<", "<=")
_ABOVE: tuple[Op, ...] = (">=", ">")
_EACH: dict[Side, tuple[EachWord, ...]] = {
    "produce": ("rack", "partition", "broker", "producer", "epoch"),
    "consume": ("rack", "partition", "broker", "producer"),
    "commit": ("rack", "broker"),
}


@dataclass(frozen=True)
class Metric:
    """What an SLO may say about a metric.

    ``spread``: the metric has many values, and the SLO names a quantile, ``max`` or ``mean`` of them. ``confident``:
    its values are like drawn samples, so a quantile has a confidence band. ``sampled``: it is measured once a second.
    ``slots``: it can be measured in slots of a window.
    """

    side: Side
    unit: Unit
    ops: tuple[Op, ...] = _BELOW
    each: tuple[EachWord, ...] = ()
    spread: bool = False
    confident: bool = False
    sampled: bool = False
    slots: bool = True

    @property
    def counted(self) -> str:
        """The noun for its ``n``."""
        return "seconds" if self.sampled else "commits" if self.side == "commit" else "records"


def _latency(side: Side) -> Metric:
    return Metric(side, "time", each=_EACH[side], spread=True, confident=True)


METRICS: dict[str, Metric] = {
    "produce.latency": _latency("produce"),
    "produce.service": _latency("produce"),
    "consume.latency": _latency("consume"),
    "commit.latency": _latency("commit"),
    "commit.service": _latency("commit"),
    "produce.success": Metric("produce", "share", _ABOVE, _EACH["produce"]),
    "commit.success": Metric("commit", "share", _ABOVE, _EACH["commit"]),
    "produce.gap": Metric("produce", "time", each=_EACH["produce"]),
    "consume.gap": Metric("consume", "time", each=_EACH["consume"]),
    "commit.gap": Metric("commit", "time", each=_EACH["commit"]),
    "produce.unavailable": Metric("produce", "time", each=("partition",), slots=False),
    "consume.unavailable": Metric("consume", "time", each=("partition",), slots=False),
    "consume.lag": Metric("consume", "records", spread=True, sampled=True),
    "consume.freshness": Metric("consume", "time", spread=True, sampled=True),
    "produce.budget": Metric("produce", "share", each=_EACH["produce"]),
    "commit.budget": Metric("commit", "share", each=_EACH["commit"]),
}
LATENCIES = tuple(name for name, metric in METRICS.items() if metric.confident)


def number(value: Decimal) -> str:
    """Format without an exponent and trailing zeros: ``0.7``, ``100``."""
    return f"{value.normalize():f}"


def percent(share: Decimal) -> str:
    """Format 0.999 as ``99.9%``."""
    return f"{number(share * 100)}%"


def time(us: int) -> str:
    """Format in the largest unit that gives an integer: ``250ms``, ``5s``, ``1500us``."""
    unit = next(unit for unit, of_us in reversed(UNITS_US.items()) if us % of_us == 0)
    return f"{us // UNITS_US[unit]}{unit}"


def aggregate_name(aggregate: Aggregate) -> str:
    """Return ``p95``, ``p99.9``, ``max`` or ``mean``."""
    return aggregate if isinstance(aggregate, str) else f"p{number(Decimal(repr(aggregate)) * 100)}"


MEAN_NEEDS = 30  # from this size on, the mean of most samples is nearly normal


def quantile_needs(q: float) -> int:
    """Return the least n with ten values beyond the quantile, 10/(1-q), exactly: in floats p90 would need 101."""
    return math.ceil(10 / (1 - Fraction(repr(q))))


def share_needs(share: Decimal) -> int:
    """Return 1/(1-share), the least n at which one failure does not exceed the limit; 1 for 100 %."""
    missing = 1 - Fraction(share)
    return math.ceil(1 / missing) if missing else 1


@dataclass(frozen=True)
class Selection:
    """A metric, its aggregate, and the time and clients it covers: ``produce.latency p99 in fault for a``.

    Window None is ``run``, everything after warm-up; arm None is every arm that has the metric's side. ``every_us``:
    each slot of this length is measured separately. ``target``: the success rate that defines an error budget.
    """

    metric: str
    aggregate: Aggregate | None = None
    window: str | None = None
    every_us: int | None = None
    arm: str | None = None
    target: Decimal | None = None

    @property
    def about(self) -> Metric:
        """The metric's row in ``METRICS``."""
        return METRICS[self.metric]

    @property
    def fault(self) -> str | None:
        """The fault id of a window ``fault/<id>``, else None."""
        return self.window.removeprefix("fault/") if self.window and self.window.startswith("fault/") else None

    @property
    def spread(self) -> str:
        """``p99``, or empty for a metric with one value."""
        return "" if self.aggregate is None else aggregate_name(self.aggregate)

    @property
    def place(self) -> str:
        """``fault``, ``every 1s of fault``, or empty for everything after warm-up."""
        if self.every_us is None:
            return self.window or ""
        return f"every {time(self.every_us)} of {self.window or 'run'}"

    def needs(self) -> int:
        """Return the least number of values that define the aggregate."""
        if self.target is not None:
            return share_needs(self.target)
        if self.aggregate == "mean":
            return MEAN_NEEDS
        return quantile_needs(self.aggregate) if isinstance(self.aggregate, float) else 1

    def head(self) -> str:
        """Return metric and aggregate: ``produce.latency p99``, ``produce.budget(99.9%)``."""
        target = "" if self.target is None else f"({percent(self.target)})"
        return f"{self.metric}{target} {self.spread}".rstrip()

    def tail(self) -> str:
        """Return place and arm with a leading space, `` in fault for a``, or an empty string."""
        return (f" in {self.place}" if self.place else "") + (f" for {self.arm}" if self.arm else "")


@dataclass(frozen=True)
class Multiple:
    """A factor and another selection: ``2 * p99 in steady``. Omitted parts are filled from the first selection."""

    factor: Decimal
    of: Selection

    def beside(self, first: Selection) -> dict[str, str]:
        """Return the parts in which the other selection differs from the first, in the language's words."""
        second_words, first_words = (
            {"metric": part.metric, "spread": part.spread, "window": part.window or "run", "arm": part.arm or ""}
            for part in (self.of, first)
        )
        return {name: word for name, word in second_words.items() if word != first_words[name]}


def _distinct(names: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name is not None))


@dataclass(frozen=True)
class Measure:
    """A selection with a limit, or with a multiple of another selection: ``produce.latency p95 < 250ms in fault``."""

    of: Selection
    op: Op
    limit: Decimal | Multiple
    each: EachWord | None = None
    confidence: Decimal | None = None

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The one or two selections to measure."""
        return (self.of, self.limit.of) if isinstance(self.limit, Multiple) else (self.of,)

    @property
    def side(self) -> Side:
        """The side of the first selection's rows."""
        return self.of.about.side

    @property
    def arms(self) -> tuple[str, ...]:
        """The named arms; empty means every arm."""
        return _distinct(selection.arm for selection in self.selections)

    @property
    def windows(self) -> tuple[str | None, ...]:
        """The windows of its selections."""
        return tuple(dict.fromkeys(selection.window for selection in self.selections))

    @property
    def faults(self) -> tuple[str, ...]:
        """The ids of the named faults."""
        return _distinct(selection.fault for selection in self.selections)

    @property
    def q(self) -> float | None:
        """The quantile of the first selection, if its aggregate is a quantile."""
        return self.of.aggregate if isinstance(self.of.aggregate, float) else None

    @property
    def threshold_us(self) -> int | None:
        """The limit, if it is a time and not a multiple."""
        return int(self.limit) if isinstance(self.limit, Decimal) and self.of.about.unit == "time" else None

    @property
    def compares_arms(self) -> bool:
        """True if the two selections are of different arms, so that their ratio is judged."""
        return isinstance(self.limit, Multiple) and self.limit.of.arm != self.of.arm

    def needs_of(self, selection: Selection) -> int:
        """Return the least number of values of one selection, in each subject and slot, that can decide the SLO."""
        if isinstance(self.limit, Decimal) and selection.metric.endswith(".success"):
            return share_needs(self.limit)
        return selection.needs()

    def needs(self) -> int:
        """Return the least number of values that can decide the SLO: the maximum over its selections."""
        return max(map(self.needs_of, self.selections))

    def check_id(self) -> str:
        """Return ``slo/produce.latency-p95-fault``, or ``compare/produce.latency-p95-a-b-fault`` for two arms."""
        target = "" if self.of.target is None else percent(self.of.target)
        words = [self.of.metric, target, self.of.spread, *(self.arms if self.compares_arms else ())]
        differences = self.limit.beside(self.of) if isinstance(self.limit, Multiple) else {}
        second = [word for name, word in differences.items() if name != "arm"]
        words += [self.of.place.replace(" ", "-"), *(("to", *second) if second else ())]
        words += [f"each-{self.each}" if self.each else "", f"with-{self._confidence()}" if self.confidence else ""]
        return f"{'compare' if self.compares_arms else 'slo'}/" + "-".join(word for word in words if word)

    def _confidence(self) -> str:
        return "" if self.confidence is None else percent(self.confidence)

    def __str__(self) -> str:
        if isinstance(self.limit, Multiple):
            head = (
                f"{self.of.head()}{self.of.tail()} {self.op} {number(self.limit.factor)} * {self._second(self.limit)}"
            )
        else:
            head = f"{self.of.head()} {self.op} {self._amount(self.limit)}{self.of.tail()}"
        each = f" for each {self.each}" if self.each else ""
        confidence = f" with {self._confidence()} confidence" if self.confidence else ""
        return f"{head}{each}{confidence}"

    def _second(self, multiple: Multiple) -> str:
        """Format ``p99 of produce.service in steady``: always the aggregate, other parts only if they differ."""
        words = multiple.beside(self.of)
        metric = f" of {words['metric']}" if "metric" in words else ""
        window = f" in {words['window']}" if "window" in words else ""
        arm = f" for {words['arm']}" if "arm" in words else ""
        return (f"{multiple.of.spread}{metric}" if multiple.of.spread else multiple.of.metric) + window + arm

    def _amount(self, limit: Decimal) -> str:
        unit = self.of.about.unit
        if unit == "share":
            return percent(limit)
        return time(int(limit)) if unit == "time" else f"{number(limit)} records"


@dataclass(frozen=True)
class Recovery:
    """``recovery < 5s after kill-1``: time from the injection to the first calm period of ``for_us``.

    A period is calm if every record succeeds and quantile ``q`` is at most ``factor`` times its value in ``steady``.
    """

    op: Op
    limit_us: int
    after: str
    arm: str | None = None
    q: float = 0.95
    factor: Decimal = Decimal(2)
    for_us: int = 2_000_000

    side: ClassVar[Side] = "produce"

    @property
    def arms(self) -> tuple[str, ...]:
        """The named arm, if any."""
        return _distinct([self.arm])

    @property
    def windows(self) -> tuple[str | None, ...]:
        """The window of the fault, and ``steady`` as the baseline."""
        return (f"fault/{self.after}", "steady")

    @property
    def faults(self) -> tuple[str, ...]:
        """The fault whose injection starts the time."""
        return (self.after,)

    @property
    def terms(self) -> str:
        """`` (p99 <= 3 * steady for 5s)``, or empty for the default terms."""
        if (self.q, self.factor, self.for_us) == (Recovery.q, Recovery.factor, Recovery.for_us):
            return ""
        return f" ({aggregate_name(self.q)} <= {number(self.factor)} * steady for {time(self.for_us)})"

    def needs(self) -> int:
        """Return the records needed in ``steady`` for the baseline: ten beyond its quantile."""
        return quantile_needs(self.q)

    def check_id(self) -> str:
        """Return ``slo/recovery-kill-1``, followed by terms that differ from the default."""
        own = f"-{aggregate_name(self.q)}-{number(self.factor)}-{time(self.for_us)}" if self.terms else ""
        return f"slo/recovery-{self.after}{own}"

    def __str__(self) -> str:
        arm = f" for {self.arm}" if self.arm else ""
        return f"recovery{self.terms} {self.op} {time(self.limit_us)} after {self.after}{arm}"


@dataclass(frozen=True)
class Count:
    """``lost == 0``: number of records that broke an integrity rule, even if the configuration permits it."""

    rule: str
    op: Op
    limit: int
    arm: str | None = None

    side: ClassVar[None] = None
    windows: ClassVar[tuple[str | None, ...]] = (None,)
    faults: ClassVar[tuple[str, ...]] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        """The named arm, if any."""
        return _distinct([self.arm])

    def needs(self) -> int:
        """Return 1: without any record the count proves nothing."""
        return 1

    def check_id(self) -> str:
        """Return ``slo/lost``."""
        return f"slo/{self.rule}"

    def __str__(self) -> str:
        return f"{self.rule} {self.op} {self.limit}" + (f" for {self.arm}" if self.arm else "")


Slo: TypeAlias = Measure | Recovery | Count
