"""Figures of slices, compared with values computed by hand or by SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from aftershock.results.studies.part import (
    Slice,
    bootstrap,
    client_settings,
    mean,
    median,
    quantile,
    ratio,
    slices,
    slope,
)


def test_settings_that_are_not_defaults_are_named() -> None:
    """Those of all arms first, then those of some; workloads and arms that are alike are named together."""
    default = {"acks": "all", "idempotence": True, "linger_ms": 5, "deadline_ms": 120_000}
    plain, small = {"client": "java", "settings": {}}, {"client": "java", "settings": {"batch.size": 2048}}
    reads = {"arms": {"java": plain}, "consume": {}, "produce": None}
    workloads = [
        {"name": "writes", "arms": {"java": plain}, "produce": default},
        {
            "name": "quick",
            "arms": {"a": small, "b": small, "c": {"client": "reference", "settings": {}}},
            "produce": default | {"linger_ms": 0, "acks": "1", "idempotence": False},
        },
        {"name": "reads", **reads},
        {"name": "others", **reads},
    ]
    assert client_settings(workloads) == (
        "writes and reads and others: java with default settings; quick: java and reference with acks=1, "
        "enable.idempotence=false, linger.ms=0, a and b also batch.size=2048"
    )


def test_the_setting_of_an_arm_that_replaces_one_of_all_arms_is_named() -> None:
    arms = {"a": {"client": "java", "settings": {}}, "b": {"client": "java", "settings": {"linger.ms": 50}}}
    produce = {"acks": "all", "idempotence": True, "linger_ms": 0, "deadline_ms": 120_000}
    text = client_settings([{"name": "moves", "arms": arms, "produce": produce}])
    assert text == "moves: java with linger.ms=0, b also linger.ms=50"


def test_only_whole_slices() -> None:
    """The remainder of a span is in no slice, so all slices have the same length."""
    assert (Slice(5, 15), Slice(15, 25)) == slices(5, 34, 10)


def test_the_mean_has_a_student_t_interval() -> None:
    """The interval equals SciPy's one-sample t interval at both confidence levels."""
    values = [30.0, 34, 31, 36, 33]
    for confidence in (0.95, 0.9):
        result = mean(values, "%", confidence)
        low, high = stats.ttest_1samp(values, 0).confidence_interval(confidence)
        assert (pytest.approx(low), pytest.approx(high), 5) == (result.low, result.high, result.n)


def test_one_slice_has_no_interval() -> None:
    """One slice does not show how much slices differ."""
    assert (7.0, None, 1) == (mean([7.0], "").value, mean([7.0], "").interval, mean([7.0], "").n)


def test_slope_is_least_squares() -> None:
    """Slope and interval equal SciPy's linear regression."""
    values = [1.0, 2.5, 2, 4, 5.5]
    result, oracle = slope(values, ""), stats.linregress(range(5), values)
    reach = stats.t.ppf(0.975, 3) * oracle.stderr
    assert (pytest.approx(oracle.slope), pytest.approx(oracle.slope - reach)) == (result.value, result.low)


def test_ratio_is_geometric() -> None:
    """Ratios of 2 and 1/2 have the mean 1."""
    result = ratio(np.array([2.0, 1, 4]), np.array([1.0, 2, 4]))
    assert pytest.approx(1.0) == result.value


def test_slices_are_drawn_whole() -> None:
    """If every slice has the same records, the bootstrap interval is a point for any number of records."""
    same = [np.array([1.0, 2, 3, 100])] * 6
    result = bootstrap([same], lambda group: quantile(group[0], 0.5), "", "seed")
    assert (2.0, 2.0, 2.0, 6) == (result.value, result.low, result.high, result.n)


def test_a_drift_widens_the_interval() -> None:
    """If slices differ, the interval of the quantile is wider than the number of records suggests."""
    drifting = [np.full(1000, float(place)) for place in range(10)]
    result = bootstrap([drifting], lambda group: quantile(group[0], 0.5), "", "seed")
    assert result.low is not None
    assert result.high is not None
    assert result.high - result.low >= 2


def test_a_censored_quantile() -> None:
    """A quantile that is a failed record is infinite; a lower quantile is its observed value."""
    assert (3.0, np.inf) == (quantile(np.array([1.0, np.inf, 3]), 0.5), quantile(np.array([1.0, np.inf, 3]), 0.99))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 10.0, 3.0, 2.0], 2.5),
        ([3.0, 1.0, 2.0], 2.0),
        ([1.0, math.inf], math.inf),
        ([1.0, 2.0, math.inf], 2.0),
        ([math.inf, math.inf], math.inf),
    ],
)
def test_medians_of_even_samples_are_in_the_middle(values: list[float], expected: float) -> None:
    """The nearest-rank p50 of an even sample is its lower middle value; censored values are infinite."""
    assert expected == median(np.array(values))
    assert quantile(np.array([1.0, 10.0, 3.0, 2.0]), 0.5) == 2.0
    assert math.isnan(median(np.array([])))
