"""The word for a figure is decided by where its whole interval lies."""

import pytest

from aftershock.results.trials.statement import Estimate, above, below, fact, report, within


def times(low: float | None, high: float | None, n: int = 8) -> Estimate:
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
    """Of a ratio that ought to be below a half: planted as claimed, half as claimed, too small, absent, contrary."""
    assert word == below(times(low, high), 0.5).word


@pytest.mark.parametrize(("low", "high", "word"), [(0.8, 0.9, "confirmed"), (0.9, 1.1, "inconclusive")])
def test_below_one(low: float, high: float, word: str) -> None:
    """Where the bound is no effect itself, an interval around it is no news of either kind."""
    assert word == below(times(low, high), 1.0).word


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
    """Of milliseconds saved that ought to be four at least."""
    assert word == above(times(low, high), 4.0).word


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
    """Equivalence is shown by an interval inside the margin, and refuted by one outside: no difference is neither."""
    assert word == within(times(low, high), 0.8, 1.25).word


def test_too_few() -> None:
    """Five blocks decide nothing, however clear they look; what has another unit says how few will do."""
    few = times(0.1, 0.2, n=5)
    assert ("inconclusive", "too few observations: 5 of 6") == (below(few, 0.5).word, below(few, 0.5).why)
    assert "confirmed" == below(few, 0.5, least=4).word
    assert {"inconclusive"} == {within(few, 0.1, 2).word, above(few, 0.05).word}


def test_no_interval() -> None:
    """A figure that can't be told is no evidence of anything."""
    assert {"inconclusive"} == {each.word for each in (below(times(None, None), 0.5), within(times(None, None), 0, 2))}


def test_facts() -> None:
    """What is so or not so is confirmed or contradicted, and nothing where nobody looked."""
    looked = Estimate(3, None, None, 3)
    assert ("confirmed", "contradicted") == (fact(True, looked, "").word, fact(False, looked, "").word)
    assert "inconclusive" == fact(None, looked, "").word
    assert "inconclusive" == fact(True, Estimate(None, None, None, 0), "").word
    assert "inconclusive" == report(looked, "").word
