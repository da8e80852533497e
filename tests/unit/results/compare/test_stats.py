"""The statistics agree with SciPy, and their rates of false alarms equal the nominal rates."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from aftershock.results.compare.statistics import FLIPS, geometric_mean, holm, paired, sign_flip, sign_test, welch
from aftershock.tests.noise import nights_apart, pairs

MARGIN = 1.25
values = st.floats(1, 1e7)
rows = st.integers(2, 12).flatmap(lambda n: st.tuples(*[st.lists(values, min_size=n, max_size=n)] * 2))


def count_max(rate: float, trials: int) -> float:
    """Return the largest count that chance explains at this rate: three standard deviations above the mean."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / trials)


@settings(max_examples=60, deadline=None)
@given(rows)
def test_paired_equals_scipy(both: tuple[list[float], list[float]]) -> None:
    """Ratio, p and interval of independent blocks equal SciPy's paired t-test on logarithms."""
    ours, theirs = both
    logs = np.log(ours), np.log(theirs)
    if np.ptp(logs[0] - logs[1]) < 1e-9:
        return
    tested, oracle = paired(ours, theirs, MARGIN, independent=True), scipy_stats.ttest_rel(*logs)
    low, high = oracle.confidence_interval(0.95)
    assert tested.interval is not None
    assert tested.p == pytest.approx(oracle.pvalue, rel=1e-6, abs=1e-12)
    assert math.log(tested.interval.low) == pytest.approx(low, abs=1e-6)
    assert math.log(tested.interval.high) == pytest.approx(high, abs=1e-6)
    assert tested.interval.ratio == pytest.approx(geometric_mean(ours) / geometric_mean(theirs))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=3, max_size=9))
def test_sign_flips_equal_scipy_permutations(differences: list[int]) -> None:
    """All 2^B assignments of signs give the p of SciPy's exact permutation test."""
    p, flips = sign_flip([float(difference) for difference in differences], 0)
    oracle = scipy_stats.permutation_test(
        (np.array(differences),), np.sum, permutation_type="samples", n_resamples=np.inf, vectorized=False
    )
    assert (1 << len(differences)) == flips
    assert p == pytest.approx(min(1.0, oracle.pvalue))


@settings(max_examples=40, deadline=None)
@given(st.lists(values, min_size=2, max_size=9), st.lists(values, min_size=2, max_size=9))
def test_welch_equals_scipy(ours: list[float], theirs: list[float]) -> None:
    """Groups of different sizes and variances are tested by Welch's test on logarithms; dependence raises p."""
    if min(np.ptp(np.log(ours)), np.ptp(np.log(theirs))) < 1e-6:
        return
    tested = welch(ours, theirs, MARGIN)
    oracle = scipy_stats.ttest_ind(np.log(ours), np.log(theirs), equal_var=False)
    assert tested is not None
    assert tested.p_independent == pytest.approx(oracle.pvalue, rel=1e-6, abs=1e-12)
    assert tested.p >= tested.p_independent - 1e-12


def test_equivalence_is_two_one_sided_tests() -> None:
    """TOST: p is the larger of SciPy's two one-sided tests against the ends of the margin."""
    rng = np.random.default_rng(4)
    ours, theirs = np.exp(rng.normal(0, 0.1, 8)), np.exp(rng.normal(0, 0.1, 8))
    logs = np.log(ours) - np.log(theirs)
    ends = ((-math.log(MARGIN), "greater"), (math.log(MARGIN), "less"))
    worse = max(scipy_stats.ttest_1samp(logs, end, alternative=side).pvalue for end, side in ends)
    assert paired(ours.tolist(), theirs.tolist(), MARGIN, independent=True).p_equivalent == pytest.approx(worse)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_against_its_definition(ps: list[float]) -> None:
    """A corrected p lies between p and its Bonferroni correction, in the order of p; a single p is unchanged."""
    adjusted = [p for p in holm(ps) if p is not None]
    order = np.argsort(ps, kind="stable")
    assert all(p <= one <= min(1, p * len(ps)) + 1e-12 for p, one in zip(ps, adjusted, strict=True))
    assert np.all(np.diff(np.array(adjusted)[order]) >= 0)
    assert holm([0.03]) == [0.03]


def test_holm_counts_untested_metrics() -> None:
    """A metric without p claims nothing but counts as one more test."""
    assert [0.03, None, 0.04] == holm([0.01, None, 0.02])


def test_sign_test_is_binomial() -> None:
    """The test is two-sided as in SciPy; a tie stays in the number of pairs and counts against any claim."""
    assert sign_test([-1] * 8) == pytest.approx(scipy_stats.binomtest(8, 8).pvalue)
    assert sign_test([-1] * 7 + [1]) == pytest.approx(scipy_stats.binomtest(7, 8).pvalue)
    assert sign_test([-1] * 7 + [0]) == sign_test([-1] * 7 + [1])
    assert 1.0 == sign_test([0] * 8)


