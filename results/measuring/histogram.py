"""A histogram of latencies, and what is read off it: quantiles, ranks, the points of a plot. Pure.

Rules: exact; quantiles are nearest-rank, an observed value, and no sketch (those miss the tail of a fault by 12-100 %).
What is censored is slower than any value.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from aftershock.results.facts import Distribution
from aftershock.results.measuring.columns import Longs

Many = TypeVar("Many", int, Longs)
_HALVED = 4  # points for each halving of what is slower


@dataclass(frozen=True, eq=False)
class Histogram:
    """``seen[i]`` samples took ``latency_us[i]``, which rises; ``censored`` more have no value, and no ``bytes``."""

    latency_us: Longs
    seen: Longs
    censored: int
    bytes: int

    @cached_property
    def _upto(self) -> Longs:
        """How many took no longer."""
        return np.cumsum(self.seen)

    @cached_property
    def valued(self) -> int:
        """How many have a value."""
        return int(self.seen.sum())

    @property
    def n(self) -> int:
        """How many there are."""
        return self.valued + self.censored

    @property
    def slowest_us(self) -> int | None:
        """The greatest value, if there is any."""
        return int(self.latency_us[-1]) if self.valued else None

    @property
    def mean_us(self) -> float | None:
        """Of those that have a value."""
        return int(self.latency_us @ self.seen) / self.valued if self.valued else None

    @property
    def backwards(self) -> int:
        """How many took less than no time."""
        return int(self.seen[self.latency_us < 0].sum())

    def at_rank(self, rank: int) -> int | None:
        """The value at this rank, from 1; None where that is a censored one, or there is no such rank."""
        if not 1 <= rank <= self.valued:
            return None
        return int(self.latency_us[np.searchsorted(self._upto, rank)])

    def at(self, q: float) -> int | None:
        """The nearest-rank quantile; 1.0 is the maximum."""
        return self.at_rank(rank_of(q, self.n))

    def distribution(self, qs: Iterable[float]) -> Distribution:
        """What checks are told of it."""
        return Distribution(self.n, self.censored, self.slowest_us, {q: self.at(q) for q in qs}, self.mean_us)

    def points(self) -> tuple[tuple[float, int | None], ...]:
        """``(share, latency_us)`` to draw it by: that share took no longer. Four for each halving of what is slower.

        The slowest that is not censored is always there, and so is the end.
        """
        chosen = self._halvings(self._upto) > self._halvings(self._upto - self.seen)
        chosen[-1:] = True
        upto, latency_us = self._upto[chosen].tolist(), self.latency_us[chosen].tolist()
        end: list[tuple[float, int | None]] = [(1.0, None)] if self.censored else []
        return (*((some / self.n, one) for some, one in zip(upto, latency_us, strict=True)), *end)

    def _halvings(self, upto: Longs) -> npt.NDArray[np.float64]:
        """How often the slower part has halved, in quarters; of none that is slower, more than any."""
        halved: npt.NDArray[np.float64] = np.floor(_HALVED * np.log2(self.n / np.maximum(self.n - upto, 0.5)))
        return halved


def rank_of(q: float, n: Many) -> Many:
    """The rank of a quantile among ``n``, from 1. In whole numbers: as floats 0.07 * 100 is more than 7."""
    part, whole = _ratio(q)
    return -(-n * part // whole)


@cache
def _ratio(q: float) -> tuple[int, int]:
    return Fraction(repr(q)).as_integer_ratio()


def histogram(latency_us: Longs, n: Longs, sizes: Longs) -> Histogram:
    """Of counts ``n`` and their ``sizes`` in bytes by latencies in rising order, the censored behind them without one.

    One latency may be there several times.
    """
    valued = len(latency_us)
    first = np.flatnonzero(np.diff(latency_us, prepend=latency_us[:1] - 1))
    seen = np.add.reduceat(n[:valued], first) if valued else n[:0]
    return Histogram(latency_us[first], seen, int(n[valued:].sum()), int(sizes[:valued].sum()))
