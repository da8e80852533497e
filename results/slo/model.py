"""The words of the language, and which metric takes which: a table that parser, judge and ``docs/SLO.md`` share.

Figures as the language writes them: exact, and in the shortest of its units.

What is measured, when, and of whom: one side of an SLO.

What an SLO says, as values that print themselves: ``parse(str(slo)) == slo``.

Which of the many combinations mean something is the parser's to know. Times are microseconds, shares fractions of 1.
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

# the rules of results/checks/integrity.py, which this may not import
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
    """What may be asked of a metric.

    ``spread``: it has many values, of which one asks for a quantile, the largest or the mean. ``confident``: its
    values are drawn like samples, so a quantile has a confidence band. ``sampled``: it is known once a second.
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
        """What its ``n`` counts."""
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
    """Without an exponent, and without needless zeros: ``0.7``, ``100``."""
    return f"{value.normalize():f}"


def percent(share: Decimal) -> str:
    """``99.9%`` of 0.999."""
    return f"{number(share * 100)}%"


def time(us: int) -> str:
    """``250ms``, ``5s``, ``1500us``: the largest unit that leaves it whole."""
    unit = next(unit for unit, of_us in reversed(UNITS_US.items()) if us % of_us == 0)
    return f"{us // UNITS_US[unit]}{unit}"


def aggregate_name(aggregate: Aggregate) -> str:
    """``p95``, ``p99.9``, ``max`` or ``mean``."""
    return aggregate if isinstance(aggregate, str) else f"p{number(Decimal(repr(aggregate)) * 100)}"


MEAN_NEEDS = 30  # where the mean of most samples begins to be near normal


def quantile_needs(q: float) -> int:
    """Ten values beyond the quantile (design 5.4: n >= 10/(1-q)); exactly, for as floats p90 would need 101."""
    return math.ceil(10 / (1 - Fraction(repr(q))))


def share_needs(share: Decimal) -> int:
    """1/(1-share): with fewer records one failure could not be told from too many; one for 100 %."""
    missing = 1 - Fraction(share)
    return math.ceil(1 / missing) if missing else 1


@dataclass(frozen=True)
class Selection:
    """``produce.latency p99 in fault for a``.

    A window of None is ``run``, everything after warm-up; an arm of None is every arm that has the metric's side.
    ``every_us``: each slot of this length by itself. ``target``: the success that an error budget is counted from.
    """

    metric: str
    aggregate: Aggregate | None = None
    window: str | None = None
    every_us: int | None = None
    arm: str | None = None
    target: Decimal | None = None

    @property
    def about(self) -> Metric:
        """What the table says of the metric."""
        return METRICS[self.metric]

    @property
    def fault(self) -> str | None:
        """The id of the one fault whose window is meant, if one is."""
        return self.window.removeprefix("fault/") if self.window and self.window.startswith("fault/") else None

    @property
    def spread(self) -> str:
        """``p99``, or nothing where the metric has one value."""
        return "" if self.aggregate is None else aggregate_name(self.aggregate)

    @property
    def place(self) -> str:
        """``fault``, ``every 1s of fault``, or nothing for everything after warm-up."""
        if self.every_us is None:
            return self.window or ""
        return f"every {time(self.every_us)} of {self.window or 'run'}"

    def needs(self) -> int:
        """The fewest values that can tell it."""
        if self.target is not None:
            return share_needs(self.target)
        if self.aggregate == "mean":
            return MEAN_NEEDS
        return quantile_needs(self.aggregate) if isinstance(self.aggregate, float) else 1

    def head(self) -> str:
        """``produce.latency p99``, ``produce.budget(99.9%)``."""
        target = "" if self.target is None else f"({percent(self.target)})"
        return f"{self.metric}{target} {self.spread}".rstrip()

    def tail(self) -> str:
        """`` in fault for a``, with a space before it where there is any."""
        return (f" in {self.place}" if self.place else "") + (f" for {self.arm}" if self.arm else "")


@dataclass(frozen=True)
class Multiple:
    """``2 * p99 in steady``: so many times another selection, complete: what was left out is taken from the first."""

    factor: Decimal
    of: Selection

    def beside(self, first: Selection) -> dict[str, str]:
        """In what the other one differs from the first, in the language's words."""
        mine, its = (
            {"metric": one.metric, "spread": one.spread, "window": one.window or "run", "arm": one.arm or ""}
            for one in (self.of, first)
        )
        return {name: value for name, value in mine.items() if value != its[name]}


def _told(names: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name is not None))


