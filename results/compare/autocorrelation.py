"""Autocorrelation of blocks, which decides how much a sequence of values tells about its mean.

Neighbouring blocks of one run share a machine, so a slow minute may slow several of them. If the value of a block
predicts a share ``r`` of the next value's deviation (lag-1 autocorrelation), n blocks tell less than n independent
ones: about n (1 - r) / (1 + r) (Bayley and Hammersley 1946; Zwiers and von Storch 1995). Student's t-test of
independent blocks then calls equal clients different in 30 % of comparisons at r = 0.6, instead of 5 %.

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

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

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
