"""What a trial says: one statement a line of the result table, each with its figure, interval and word."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from aftershock.results.comparing.stats import Tested

Word: TypeAlias = Literal["confirmed", "not seen", "contradicted", "inconclusive"]
Role: TypeAlias = Literal["claim", "control", "report"]


@dataclass(frozen=True)
class Estimate:
    """A figure with where it lies. ``n`` counts blocks, moves or nodes, never records; None is what can't be told.

    ``confidence``: of the interval; 0.9 where equivalence is asked for, whose two one-sided tests it is the picture of.
    ``p``: of an exact test that flips the signs of the blocks, where there is one.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    unit: str = ""
    confidence: float = 0.95
    p: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, or None where one is not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Judged:
    """What the evidence says of one claim, and why in a sentence."""

    ours: Estimate
    word: Word
    why: str


@dataclass(frozen=True)
class Statement:
    """A claim beside what was measured. ``report``: shown, and decides nothing.

    ``published``: the figure in the KIP's own text; ``bound``: what ours must be for *confirmed*, in words.
    """

    id: str
    claim: str
    published: str
    bound: str
    ours: Estimate
    word: Word
    why: str
    role: Role


def ratio_of(tested: Tested, n: int, confidence: float = 0.95) -> Estimate:
    """The ratio of paired blocks; without an interval where a block has no value."""
    if (found := tested.interval) is None:
        return Estimate(None, None, None, n, "times", confidence, tested.p)
    return Estimate(found.ratio, found.low, found.high, n, "times", confidence, tested.p_flip)


def unknown(unit: str = "") -> Estimate:
    """Nothing was measured."""
    return Estimate(None, None, None, 0, unit)
