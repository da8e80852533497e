"""Figures of slices, against numbers worked out by hand or by scipy."""

import numpy as np
import pytest
from scipy import stats

from aftershock.results.trials.part import Slice, bootstrap, mean, quantile, ratio, slices, slope


def test_only_whole_slices() -> None:
    """What is left over at the end of a span is in no slice, so all are alike long."""
    assert (Slice(5, 15), Slice(15, 25)) == slices(5, 34, 10)


def test_mean_is_students() -> None:
    """The interval is that of scipy's one-sample t, at either confidence."""
    values = [30.0, 34, 31, 36, 33]
    for confidence in (0.95, 0.9):
        found = mean(values, "%", confidence)
        low, high = stats.ttest_1samp(values, 0).confidence_interval(confidence)
        assert (pytest.approx(low), pytest.approx(high), 5) == (found.low, found.high, found.n)


def test_one_slice_has_no_interval() -> None:
    """One slice says nothing of how slices differ."""
    assert (7.0, None, 1) == (mean([7.0], "").value, mean([7.0], "").interval, mean([7.0], "").n)


def test_slope_is_least_squares() -> None:
    """Slope and interval are those of scipy's regression."""
    values = [1.0, 2.5, 2, 4, 5.5]
    found, oracle = slope(values, ""), stats.linregress(range(5), values)
    reach = stats.t.ppf(0.975, 3) * oracle.stderr
    assert (pytest.approx(oracle.slope), pytest.approx(oracle.slope - reach)) == (found.value, found.low)


def test_ratio_is_geometric() -> None:
    """Twice and half are as far from one: their mean is one."""
    found = ratio(np.array([2.0, 1, 4]), np.array([1.0, 2, 4]))
    assert pytest.approx(1.0) == found.value


def test_slices_are_drawn_whole() -> None:
    """Where every slice has the same records the interval is a point, however few or many they are."""
    same = [np.array([1.0, 2, 3, 100])] * 6
    found = bootstrap([same], lambda group: quantile(group[0], 0.5), "", "seed")
    assert (2.0, 2.0, 2.0, 6) == (found.value, found.low, found.high, found.n)


def test_a_drift_is_in_the_interval() -> None:
    """Where slices differ, the quantile of the whole is less sure than its many records would have it."""
    drifting = [np.full(1000, float(place)) for place in range(10)]
    found = bootstrap([drifting], lambda group: quantile(group[0], 0.5), "", "seed")
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low >= 2


def test_a_censored_quantile() -> None:
    """A quantile that falls to a failed record is infinite; below it, it is the value that was seen."""
    assert (3.0, np.inf) == (quantile(np.array([1.0, np.inf, 3]), 0.5), quantile(np.array([1.0, np.inf, 3]), 0.99))
