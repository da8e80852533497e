"""Words of comparisons where neighbouring blocks depend on each other: how often they are false, and what is found."""

from collections import Counter

import numpy as np
import pytest

from aftershock.results.compare import statistics
from aftershock.results.compare.blocks import Block, Measure
from aftershock.results.compare.comparison import LEVEL, Question, rows
from aftershock.results.compare.statistics import ASSUMED_MAX, dependence, effective, paired, same_sign, sign_test
from aftershock.tests.noise import Law, dependent

P95 = Measure("produce.latency", 0.95, "fault")
MARGIN = 1.25
FALSE_MAX = 0.07
"""Share of false words up to an autocorrelation of 0.6, as docs/COMPARE.md promises."""
TRIALS = 1500
DEVIATIONS = 2 * (FALSE_MAX * (1 - FALSE_MAX) / TRIALS) ** 0.5


@pytest.fixture(autouse=True)
def few_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign-flip test decides nothing; without it thousands of comparisons take seconds."""
    monkeypatch.setattr(statistics, "FLIPS", 1)
    monkeypatch.setattr(statistics, "EXACT_BLOCKS_MAX", 0)


def words(blocks: int, r: float, law: Law = "normal", ratio: float = 1.0, trials: int = TRIALS) -> Counter[str]:
    """Return how often each word is given to two arms of which the first takes ``ratio`` times as long."""
    rng, found = np.random.default_rng(1000 * blocks + round(100 * r)), Counter[str]()
    for _ in range(trials):
        sides = dependent(rng, blocks, r, law, ratio)
        ours, theirs = ({n: Block(value, 600) for n, value in enumerate(side, 1)} for side in sides)
        found[rows([Question(P95, ours, theirs)])[0].verdict] += 1
    return found


@pytest.mark.parametrize("law", ["normal", "lognormal", "heavier"])
@pytest.mark.parametrize("blocks", [6, 8, 12, 24, 60])
def test_false_words_of_dependent_blocks(blocks: int, law: Law) -> None:
    """At an autocorrelation of 0.6, an arm compared with itself is called different in at most 7 %."""
    found = words(blocks, 0.6, law)
    assert (found["improved"] + found["regressed"]) / TRIALS <= FALSE_MAX + DEVIATIONS


@pytest.mark.parametrize("blocks", [6, 12, 60])
def test_students_test_is_wrong_there(blocks: int) -> None:
    """The same comparisons by the test of independent blocks: three in ten are called different."""
    rng = np.random.default_rng(1000 * blocks + 60)
    alarms = [(paired(*dependent(rng, blocks, 0.6), MARGIN).p_independent or 0) <= LEVEL for _ in range(500)]
    assert 0.22 <= sum(alarms) / len(alarms) <= 0.40


@pytest.mark.parametrize("blocks", [6, 12, 24])
def test_false_equivalence_of_dependent_blocks(blocks: int) -> None:
    """A difference at the end of the margin is called equivalent in at most 7 %."""
    found = words(blocks, 0.6, "normal", MARGIN)
    assert found["equivalent"] / TRIALS <= FALSE_MAX + DEVIATIONS


@pytest.mark.parametrize(
    ("blocks", "ratio", "share"), [(6, 2.0, 0.75), (8, 2.0, 0.95), (12, 1.5, 0.9), (60, 1.25, 0.95)]
)
def test_differences_of_independent_blocks_are_found(blocks: int, ratio: float, share: float) -> None:
    """The caution leaves the power to find what is large compared with the noise of a block (about 20 %)."""
    assert words(blocks, 0.0, "normal", ratio, 300)["regressed"] / 300 >= share


def test_equivalence_of_independent_blocks_is_found() -> None:
    assert words(24, 0.0, trials=300)["equivalent"] / 300 >= 0.6


@pytest.mark.parametrize("blocks", [6, 9, 12, 24])
def test_false_words_where_blocks_are_censored(blocks: int) -> None:
    """Signs of dependent blocks alone: the same limit; six to ten blocks give no word."""
    rng, alarms = np.random.default_rng(blocks), 0
    for _ in range(TRIALS):
        ours, theirs = dependent(rng, blocks, 0.6)
        alarms += paired([None, *ours[1:]], theirs, MARGIN).p <= LEVEL
    assert alarms / TRIALS <= FALSE_MAX + DEVIATIONS
    assert alarms == 0 or blocks > 10


def test_the_sign_test_is_that_of_a_markov_chain() -> None:
    """Equal signs of n pairs have twice the probability of one sign and n - 1 repetitions."""
    for count in (6, 11, 30):
        assert sign_test([1] * count, 0.7) == pytest.approx(0.7 ** (count - 1))
        assert sign_test([1] * count) == pytest.approx(0.5 ** (count - 1))
    assert [True, False] == [sign_test([-1] * n, same_sign(ASSUMED_MAX)) <= LEVEL for n in (11, 10)]
    rng = np.random.default_rng(1)
    stays = rng.random((40_000, 8)) < 0.7
    chains = np.cumprod(np.where(stays, 1, -1), axis=1)  # the first column draws the first sign, up to symmetry
    observed = np.abs((chains > 0).sum(axis=1) - 4) >= 3
    assert sign_test([1] * 7 + [-1], 0.7) == pytest.approx(observed.mean(), abs=0.01)


@pytest.mark.parametrize("r", [0.1, 0.6, 0.95])
@pytest.mark.parametrize("n", [2, 6, 24, 100])
def test_the_effective_sample_is_that_of_the_covariance_matrix(n: int, r: float) -> None:
    """The oracle multiplies matrices: the variance of the mean, and the moments of the sample variance."""
    places = np.arange(n)
    covariance = r ** np.abs(places[:, None] - places)
    centred = (np.eye(n) - 1 / n) @ covariance
    expected_variance = np.trace(centred) / (n - 1)
    inflation = covariance.sum() / n / expected_variance
    freedom = np.trace(centred) ** 2 / np.trace(centred @ centred)
    assert (inflation, freedom) == pytest.approx(effective(n, r))
    assert (1.0, n - 1) == effective(n, 0.0)


@pytest.mark.parametrize("r", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("n", [12, 24, 60])
def test_the_estimate_is_hardly_biased(n: int, r: float) -> None:
    """The mean estimate misses the autocorrelation by 0.12 at most, the uncorrected one by 0.3."""
    rng = np.random.default_rng(n)
    found = [dependence([np.array(dependent(rng, n, r)[0])]) for _ in range(800)]
    assert r - 0.12 <= np.mean([one.estimate for one in found]) <= r + 0.03
    assert np.mean([one.assumed >= r for one in found]) >= 0.85


def test_what_is_assumed() -> None:
    """Six blocks in a saw-tooth exclude dependence, six in a slope do not; the limit holds unless the estimate does."""
    saw, slope = np.array([1.0, -1.0] * 30), np.arange(60.0)
    assert dependence([saw]).assumed == 0.0
    assert dependence([slope]).assumed == dependence([slope]).estimate > ASSUMED_MAX
    assert ASSUMED_MAX == dependence([np.array([1.0, 2.0, 1.5, 3.0, 2.5, 1.0])]).assumed
    assert (0.0, True) == (dependence([np.ones(8)]).estimate - 1 / 8, dependence([np.ones(8)]).assumed > 0)


def test_the_reason_names_the_dependence() -> None:
    """A drift of one arm is significant for independent blocks, and undecided; the same values in disorder are not."""
    drift = [1.0, 1.1, 1.25, 1.4, 1.55, 1.7, 1.8, 1.9]
    theirs = {n: Block(40_000.0, 600) for n in range(1, 9)}
    (answer,) = rows([Question(P95, {n: Block(40_000 * v, 600) for n, v in enumerate(drift, 1)}, theirs)])
    assert "inconclusive" == answer.verdict
    assert "8 blocks do not exclude that neighbours resemble each other (autocorrelation up to 0." in answer.why
    mixed = [1.0, 1.9, 1.1, 1.8, 1.25, 1.7, 1.4, 1.55]
    (answer,) = rows([Question(P95, {n: Block(40_000 * v, 600) for n, v in enumerate(mixed, 1)}, theirs)])
    assert ("regressed", 0.0) == (answer.verdict, answer.autocorrelation_assumed)