def test_censored_values_leave_only_signs() -> None:
    """None is slower than any value: there is no ratio, but eleven equal signs suffice; two Nones are a tie."""
    slower = paired([None, *[5.0] * 9, None], [1.0] * 11, MARGIN)
    assert (None, 1, True) == (slower.interval, slower.direction, slower.p < 0.05)
    faster = paired([1.0] * 11, [None, *[5.0] * 10], MARGIN)
    assert (-1, True) == (faster.direction, faster.p < 0.05)
    both = paired([None, *[5.0] * 7], [None, *[1.0] * 7], MARGIN)
    assert both.p_independent == sign_test([0, *[1] * 7])
    assert None is welch([None, 1.0], [1.0, 2.0], MARGIN)


def test_zero_and_negative_have_no_ratio() -> None:
    """Zero and negative values have a sign; NaN is refused."""
    tested = paired([0.0, -1.0, *[1.0] * 6], [1.0] * 8, MARGIN)
    assert (None, -1) == (tested.interval, tested.direction)
    with pytest.raises(ValueError, match="NaN can't be compared"):
        paired([math.nan, 1.0], [1.0, 1.0], MARGIN)


def test_no_noise_at_all() -> None:
    """Identical values are equivalent; the same factor in every block is a certain difference."""
    same, double = paired([3.0] * 6, [3.0] * 6, MARGIN), paired([6.0] * 6, [3.0] * 6, MARGIN)
    assert (1.0, 0.0) == (same.p, same.p_equivalent)
    assert (0.0, 1.0) == (pytest.approx(double.p, abs=1e-30), double.p_equivalent)


def test_many_blocks_draw_their_sign_flips() -> None:
    """Above 12 blocks, signs are drawn: equal for equal seeds, and close to the t-test."""
    ours, theirs = pairs(np.random.default_rng(3), 16, 0.5)
    one, again, other = (paired(ours, theirs, MARGIN, seed=seed) for seed in (1, 1, 2))
    assert one == again != other
    assert FLIPS == one.flips
    assert one.p_flip == pytest.approx(one.p_independent, abs=0.02)


@settings(max_examples=30, deadline=None)
@given(rows, st.floats(0.01, 100))
def test_sides_and_units_do_not_matter(both: tuple[list[float], list[float]], unit: float) -> None:
    """Swapped sides invert the ratio and keep p; other units change nothing."""
    ours, theirs = both
    one, swapped = paired(ours, theirs, MARGIN), paired(theirs, ours, MARGIN)
    scaled = paired([value * unit for value in ours], [value * unit for value in theirs], MARGIN)
    for other, ratio in ((swapped, 1 / one.interval.ratio), (scaled, one.interval.ratio)):  # type: ignore[union-attr]
        assert other.interval is not None
        assert other.interval.ratio == pytest.approx(ratio, rel=1e-6)
        assert other.p == pytest.approx(one.p, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("blocks", [6, 8, 12])
def test_false_alarms_of_an_arm_compared_with_itself(blocks: int) -> None:
    """In 300 comparisons under realistic noise, at most 5 % differ by t-test and by signs."""
    rng, trials = np.random.default_rng(blocks), 300
    tested = [paired(*pairs(rng, blocks), MARGIN) for _ in range(trials)]
    assert sum(one.p <= 0.05 for one in tested) / trials <= count_max(0.05, trials)
    assert sum((one.p_flip or 0) <= 0.05 for one in tested) / trials <= count_max(0.05, trials)


def test_false_alarms_where_blocks_are_censored() -> None:
    """If a fifth of the blocks is censored on either side, the sign test alone decides, with no more false alarms."""
    rng, trials = np.random.default_rng(9), 400
    alarms = 0
    for _ in range(trials):
        ours, theirs = ([None if rng.random() < 0.2 else value for value in side] for side in pairs(rng, 8))
        alarms += paired(ours, theirs, MARGIN).p <= 0.05
    assert alarms / trials <= count_max(0.05, trials)


@pytest.mark.parametrize("sigma", [0.05, 0.15])
def test_false_equivalence(sigma: float) -> None:
    """A difference at the end of the margin is called equivalent in at most 5 % of 1000 trials."""
    rng, trials = np.random.default_rng(5), 1000
    result = 0
    for _ in range(trials):
        ours = MARGIN * np.exp(rng.normal(0, sigma, 8))
        result += (paired(ours.tolist(), np.exp(rng.normal(0, sigma, 8)).tolist(), MARGIN).p_equivalent or 0) <= 0.05
    assert result / trials <= count_max(0.05, trials)


@pytest.mark.parametrize(("blocks", "found"), [(8, 60), (12, 85)])
def test_power(blocks: int, found: int) -> None:
    """An arm that takes an eighth of the time is found in most comparisons of 8 blocks, in nearly all of 12."""
    rng = np.random.default_rng(8)
    result = [paired(*pairs(rng, blocks, 0.12), MARGIN) for _ in range(100)]
    assert sum(one.p <= 0.05 and one.direction < 0 for one in result) >= found


def test_a_slow_night_is_reported_as_a_change() -> None:
    """Blocks alone call two nights different, because a night that is 25 % slower counts as a change.

    Therefore no word is given without a control (test_comparison).
    """
    rng = np.random.default_rng(6)
    alarms = [welch(*nights_apart(rng, 8, 0.25, steady=True), MARGIN) for _ in range(60)]
    assert sum(alarm is not None and alarm.p <= 0.05 for alarm in alarms) > 30
