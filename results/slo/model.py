"""Classes of parsed SLOs (``Measure``, ``Recovery`` and ``Count``), for which ``parse(str(slo)) == slo``.

Times are in microseconds, shares are fractions of 1.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, TypeAlias

from aftershock.results.slo.metrics import (
    EachWord,
    Op,
    Selection,
    Side,
    aggregate_name,
    number,
    percent,
    quantile_needs,
    share_needs,
    time,
)


@dataclass(frozen=True)
class Multiple:
    """Limit of an SLO such as ``2 * p99 in steady``; words that the limit omits are taken from the SLO's left side."""

    factor: Decimal
    of: Selection

    def beside(self, first: Selection) -> dict[str, str]:
        """Return the words in which the two measured values that an SLO compares differ, such as window or arm."""
        second_words, first_words = (
            {"metric": part.metric, "spread": part.spread, "window": part.window or "run", "arm": part.arm or ""}
            for part in (self.of, first)
        )
        return {name: word for name, word in second_words.items() if word != first_words[name]}


@dataclass(frozen=True)
class Measure:
    """SLO on a measured value, as in ``produce.latency p95 < 250ms in fault``; the limit may be a multiple."""

    of: Selection
    op: Op
    limit: Decimal | Multiple
    each: EachWord | None = None
    confidence: Decimal | None = None

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.of, self.limit.of) if isinstance(self.limit, Multiple) else (self.of,)

    @property
    def side(self) -> Side:
        return self.of.about.side

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(selection.arm for selection in self.selections if selection.arm is not None))

    @property
    def windows(self) -> tuple[str | None, ...]:
        return tuple(dict.fromkeys(selection.window for selection in self.selections))

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(selection.fault for selection in self.selections if selection.fault is not None))

    @property
    def q(self) -> float | None:
        """Quantile that an SLO limits, such as 0.95; None if the SLO limits a mean, a maximum or a single value."""
        return self.of.aggregate if isinstance(self.of.aggregate, float) else None

    @property
    def threshold_us(self) -> int | None:
        """Limit of an SLO in microseconds; None if the limit is a multiple of the steady value, or not a time."""
        return int(self.limit) if isinstance(self.limit, Decimal) and self.of.about.unit == "time" else None

    @property
    def compares_arms(self) -> bool:
        """True if an SLO compares two arms, so that the ratio of their measured values is judged."""
        return isinstance(self.limit, Multiple) and self.limit.of.arm != self.of.arm

    def needs_of(self, selection: Selection) -> int:
        """Return the least number of values, per subject and time slot, from which a measured value is meaningful."""
        if isinstance(self.limit, Decimal) and selection.about.unit == "share" and selection.target is None:
            return share_needs(self.limit)
        return selection.needs()

    def needs(self) -> int:
        """Return the least number of values from which an SLO can be decided; of two compared values the larger."""
        return max(map(self.needs_of, self.selections))

    def check_id(self) -> str:
        """Return the id of an SLO's check, as in ``slo/produce.latency-p95-fault``, or ``compare/...`` for two arms."""
        target = "" if self.of.target is None else percent(self.of.target)
        words = [self.of.metric, target, self.of.spread, *(self.arms if self.compares_arms else ())]
        differences = self.limit.beside(self.of) if isinstance(self.limit, Multiple) else {}
        second = [word for name, word in differences.items() if name != "arm"]
        words += [self.of.place.replace(" ", "-"), *(("to", *second) if second else ())]
        words += [f"each-{self.each}" if self.each else ""]
        words += [] if self.confidence is None else [f"with-{percent(self.confidence)}"]
        return f"{'compare' if self.compares_arms else 'slo'}/" + "-".join(word for word in words if word)

    def __str__(self) -> str:
        unit = self.of.about.unit
        if isinstance(self.limit, Multiple):
            # besides the aggregate, the right side has only the parts that differ from the left side
            words, second = self.limit.beside(self.of), self.limit.of
            metric = f" of {words['metric']}" if "metric" in words else ""
            text = f"{self.of.head()}{self.of.tail()} {self.op} {number(self.limit.factor)} * "
            text += f"{second.spread}{metric}" if second.spread else second.metric
            text += f" in {words['window']}" if "window" in words else ""
            text += f" for {words['arm']}" if "arm" in words else ""
        else:
            limit = percent(self.limit) if unit == "share" else f"{number(self.limit)} {unit}"
            limit = time(int(self.limit)) if unit == "time" else limit
            text = f"{self.of.head()} {self.op} {limit}{self.of.tail()}"
        text += f" for each {self.each}" if self.each else ""
        return text if self.confidence is None else f"{text} with {percent(self.confidence)} confidence"


@dataclass(frozen=True)
class Recovery:
    """SLO ``recovery < 5s after kill-1`` on the time from the injection to the first calm period of ``for_us``.

    A period is calm if every record succeeds and latency quantile ``q`` is at most ``factor`` times that in ``steady``.
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
        return () if self.arm is None else (self.arm,)

    @property
    def windows(self) -> tuple[str | None, ...]:
        return (f"fault/{self.after}", "steady")

    @property
    def faults(self) -> tuple[str, ...]:
        return (self.after,)

    @property
    def spread(self) -> str:
        """Name of the quantile that has to be normal again, such as ``p95``."""
        return aggregate_name(self.q)

    @property
    def terms(self) -> str:
        """Definition of calm as written in an SLO, as in `` (p99 <= 3 * steady for 5s)``; empty for the default."""
        if (self.q, self.factor, self.for_us) == (Recovery.q, Recovery.factor, Recovery.for_us):
            return ""
        return f" ({self.spread} <= {number(self.factor)} * steady for {time(self.for_us)})"

    def needs(self) -> int:
        """Return the number of records that a recovery SLO needs in the phase ``steady``."""
        return quantile_needs(self.q)

    def check_id(self) -> str:
        """Return the check id ``slo/recovery-kill-1``, followed by quantile, factor and time if given in the SLO."""
        own = f"-{self.spread}-{number(self.factor)}-{time(self.for_us)}" if self.terms else ""
        return f"slo/recovery-{self.after}{own}"

    def __str__(self) -> str:
        arm = f" for {self.arm}" if self.arm else ""
        return f"recovery{self.terms} {self.op} {time(self.limit_us)} after {self.after}{arm}"


@dataclass(frozen=True)
class Count:
    """SLO ``lost == 0`` on the number of records that break an integrity rule, including permitted breaches."""

    rule: str
    op: Op
    limit: int
    arm: str | None = None

    side: ClassVar[None] = None
    windows: ClassVar[tuple[str | None, ...]] = (None,)
    faults: ClassVar[tuple[str, ...]] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        return () if self.arm is None else (self.arm,)

    def needs(self) -> int:
        return 1

    def check_id(self) -> str:
        return f"slo/{self.rule}"

    def __str__(self) -> str:
        return f"{self.rule} {self.op} {self.limit}" + (f" for {self.arm}" if self.arm else "")


Slo: TypeAlias = Measure | Recovery | Count
