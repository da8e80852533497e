"""Tests of two clients' values by block of the plan, and the autocorrelation of blocks that the tests assume.

Tests use the logarithm of the ratio of the two clients' values. Blocks are paired if both clients suffered the same
fault at the same time; pairs are tested with Student's t-test, unpaired groups of blocks with Welch's. Neither takes
neighbouring blocks for independent: errors and degrees of freedom are those of blocks with the autocorrelation that the
values do not exclude. The exact sign-flip test, which is shown beside and decides nothing, assumes independent blocks
with symmetric differences.

A block without a value (no success, no calm period) counts as slower than any value; no ratio is estimated then, and
only the signs of the differences are tested. Equal signs of neighbours say little, and signs alone tell nothing of
their dependence, so the largest autocorrelation is assumed: 11 equal signs decide, 10 do not. A pair of blocks with
equal values counts as evidence against both directions.

Only ``scipy.special`` is imported, because the import of ``scipy.stats`` takes a second.

**Autocorrelation.** Neighbouring blocks of one run share a machine, so a slow minute may slow several of them. If the
value of a block predicts a share ``r`` of the next value's deviation (lag-1 autocorrelation), n blocks tell less than n
independent ones: about n (1 - r) / (1 + r) (Bayley and Hammersley 1946; Zwiers and von Storch 1995). Student's t-test
of independent blocks then calls equal clients different in 30 % of comparisons at r = 0.6, instead of 5 %.

**The estimate alone is not enough.** The lag-1 autocorrelation of six blocks has a standard error of 0.4 and is biased
downwards, by (1 + 3r) / n (Kendall 1954; Marriott and Pope 1954). A test that trusts the estimate is wrong in 17 % of
comparisons of six blocks. Therefore a test assumes the upper 95 % bound of the corrected estimate, at most
``ASSUMED_MAX`` (see there), but never less than the estimate itself. Zwiers and von Storch solve the same problem by a
table of critical values for each n and estimate, from simulations of first-order autoregressive series.

**Variance and freedom.** For an assumed r both follow exactly from the covariances of such a series: the variance of
the mean is that of independent values times ``inflation``, and the sample variance, which is too small, is corrected.
Student's degrees of freedom are those of a chi-square with the same mean and variance as the sample variance
(Satterthwaite 1946). A negative autocorrelation makes tests more certain, but is not credited.

``docs/COMPARE.md`` has the measured error rates, and what the caution costs where blocks are independent.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Floats: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Sequence[float | None]

EXACT_BLOCKS_MAX = 12
FLIPS = 100_000
_ROUNDING = 1e-12
ASSUMED_MAX = 0.65
"""Largest autocorrelation that is assumed for a smaller estimate.

