"""The test that tells a flake: its error rates by exact computation, and by playing it."""

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
def test_when_it_is_over(failed: tuple[bool, ...], word: str | None) -> None:
    """When one sort leads by two; at the eighth run anyhow."""
    assert word == counted(*failed).word


def test_error_rates_are_what_the_docstring_says() -> None:
    """A plan that fails at these rates is called steady with these probabilities."""
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
    for one in runs:
        so_far = so_far.after(failed=one)
        if so_far.word:
            break
    return so_far.word


def test_what_always_or_never_fails_is_never_mistaken() -> None:
    """And known after two runs."""
    assert {"steady": 1.0, "flake": 0.0} == chance_by_word(1.0)
    assert {"steady": 0.0, "flake": 1.0} == chance_by_word(0.0)


@pytest.mark.parametrize(
    ("repeats", "low", "high"),
    [(Repeats(2, 2), 0.342, 1.0), (Repeats(4, 8), 0.215, 0.785), (Repeats(0, 3), 0.0, 0.5615)],
)
def test_the_interval_is_wilsons(repeats: Repeats, low: float, high: float) -> None:
    """Against scipy's."""
    from scipy.stats import binomtest  # noqa: PLC0415 -- the oracle

    theirs = binomtest(repeats.failed, repeats.n).proportion_ci(method="wilson")
    assert (theirs.low, theirs.high) == pytest.approx(repeats.interval, abs=1e-6)
    assert (low, high) == pytest.approx(repeats.interval, abs=5e-4)


@pytest.mark.parametrize(("repeats", "tries"), [(Repeats(2, 2), 1), (Repeats(3, 4), 3), (Repeats(5, 8), 4)])
def test_a_failure_that_comes_back_seldom_is_tried_more_often(repeats: Repeats, tries: int) -> None:
    """As often as leaves 5 % to miss it, at the rate that was seen."""
    rate = repeats.failed / repeats.n
    assert tries == repeats.tries
    assert (1 - rate) ** tries <= 0.05 < (1 - rate) ** (tries - 1)


def test_nothing_is_known_of_no_runs() -> None:
    """The whole interval, and no word."""
    assert ((0.0, 1.0), None) == (Repeats().interval, Repeats().word)


def test_played_flakes_are_told() -> None:
    """Ten thousand flakes of 20 %, played: as many are taken for steady as was computed."""
    source = random.Random(1)  # noqa: S311 -- repeatable on purpose
    taken = 0
    for _ in range(10_000):
        so_far = Repeats()
        while so_far.word is None:
            so_far = so_far.after(failed=source.random() < P_FLAKE)
        taken += so_far.word == "steady"
    assert taken / 10_000 == pytest.approx(chance_by_word(P_FLAKE)["steady"], abs=0.01)


def test_the_page_has_the_computed_rates() -> None:
    """docs/MINIMISE.md: no figure in its table was typed by hand."""
    page = (Path(__file__).parents[4] / "docs" / "MINIMISE.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (\d+) %[^|]*\| ([\d.]+) \| ([\d.]+) \|", page)
    chances = [chance_by_word(int(rate) / 100) for rate, _, _ in rows]
    assert [(f"{chance['steady']:.3f}", f"{chance['flake']:.3f}") for chance in chances] == [row[1:] for row in rows]
    assert 5 == len(rows)
