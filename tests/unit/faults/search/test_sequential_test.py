"""The sequential test that recognises flakes: its error rates by exact computation and by simulation."""

import random
import re
from itertools import product
from pathlib import Path

import pytest

from aftershock.faults.search.sequential_test import P_FLAKE, P_STEADY, RUNS_MAX, Repeats


def counted(*failed: bool) -> Repeats:
    so_far = Repeats()
    for one in failed:
        assert so_far.word is None
        so_far = so_far.after(failed=one)
    return so_far


@pytest.mark.parametrize(
    ("failed", "word"),
    [
        ((), None),
        ((True,), None),
        ((True, True), "steady"),
        ((False, False), "flake"),
        ((True, False, True), None),
        ((True, False, True, True), "steady"),
        ((True, False) * 4, "flake"),
    ],
)
def test_when_the_test_ends(failed: tuple[bool, ...], word: str | None) -> None:
    """The test ends when one outcome leads by two, and at the eighth run at the latest."""
    assert word == counted(*failed).word


def test_error_rates_equal_those_of_the_docstring() -> None:
    """The oracle sums the probabilities of all sequences of runs, without the code of the test."""
    for rate, expected in ((P_FLAKE, 0.058), (P_STEADY, 1 - 0.069), (0.5, 0.469)):
        chance = chance_by_word(rate)
        assert chance["steady"] == pytest.approx(expected, abs=0.0005)
        assert {"steady", "flake"} == set(chance)


def chance_by_word(rate: float) -> dict[str, float]:
    """Return the exact probability of each result if a run fails with probability ``rate``, over all sequences."""
    chance = {"steady": 0.0, "flake": 0.0}
    for runs in product((False, True), repeat=RUNS_MAX):
        chance[str(played(runs))] += rate ** sum(runs) * (1 - rate) ** (RUNS_MAX - sum(runs))
    return chance


def played(runs: tuple[bool, ...]) -> str | None:
    so_far = Repeats()
    for run in runs:
        so_far = so_far.after(failed=run)
        if so_far.word:
            break
    return so_far.word


def test_deterministic_plans_are_always_recognised() -> None:
    """Two runs suffice."""
    assert {"steady": 1.0, "flake": 0.0} == chance_by_word(1.0)
    assert {"steady": 0.0, "flake": 1.0} == chance_by_word(0.0)


@pytest.mark.parametrize(
    ("repeats", "low", "high"),
    [(Repeats(2, 2), 0.342, 1.0), (Repeats(4, 8), 0.215, 0.785), (Repeats(0, 3), 0.0, 0.5615)],
)
def test_the_interval_is_wilsons(repeats: Repeats, low: float, high: float) -> None:
    """The interval equals SciPy's."""
    from scipy.stats import binomtest  # noqa: PLC0415 -- the oracle

    theirs = binomtest(repeats.failed, repeats.n).proportion_ci(method="wilson")
    assert (theirs.low, theirs.high) == pytest.approx(repeats.interval, abs=1e-6)
    assert (low, high) == pytest.approx(repeats.interval, abs=5e-4)


@pytest.mark.parametrize(("repeats", "tries"), [(Repeats(2, 2), 1), (Repeats(3, 4), 3), (Repeats(5, 8), 4)])
def test_rare_failures_are_repeated_more_often(repeats: Repeats, tries: int) -> None:
    """The number of runs leaves a probability of 5 % to miss the failure at its observed rate."""
    rate = repeats.failed / repeats.n
    assert tries == repeats.tries
    assert (1 - rate) ** tries <= 0.05 < (1 - rate) ** (tries - 1)


def test_without_runs_the_interval_is_zero_to_one() -> None:
    """The result has no word either."""
    assert ((0.0, 1.0), None) == (Repeats().interval, Repeats().word)


def test_simulated_flakes_have_the_computed_error_rate() -> None:
    """Ten thousand simulated flakes of 20 % are taken for steady as often as computed."""
    source = random.Random(1)  # noqa: S311 -- repeatable on purpose
    taken = 0
    for _ in range(10_000):
        so_far = Repeats()
        while so_far.word is None:
            so_far = so_far.after(failed=source.random() < P_FLAKE)
        taken += so_far.word == "steady"
    assert taken / 10_000 == pytest.approx(chance_by_word(P_FLAKE)["steady"], abs=0.01)


def test_the_page_has_the_computed_rates() -> None:
    """The table of docs/MINIMISE.md equals the computed figures."""
    page = (Path(__file__).parents[4] / "docs" / "MINIMISE.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (\d+) %[^|]*\| ([\d.]+) \| ([\d.]+) \|", page)
    chances = [chance_by_word(int(rate) / 100) for rate, _, _ in rows]
    assert [(f"{chance['steady']:.3f}", f"{chance['flake']:.3f}") for chance in chances] == [row[1:] for row in rows]
    assert 5 == len(rows)