Words of comparisons must be false in at most 7 % at an autocorrelation of 0.6. With a limit of 0.6, six blocks are
wrong in 7.2 %, with 0.65 in 6.5 %; a higher limit costs six blocks the power to call anything different.
"""
ESTIMATE_MAX = 0.95
"""Limit of an estimate; a series of 100 blocks that is closer to a random walk tells nothing of its mean."""
BOUND = 1.645
"""Standard errors of the one-sided 95 % bound; the standard error of the estimate is at most ``1 / sqrt(n)``."""


class Dependence(NamedTuple):
    """Lag-1 autocorrelation: the corrected estimate, and the value that a test assumes."""

    estimate: float
    assumed: float


INDEPENDENT = Dependence(0.0, 0.0)


class Effective(NamedTuple):
    """How far the usual standard error of a mean is too small (its square: ``inflation``), and degrees of freedom."""

    inflation: float
    freedom: float


def dependence(groups: Sequence[Floats], most: float = ASSUMED_MAX) -> Dependence:
    """Return the autocorrelation of sequences with a mean of their own; ``most`` limits what is assumed."""
    deviations = [group - group.mean() for group in groups]
    count, squares = sum(map(len, groups)), sum(float(part @ part) for part in deviations)
    products = sum(float(part[1:] @ part[:-1]) for part in deviations)
    raw = products / squares if squares else 0.0
    estimate = min(raw + len(groups) * (1 + 3 * raw) / count, ESTIMATE_MAX)
    upper = min(estimate + BOUND / math.sqrt(count), most)
    return Dependence(estimate, max(0.0, upper, estimate))


def effective(n: int, r: float) -> Effective:
    """Return what an autocorrelation ``r`` leaves of a sample of ``n`` values (n > 1)."""
    if r == 0:
        return Effective(1.0, n - 1)
    lags = np.arange(n)
    decay = r**lags
    sums = (1 - decay * r) / (1 - r) + (1 - (decay * r)[::-1]) / (1 - r) - 1  # row sums of the correlation matrix
    mean = float(sums.sum()) / n  # variance of the mean, relative to that of independent values
    # traces of the centred correlation matrix and of its square
    trace = n - mean
    all_squares = n + 2 * float((n - lags[1:]) @ decay[1:] ** 2)
    square = all_squares - 2 * float(sums @ sums) / n + mean**2
    return Effective(mean * (n - 1) / trace, trace**2 / square)


def same_sign(r: float) -> float:
    """Return the probability that two normal values with correlation ``r`` have the same sign (Sheppard 1899)."""
    return 0.5 + math.asin(r) / math.pi


@dataclass(frozen=True)
class Interval:
    """Ratio of two clients' values (a geometric mean) and its confidence interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Tested:
    """P-values of a comparison of two clients, for a difference (``p``, ``p_flip``) and for equivalence.

    ``flips`` is the number of sign assignments from which ``p_flip`` was computed. Without an ``interval`` no ratio
    could be estimated, and ``p`` is the p-value of a sign test. ``direction`` is -1 if the first client's values are
    lower. ``p_independent`` is ``p`` if blocks were independent.
    """

    p: float
    direction: int
    interval: Interval | None = None
    p_equivalent: float | None = None
    p_flip: float | None = None
    flips: int | None = None
    p_independent: float | None = None
    dependence: Dependence | None = None


def paired(
    ours: Values, theirs: Values, margin: float, *, confidence: float = 0.95, seed: int = 0, independent: bool = False
) -> Tested:
    """Test two or more pairs of values, each pair from one block of the plan and at one index of both sequences.

    Ratios from ``1/margin`` to ``margin`` (``margin`` > 1) count as equivalent to 1. The pairs are in order of time;
    with ``independent`` their autocorrelation is not taken into account.
    """
    logs = list(zip(map(_log, ours), map(_log, theirs), strict=True))
    ratios = [our_log - their_log for our_log, their_log in logs if our_log is not None and their_log is not None]
    if len(ratios) < len(logs):
        signs = []  # -1 if ours is lower; 0 if both are equal or slower than any
        for pair in zip(ours, theirs, strict=True):
            left, right = (math.inf if value is None else value for value in pair)
            signs.append((left > right) - (left < right))
        p_independent = sign_test(signs)
        p = p_independent if independent else sign_test(signs, same_sign(ASSUMED_MAX))
        return Tested(p, _direction(sum(signs)), p_independent=p_independent)
    differences = np.array(ratios)
    found = INDEPENDENT if independent else dependence([differences])
    count = len(ratios)
    sample = _Sample(float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(count), count - 1)
    inflation, freedom = effective(count, found.assumed)
    cautious = _Sample(sample.mean, sample.error * math.sqrt(inflation), freedom)
    p_flip, flips = sign_flip(ratios, seed)
    tested = _t_test(cautious, margin, confidence)
    return replace(tested, p_flip=p_flip, flips=flips, p_independent=sample.p, dependence=found)


def welch(ours: Values, theirs: Values, margin: float, *, confidence: float = 0.95) -> Tested | None:
    """Test two unpaired groups of at least two blocks each with Welch's t-test.

    Returns None if a block's value has no logarithm, because then no test applies.
    """
    logs = [[_log(value) for value in group] for group in (ours, theirs)]
    if any(log is None for group in logs for log in group):
        return None
    left, right = (np.array(group, dtype=float) for group in logs)
    found = dependence([left, right])
    sample, cautious = (_difference_of_means(left, right, r) for r in (0.0, found.assumed))
    return replace(_t_test(cautious, margin, confidence), p_independent=sample.p, dependence=found)


