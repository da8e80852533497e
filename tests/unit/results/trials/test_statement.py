"""The result of a statement depends on the position of the figure's whole interval."""

import pytest

from aftershock.results.trials.statement import Estimate, above, below, fact, report, within


def estimate(low: float | None, high: float | None, n: int = 8) -> Estimate:
    return Estimate(None if low is None or high is None else (low + high) / 2, low, high, n, "times")


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.2, 0.4, "confirmed"),
        (0.4, 0.6, "inconclusive"),
        (0.6, 0.9, "not seen"),
        (0.9, 1.2, "not seen"),
        (1.1, 1.4, "contradicted"),
        (0.4, 1.4, "inconclusive"),
    ],
)
def test_below(low: float, high: float, word: str) -> None:
    """A ratio that should be below a half: confirmed, not seen, inconclusive and contradicted cases."""
    assert word == below(estimate(low, high), 0.5).word


@pytest.mark.parametrize(("low", "high", "word"), [(0.8, 0.9, "confirmed"), (0.9, 1.1, "inconclusive")])
def test_below_one(low: float, high: float, word: str) -> None:
    """If the bound is 1, an interval around 1 neither confirms nor contradicts."""
    assert word == below(estimate(low, high), 1.0).word


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (4.5, 5.5, "confirmed"),
        (3.0, 5.0, "inconclusive"),
        (1.0, 3.0, "not seen"),
        (-1.0, 1.0, "not seen"),
        (-3.0, -1.0, "contradicted"),
    ],
)
def test_above(low: float, high: float, word: str) -> None:
    """Saved milliseconds that should be at least four."""
    assert word == above(estimate(low, high), 4.0).word


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.9, 1.1, "confirmed"),
        (0.7, 1.1, "inconclusive"),
        (0.5, 0.7, "contradicted"),
        (1.3, 1.5, "contradicted"),
    ],
)
def test_within(low: float, high: float, word: str) -> None:
    """An interval inside the margin confirms equivalence, one outside contradicts it, and any other decides nothing."""
    assert word == within(estimate(low, high), 0.8, 1.25).word


def test_too_few() -> None:
    """Five blocks decide nothing; figures of other units name their own minimum."""
    few = estimate(0.1, 0.2, n=5)
    assert ("inconclusive", "5 observations are too few; at least 6 are needed") == (
        below(few, 0.5).word,
        below(few, 0.5).why,
    )
    assert "confirmed" == below(few, 0.5, least=4).word
    assert {"inconclusive"} == {within(few, 0.1, 2).word, above(few, 0.05).word}


def test_no_interval() -> None:
    """A figure without an interval decides nothing."""
    assert {"inconclusive"} == {
        each.word for each in (below(estimate(None, None), 0.5), within(estimate(None, None), 0, 2))
    }


def test_facts() -> None:
    """A fact is confirmed or contradicted, and inconclusive if nothing was observed."""
    looked = Estimate(3, None, None, 3)
    assert ("confirmed", "contradicted") == (fact(True, looked, "").word, fact(False, looked, "").word)
    assert "inconclusive" == fact(None, looked, "").word
    assert "inconclusive" == fact(True, Estimate(None, None, None, 0), "").word
    assert "inconclusive" == report(looked, "").word
