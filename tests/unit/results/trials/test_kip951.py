"""Statements of KIP-951 from given runs: the effect, no effect, the opposite effect, and an invalid control."""

import pytest

from aftershock.results.trials.claim import Parts, state_claims, verdict
from aftershock.results.trials.kip951 import CLAIMS, plots
from aftershock.results.trials.statement import Word
from aftershock.tests.unit.results.trials.made import part

NOISE = (1.0, 1.1, 0.95, 1.05, 0.9, 1.0, 1.08, 0.97)
DRIFT = (1.0, 1.02, 1.01, 0.99, 0.98, 1.0, 1.03, 0.97)


def moves(name: str, both: float, neither: float, window: str = "fault/move") -> Parts:
    """Return a part: the arm with the KIP and the arm without have these latencies in ms; the rejected arm is
    as slow as the latter.
    """
    arms = {"both": both, "hints": both, "retry": neither, "neither": neither}
    drifts = {arm: DRIFT if arm == "both" else [1.0] * len(NOISE) for arm in arms}
    drawn = {f"moves/{arm}": [ms * a * b for a, b in zip(NOISE, drifts[arm], strict=True)] for arm, ms in arms.items()}
    return {name: part(name, drawn, window=window)}


def run(delayed: tuple[float, float], quick: tuple[float, float], killed: tuple[float, float]) -> Parts:
    return {
        **moves("delay-300", *delayed),
        **moves("delay-0", *quick, window="fault"),
        **moves("kill", *killed, window="fault/dead"),
    }


ALIKE = (3500.0, 3500.0)


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        (run((100, 700), (90, 180), ALIKE), "confirmed"),
        (run((100, 150), (90, 180), ALIKE), "not seen"),
        (run((300, 150), (90, 180), ALIKE), "contradicted"),
        (run((100, 700), (100, 100), ALIKE), "inconclusive"),
        (run((100, 700), (90, 180), (2000, 3500)), "inconclusive"),
        (run((100, 700), (180, 90), ALIKE), "contradicted"),
        (moves("delay-300", 100, 700), "inconclusive"),
    ],
)
def test_verdict(parts: Parts, word: Word) -> None:
    """Cases are the claim, half of it, the opposite, no delay at all, a biased control, and parts that were not run."""
    assert word == verdict(state_claims(CLAIMS, parts, {})).word


def test_p999_needs_enough_records() -> None:
    """With too few records the quantile is not shown, and the text has the number of records."""
    result = {state_claim.id: state_claim for state_claim in state_claims(CLAIMS, moves("delay-300", 100, 700), {})}[
        "classic-300"
    ]
    assert result.ours.value is None
    assert "10000 records" in result.why


def test_the_plot() -> None:
    """The plot has a panel per delay that was run and the arms' medians as text; without parts there is no plot."""
    (plot,) = plots(run((100, 700), (90, 180), ALIKE))
    assert "300 ms, both: median" in plot.svg
    assert "Metadata 0 ms late" in plot.svg
    assert () == plots({})
