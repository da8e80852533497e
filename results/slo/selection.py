"""What is measured, when, and of whom: one side of an SLO."""

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from aftershock.results.slo.figures import aggregate_name, percent, time
from aftershock.results.slo.words import METRICS, Aggregate, Metric

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
