"""A run without blocks, cut into slices of time: the unit of what flows or drifts, where records are no unit at all.

Rules. A slice is as long as its neighbours, whole, and as many records long as the load makes it; its figure is one
number. Intervals are Student's, over slices. Neighbours are alike where a queue grows, so a mean over slices speaks of
this run's time, and a quantile of the whole is drawn again slice by slice (a block bootstrap), never record by record.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from aftershock.results.trials.statement import Estimate

SLICE_US = 10_000_000
RESAMPLES = 2_000
_PAIR = 2
_LINE = 3

Floats = NDArray[np.float64]


class Slice(NamedTuple):
    """Start inclusive, end exclusive, in microseconds of the run."""

    start_us: int
    end_us: int


def slices(start_us: int, end_us: int, every_us: int = SLICE_US) -> tuple[Slice, ...]:
    """The whole slices of a span; what is left over at its end is left out."""
    starts = range(start_us, end_us - every_us + 1, every_us)
    return tuple(Slice(start, start + every_us) for start in starts)


def mean(values: Sequence[float], unit: str, confidence: float = 0.95) -> Estimate:
    """The mean over slices, with Student's interval where there are two."""
    if len(values) < _PAIR:
        return Estimate(values[0] if values else None, None, None, len(values), unit, confidence)
    known = np.asarray(values, float)
    error = float(known.std(ddof=1)) / math.sqrt(len(known))
    return _around(float(known.mean()), error, len(known) - 1, len(known), unit, confidence)


def ratio(ours: Floats, theirs: Floats, confidence: float = 0.95) -> Estimate:
    """Ours by theirs, slice by slice: the geometric mean. No value is 0 or less."""
    found = mean(list(np.log(ours) - np.log(theirs)), "times", confidence)
    value, low, high = (None if each is None else math.exp(each) for each in (found.value, found.low, found.high))
    return Estimate(value, low, high, found.n, "times", confidence)


def slope(values: Sequence[float], unit: str, confidence: float = 0.95) -> Estimate:
    """How much the figure grows from one slice to the next, by least squares."""
    if len(values) < _LINE:
        return Estimate(None, None, None, len(values), unit, confidence)
    times, known = np.arange(len(values), dtype=float), np.asarray(values, float)
    off = times - times.mean()
    steep = float(off @ known / (off @ off))
    left = known - known.mean() - steep * off
    error = math.sqrt(float(left @ left) / (len(known) - 2) / float(off @ off))
    return _around(steep, error, len(known) - 2, len(known), unit, confidence)


def drawn_again(
    groups: Sequence[Sequence[Floats]],
    figure: Callable[[Sequence[Floats]], float | None],
    unit: str,
    seed: str,
    confidence: float = 0.95,
) -> Estimate:
    """A figure of several clients' records, whose interval comes from drawing whole slices again (percentiles).

    ``groups``: for each client the records of each slice, the same slices for all; ``figure`` of each client's records.
    """
    count = min(map(len, groups), default=0)
    value = figure([np.concatenate(group) for group in groups]) if count else None
    if value is None or count < _PAIR:
        return Estimate(value, None, None, count, unit, confidence)
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]))
    found = [_resampled(groups, figure, random.integers(0, count, count)) for _ in range(RESAMPLES)]
    known = [each for each in found if each is not None]
    tail = (1 - confidence) / 2
    low, high = (float(np.quantile(known, q)) for q in (tail, 1 - tail))
    return Estimate(value, low, high, count, unit, confidence)


def quantile(values: Floats, q: float) -> float:
    """Nearest rank, as everywhere here; infinity where that one is censored, not a number where there is none."""
    if not len(values):
        return math.nan
    return float(np.sort(values)[max(0, math.ceil(q * len(values)) - 1)])


def _resampled(
    groups: Sequence[Sequence[Floats]], figure: Callable[[Sequence[Floats]], float | None], places: NDArray[np.int64]
) -> float | None:
    return figure([np.concatenate([group[place] for place in places]) for group in groups])


def _around(value: float, error: float, freedom: int, n: int, unit: str, confidence: float) -> Estimate:
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    return Estimate(value, value - reach, value + reach, n, unit, confidence)