@dataclass(frozen=True)
class Measure:
    """``produce.latency p95 < 250ms in fault``: a selection against a limit in its own unit, or against another."""

    of: Selection
    op: Op
    limit: Decimal | Multiple
    each: EachWord | None = None
    confidence: Decimal | None = None

    @property
    def selections(self) -> tuple[Selection, ...]:
        """What has to be measured: one selection, or two."""
        return (self.of, self.limit.of) if isinstance(self.limit, Multiple) else (self.of,)

    @property
    def side(self) -> Side:
        """Which rows the first selection reads."""
        return self.of.about.side

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms it names; none means every arm."""
        return _told(one.arm for one in self.selections)

    @property
    def windows(self) -> tuple[str | None, ...]:
        """The windows it reads."""
        return tuple(dict.fromkeys(one.window for one in self.selections))

    @property
    def faults(self) -> tuple[str, ...]:
        """The ids of the faults it names."""
        return _told(one.fault for one in self.selections)

    @property
    def q(self) -> float | None:
        """The quantile it is about, if it is about one."""
        return self.of.aggregate if isinstance(self.of.aggregate, float) else None

    @property
    def threshold_us(self) -> int | None:
        """The limit, where it is a time and no multiple."""
        return int(self.limit) if isinstance(self.limit, Decimal) and self.of.about.unit == "time" else None

    @property
    def compares_arms(self) -> bool:
        """Whether the other selection is another arm's: then their ratio is what is judged."""
        return isinstance(self.limit, Multiple) and self.limit.of.arm != self.of.arm

    def needs_of(self, selection: Selection) -> int:
        """The fewest values of one of its selections that can decide it, in each subject and slot."""
        if isinstance(self.limit, Decimal) and selection.metric.endswith(".success"):
            return share_needs(self.limit)
        return selection.needs()

    def needs(self) -> int:
        """The fewest values that can decide it; of two selections the more demanding one's."""
        return max(map(self.needs_of, self.selections))

    def check_id(self) -> str:
        """``slo/produce.latency-p95-fault``; ``compare/produce.latency-p95-a-b-fault`` of two arms."""
        target = "" if self.of.target is None else percent(self.of.target)
        words = [self.of.metric, target, self.of.spread, *(self.arms if self.compares_arms else ())]
        words += [self.of.place.replace(" ", "-"), *self._to()]
        words += [f"each-{self.each}" if self.each else "", f"with-{self._confidence()}" if self.confidence else ""]
        return f"{'compare' if self.compares_arms else 'slo'}/" + "-".join(word for word in words if word)

    def _to(self) -> tuple[str, ...]:
        if not isinstance(self.limit, Multiple):
            return ()
        beside = [word for name, word in self.limit.beside(self.of).items() if name != "arm"]
        return ("to", *beside) if beside else ()

    def _confidence(self) -> str:
        return "" if self.confidence is None else percent(self.confidence)

    def __str__(self) -> str:
        each = f" for each {self.each}" if self.each else ""
        confidence = f" with {self._confidence()} confidence" if self.confidence else ""
        return f"{self._bound()}{each}{confidence}"

    def _bound(self) -> str:
        if isinstance(self.limit, Multiple):
            return f"{self.of.head()}{self.of.tail()} {self.op} {number(self.limit.factor)} * {self._other(self.limit)}"
        return f"{self.of.head()} {self.op} {self._amount(self.limit)}{self.of.tail()}"

    def _other(self, multiple: Multiple) -> str:
        """``p99 of produce.service in steady``: the quantile always, the rest where it differs."""
        told = multiple.beside(self.of)
        metric = f" of {told['metric']}" if "metric" in told else ""
        head = f"{multiple.of.spread}{metric}" if multiple.of.spread else multiple.of.metric
        return head + "".join(f" {word} {told[name]}" for name, word in _WHERE.items() if name in told)

    def _amount(self, limit: Decimal) -> str:
        unit = self.of.about.unit
        if unit == "share":
            return percent(limit)
        return time(int(limit)) if unit == "time" else f"{number(limit)} records"


_WHERE = {"window": "in", "arm": "for"}


@dataclass(frozen=True)
class Recovery:
    """``recovery < 5s after kill-1``: from inject to the first ``for_us`` in which all succeed, and fast enough.

    Fast enough is: quantile ``q`` at most ``factor`` times what it was in ``steady``.
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
        """The arm it names, if it does."""
        return _told([self.arm])

    @property
    def windows(self) -> tuple[str | None, ...]:
        """The fault's; and what was before it, to compare with."""
        return (f"fault/{self.after}", "steady")

    @property
    def faults(self) -> tuple[str, ...]:
        """The fault it counts from."""
        return (self.after,)

    @property
    def terms(self) -> str:
        """`` (p99 <= 3 * steady for 5s)``, or nothing where they are the usual ones."""
        if (self.q, self.factor, self.for_us) == (Recovery.q, Recovery.factor, Recovery.for_us):
            return ""
        return f" ({aggregate_name(self.q)} <= {number(self.factor)} * steady for {time(self.for_us)})"

    def needs(self) -> int:
        """Enough records in ``steady`` for the yardstick: ten beyond its quantile."""
        return quantile_needs(self.q)

    def check_id(self) -> str:
        """``slo/recovery-kill-1``, and its own terms."""
        own = f"-{aggregate_name(self.q)}-{number(self.factor)}-{time(self.for_us)}" if self.terms else ""
        return f"slo/recovery-{self.after}{own}"

    def __str__(self) -> str:
        arm = f" for {self.arm}" if self.arm else ""
        return f"recovery{self.terms} {self.op} {time(self.limit_us)} after {self.after}{arm}"


@dataclass(frozen=True)
class Count:
    """``lost == 0``: how many records broke an integrity rule, whatever the configuration permits."""

    rule: str
    op: Op
    limit: int
    arm: str | None = None

    side: ClassVar[None] = None
    windows: ClassVar[tuple[str | None, ...]] = (None,)
    faults: ClassVar[tuple[str, ...]] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        """The arm it names, if it does."""
        return _told([self.arm])

    def needs(self) -> int:
        """One record: of none, none could be broken."""
        return 1

    def check_id(self) -> str:
        """``slo/lost``."""
        return f"slo/{self.rule}"

    def __str__(self) -> str:
        return f"{self.rule} {self.op} {self.limit}" + (f" for {self.arm}" if self.arm else "")


Slo: TypeAlias = Measure | Recovery | Count
