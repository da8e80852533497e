"""What an SLO says, as values that print themselves: ``parse(str(slo)) == slo``.

Which of the many combinations mean something is the parser's to know. Times are microseconds, shares fractions of 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, TypeAlias

from aftershock.results.slo.figures import aggregate_name, number, percent, time
from aftershock.results.slo.selection import Multiple, Selection, quantile_needs, share_needs
from aftershock.results.slo.words import EachWord, Op, Side


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
