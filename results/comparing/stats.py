"""What two rows of numbers say of each other: a ratio, how sure it is, and whether it could be chance. Pure.

Numbers are a block's each (a quantile, a gap, a time to recover), lower is better, and None is slower than any. Rules:

* The unit is the block, never the record: the records of one stall are one event, and tests that count them raise
  false alarms in a third of all comparisons of a thing with itself.
* Everything is done on log-ratios, so that twice and half are as far from one. A ratio is ours by theirs.
* Paired blocks: Student's t, and beside it the exact test that flips signs, which assumes nothing but symmetry: all
  ``2^B`` flips up to 12 blocks, above that 100 000 drawn by a seed of the caller's.
* A pair with a None or a value that has no logarithm has no ratio, but may have a sign. Then nothing is estimated, and
  the signs alone are tested, where a pair without one speaks against whatever is claimed.
* Two groups without pairs: Welch's t on logarithms.
* "Equivalent" is shown by two one-sided tests (TOST) within a margin; that no difference was found shows nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.special import stdtr, stdtrit

EXACT_BLOCKS_MAX = 12
FLIPS = 100_000
_ROUNDING = 1e-12

Values: TypeAlias = Sequence[float | None]


@dataclass(frozen=True)
class Interval:
    """A ratio (a geometric mean) and where it lies with the confidence asked for."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Tested:
    """What the numbers say. ``p``: of a difference; ``p_equivalent``: of its being outside the margin.

    ``flips``: how many assignments of signs ``p_flip`` comes from, None where no signs were flipped. ``interval`` is
    None where no ratio can be estimated; then ``p`` is of the signs alone. ``direction``: -1 where ours is lower.
    """

    p: float
    direction: int
    interval: Interval | None = None
    p_equivalent: float | None = None
    p_flip: float | None = None
    flips: int | None = None


def paired(ours: Values, theirs: Values, margin: float, *, confidence: float = 0.95, seed: int = 0) -> Tested:
    """Blocks in pairs: the same place in both rows is the same block. At least two of them.

    ``margin`` > 1: ratios from ``1/margin`` to ``margin`` are as good as one.
    """
    signs = [_sign(one, other) for one, other in zip(ours, theirs, strict=True)]
    logs = [_log_ratio(one, other) for one, other in zip(ours, theirs, strict=True)]
    known = [log for log in logs if log is not None]
    if len(known) < len(logs):
        return Tested(sign_test(signs), _direction(sum(signs)))
    differences = np.array(known)
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(known))
    p_flip, flips = sign_flip(known, seed)
    return _t_test(mean, error, len(known) - 1, margin, confidence, p_flip, flips)


def welch(ours: Values, theirs: Values, margin: float, *, confidence: float = 0.95) -> Tested | None:
    """Two groups of blocks, at least two in each. None where a value has no logarithm: that leaves nothing."""
    logs = [[_log(value) for value in group] for group in (ours, theirs)]
    if any(log is None for group in logs for log in group):
        return None
    left, right = (np.array(group, dtype=float) for group in logs)
    parts = [float(group.var(ddof=1)) / len(group) for group in (left, right)]
    error = math.sqrt(sum(parts))
    spread = sum(part**2 / (len(group) - 1) for part, group in zip(parts, (left, right), strict=True))
    freedom = sum(parts) ** 2 / spread if spread else float(len(left) + len(right) - 2)
    return _t_test(float(left.mean() - right.mean()), error, freedom, margin, confidence)


def sign_flip(differences: Sequence[float], seed: int) -> tuple[float, int]:
    """Two-sided p of their mean if every sign were a toss of a coin, and how many assignments it comes from."""
    values = np.asarray(differences)
    bound = abs(values.sum()) - _ROUNDING * np.abs(values).sum()
    if len(values) <= EXACT_BLOCKS_MAX:
        flips = 1 << len(values)
        signs = 1.0 - 2.0 * ((np.arange(flips)[:, None] >> np.arange(len(values))) & 1)
        return float((np.abs(signs @ values) >= bound).mean()), flips
    drawn = np.random.default_rng(seed).integers(0, 2, (FLIPS, len(values)), dtype=np.int8)
    as_far = int((np.abs((1.0 - 2.0 * drawn) @ values) >= bound).sum())
    return (as_far + 1) / (FLIPS + 1), FLIPS  # the assignment that was seen is one of them


def sign_test(signs: Sequence[int]) -> float:
    """Two-sided p of so many signs of one kind; a 0 is of neither, and stays in the number of pairs."""
    most = max(sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs))
    tail = sum(math.comb(len(signs), k) for k in range(most, len(signs) + 1)) / (1 << len(signs))
    return min(1.0, 2 * tail)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """The p of several claims so that one in twenty *families* has a false one; None claims nothing, but is counted."""
    order = sorted((p, index) for index, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    least = 0.0
    for place, (p, index) in enumerate(order):
        least = adjusted[index] = min(1.0, max(least, p * (len(ps) - place)))
    return adjusted


def geometric_mean(values: Sequence[float]) -> float:
    """Of values above 0; of one the value itself, to the last digit."""
    return values[0] if len(values) == 1 else math.exp(math.fsum(map(math.log, values)) / len(values))


def _t_test(
    mean: float,
    error: float,
    freedom: float,
    margin: float,
    confidence: float,
    p_flip: float | None = None,
    flips: int | None = None,
) -> Tested:
    bound = math.log(margin)
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    interval = Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))
    p = 2 * _tail(abs(mean), error, freedom)
    p_equivalent = max(_tail(mean + bound, error, freedom), _tail(bound - mean, error, freedom))
    return Tested(p, _direction(mean), interval, p_equivalent, p_flip, flips)


def _tail(distance: float, error: float, freedom: float) -> float:
    """The chance of getting this far up. Without any noise it is sure, either way."""
    if error == 0:
        return 0.5 if distance == 0 else float(distance < 0)
    return float(stdtr(freedom, -distance / error))


def _direction(value: float) -> int:
    return (value > 0) - (value < 0)


def _log(value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise ValueError("not a number can't be compared; give None for what is slower than any")
    return math.log(value) if value is not None and value > 0 else None


def _log_ratio(ours: float | None, theirs: float | None) -> float | None:
    one, other = _log(ours), _log(theirs)
    return None if one is None or other is None else one - other


def _sign(ours: float | None, theirs: float | None) -> int:
    """Whether ours is lower (-1) or higher (1); 0 where they are the same, or both are slower than any."""
    one, other = (math.inf if value is None else value for value in (ours, theirs))
    return (one > other) - (one < other)
