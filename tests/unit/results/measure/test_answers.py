"""Ranks of the confidence band of a quantile: equal to scipy.stats, without importing scipy.stats."""

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from aftershock.results.measure.answers import binomial_quantiles

ROUNDING = 1e-9


@given(
    st.integers(1, 10_000_000),
    st.sampled_from([0.001, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999]),
    st.sampled_from([0.005, 0.025, 0.05, 0.5, 0.95, 0.975, 0.995]),
)
def test_ranks_equal_scipy(n: int, q: float, p: float) -> None:
    """For any number of samples, the rank is the first with the required probability, up to rounding."""
    rank = int(binomial_quantiles(np.array(p), n, np.array(q)))
    assert binom.cdf(rank - 1, n, q) < p + ROUNDING
    assert binom.cdf(rank, n, q) > p - ROUNDING


def test_no_samples_have_no_rank() -> None:
    assert [0, 0] == binomial_quantiles(np.array([0.025, 0.975]), 0, np.array(0.99)).tolist()


def test_judging_does_not_import_scipy_stats() -> None:
    """The import would take a tenth of the time of a small judgement."""
    words = "import sys, aftershock.results.judge; sys.exit('scipy.stats' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", words], check=False).returncode