def _difference_of_means(left: Floats, right: Floats, r: float) -> "_Sample":
    """Return the difference of two groups' means, with Welch's error and degrees of freedom at autocorrelation r."""
    known = [effective(len(group), r) for group in (left, right)]
    parts = [float(g.var(ddof=1)) / len(g) * of.inflation for g, of in zip((left, right), known, strict=True)]
    spread = sum(part**2 / of.freedom for part, of in zip(parts, known, strict=True))
    freedom = sum(parts) ** 2 / spread if spread else float(len(left) + len(right) - 2)
    return _Sample(float(left.mean() - right.mean()), math.sqrt(sum(parts)), freedom)


def sign_flip(differences: Sequence[float], seed: int) -> tuple[float, int]:
    """Return the two-sided p-value of the sign-flip test of the mean, and the number of sign assignments tried.

    With up to 12 differences all ``2^n`` sign assignments are tried, with more 100 000 assignments drawn with ``seed``.
    """
    values = np.asarray(differences)
    bound = abs(values.sum()) - _ROUNDING * np.abs(values).sum()
    if len(values) <= EXACT_BLOCKS_MAX:
        flips = 1 << len(values)
        signs = 1.0 - 2.0 * ((np.arange(flips)[:, None] >> np.arange(len(values))) & 1)
        return float((np.abs(signs @ values) >= bound).mean()), flips
    drawn = np.random.default_rng(seed).integers(0, 2, (FLIPS, len(values)), dtype=np.int8)
    as_far = int((np.abs((1.0 - 2.0 * drawn) @ values) >= bound).sum())
    return (as_far + 1) / (FLIPS + 1), FLIPS  # the observed assignment is one of them


def seed_of(text: str) -> int:
    """Return a seed for random signs and samples that depends only on the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def sign_test(signs: Sequence[int], same: float = 0.5) -> float:
    """Return the two-sided p-value of the sign test; a difference of 0 counts as a pair, but for neither direction.

    ``same`` is the probability that neighbours have the same sign: 0.5 of independent pairs, more of a Markov chain.
    """
    count = len(signs)
    most = max(sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs))
    # probabilities by number of positive signs, with the last sign positive or negative
    up, down = np.zeros(count + 1), np.zeros(count + 1)
    up[1] = down[0] = 0.5
    for _ in range(count - 1):
        up, down = np.roll(same * up + (1 - same) * down, 1), same * down + (1 - same) * up
    return min(1.0, 2 * float((up + down)[most:].sum()))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return p-values with Holm's correction; a metric without a test (None) counts in the number of tests."""
    order = sorted((p, index) for index, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, index) in enumerate(order):
        least = adjusted[index] = min(1.0, max(least, p * (len(ps) - rank)))
    return adjusted


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values; a single value is returned unchanged, without rounding errors."""
    return values[0] if len(values) == 1 else math.exp(math.fsum(map(math.log, values)) / len(values))


class _Sample(NamedTuple):
    """Mean of a sample of log-ratios, its standard error and degrees of freedom."""

    mean: float
    error: float
    freedom: float

    @property
    def p(self) -> float:
        """Two-sided p-value of Student's test of a mean of 0."""
        return 2 * _tail(abs(self.mean), self.error, self.freedom)


def _t_test(sample: _Sample, margin: float, confidence: float) -> Tested:
    mean, error, freedom = sample
    bound = math.log(margin)
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    interval = Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))
    p_equivalent = max(_tail(mean + bound, error, freedom), _tail(bound - mean, error, freedom))
    return Tested(sample.p, _direction(mean), interval, p_equivalent)


def _tail(distance: float, error: float, freedom: float) -> float:
    """Return the upper tail probability of Student's t for ``distance / error``, or 0, 0.5 or 1 if ``error`` is 0."""
    if error == 0:
        return 0.5 if distance == 0 else float(distance < 0)
    return float(stdtr(freedom, -distance / error))


def _direction(value: float) -> int:
    return (value > 0) - (value < 0)


def _log(value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise ValueError("NaN can't be compared; use None for a value slower than any")
    return math.log(value) if value is not None and value > 0 else None
