"""Statements of KIP-951 from given runs: the effect, no effect, the opposite effect, and an invalid control."""

import pytest

from aftershock.results.compare import comparison
from aftershock.results.trials.claim import Parts, state_claims, verdict
from aftershock.results.trials.kip951 import REGISTRATION, UNDELAYED, plots
from aftershock.results.trials.statement import Word
from aftershock.tests.unit.results.trials.made import part


@pytest.fixture(autouse=True)
def _few_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the sign-flip test short: no word depends on its p-value."""
    monkeypatch.setattr(comparison, "FLIPS", 1_000)


NOISE = (1.0, 1.1, 0.95, 1.05, 0.9, 1.0, 1.08, 0.97)
DRIFT = (1.0, 1.02, 1 / 1.02, 1.01, 1 / 1.01, 1.03, 1 / 1.03)
DECIDING = [claim for claim in REGISTRATION.claims if claim.id in ("shared-300", "delay-300", "delay-0", "kill")]


def moves(name: str, both: float, neither: float, window: str = "fault/move", blocks: int = 24) -> Parts:
    """Return a part: the arm with the KIP and the arm without have these latencies in ms; the rejected arm is
    as slow as the latter.
    """
    arms = {"both": both, "hints": both, "retry": neither, "neither": neither}
    drawn = {
        f"moves/{arm}": [ms * NOISE[n % 8] * (DRIFT[n % 7] if arm == "both" else 1.0) for n in range(blocks)]
        for arm, ms in arms.items()
    }
    return {name: part(name, drawn, window=window)}


def run(delayed: tuple[float, float], quick: tuple[float, float], killed: tuple[float, float]) -> Parts:
    parts = {**moves("shared", *delayed), **moves("delay-300", *delayed)}
    for name in UNDELAYED:
        parts |= moves(name, *quick, window="fault", blocks=84)
    return {**parts, **moves("kill", *killed, window="fault/dead", blocks=8)}


ALIKE = (3500.0, 3500.0)


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        (run((100, 700), (90, 180), ALIKE), "confirmed"),
        (run((100, 150), (90, 180), ALIKE), "undecided"),
        (run((300, 150), (90, 180), ALIKE), "contradicted"),
        (run((100, 700), (100, 100), ALIKE), "undecided"),
        (run((100, 700), (90, 180), (2000, 3500)), "undecided"),
        (run((100, 700), (180, 90), ALIKE), "contradicted"),
        (moves("delay-300", 100, 700), "undecided"),
    ],
)
def test_verdict(parts: Parts, word: Word) -> None:
    """Cases are the claim, half of it, the opposite, no delay at all, a biased control, and parts that were not run."""
    assert word == verdict(state_claims(DECIDING, parts, {})).word


def test_moves_of_three_runs_are_one_sample() -> None:
    """The undelayed claim has 252 moves, more than one plan may repeat."""
    statements = {entry.id: entry for entry in state_claims(DECIDING, run((100, 700), (90, 180), ALIKE), {})}
    assert (252, "confirmed") == (statements["delay-0"].ours.n, statements["delay-0"].word)
    fewer = {**run((100, 700), (90, 180), ALIKE), **moves(UNDELAYED[0], 90, 180, "fault", blocks=50)}
    (short,) = [entry for entry in state_claims(DECIDING, fewer, {}) if entry.id == "delay-0"]
    assert ("undecided", True) == (short.word, "218 moves of 252 registered are too few" in short.why)


@pytest.mark.parametrize("claim", ["shared-300", "delay-300", "delay-0"])
def test_a_client_without_the_kip_confirms_nothing(claim: str) -> None:
    """Sabotage: both arms are clients without the KIP, so no effect appears."""
    parts = run((700, 700), (180, 180), ALIKE)
    (entry,) = [entry for entry in state_claims(DECIDING, parts, {}) if entry.id == claim]
    assert "undecided" == entry.word


def test_p999_needs_enough_records() -> None:
    """With too few records the quantile is not shown, and the text has the number of records."""
    result = {
        state_claim.id: state_claim
        for state_claim in state_claims(REGISTRATION.claims, moves("delay-300", 100, 700), {})
    }["classic-300"]
    assert result.ours.value is None
    assert "10000 records" in result.why


def test_the_plot() -> None:
    """The plot has a panel per delay that was run and the arms' medians as text; without parts there is no plot."""
    (plot,) = plots(run((100, 700), (90, 180), ALIKE))
    assert "300 ms, both: median" in plot.svg
    assert "Metadata 0 ms late" in plot.svg
    assert () == plots({})
