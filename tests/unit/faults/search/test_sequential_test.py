"""The sequential test that recognises flakes: its error rates by exact computation and by simulation."""

import random
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from scipy.stats import binomtest

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


RATES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, *(number / 37 for number in range(1, 37)))


def chances(rate: float, runs_max: int) -> dict[Repeats, float]:
    """Return the exact probability of each final count if the test, or a time budget of ``runs_max`` runs, ends it."""
    found: dict[Repeats, float] = {}
    for runs in product((False, True), repeat=runs_max):
        so_far = Repeats()
        for failed in runs:
            if so_far.word is None:
                so_far = so_far.after(failed=failed)
        found[so_far] = found.get(so_far, 0.0) + rate ** sum(runs) * (1 - rate) ** (runs_max - sum(runs))
    return found


def coverage(rate: float, runs_max: int, interval: Callable[[Repeats], tuple[float, float]]) -> float:
    """Return the probability that the interval has the true rate, by sums over all sequences of runs."""
    ends = {counts: interval(counts) for counts in chances(0.5, runs_max)}
    return sum(
        chance for counts, chance in chances(rate, runs_max).items() if ends[counts][0] <= rate <= ends[counts][1]
    )


@pytest.mark.parametrize("runs_max", [1, 2, 3, 5, RUNS_MAX])
def test_the_interval_covers_the_rate(runs_max: int) -> None:
    """In at least 95 % of cases at every rate, also if the budget ends the repetition earlier."""
    assert min(coverage(rate, runs_max, lambda counts: counts.interval) for rate in RATES) >= 0.95


def test_an_interval_for_a_fixed_number_of_runs_does_not() -> None:
    """Wilson's interval, which took the number of runs as fixed, covered 0.3 and 0.7 in 87 %."""

    def wilson(counts: Repeats) -> tuple[float, float]:
        ends = binomtest(counts.failed, counts.n).proportion_ci(method="wilson")
        return ends.low, ends.high

    assert [0.87, 0.87] == pytest.approx([coverage(rate, RUNS_MAX, wilson) for rate in (0.3, 0.7)], abs=0.01)


def test_simulated_runs_are_covered() -> None:
    """The same by simulation: 4000 repetitions at each of seven rates."""
    source = random.Random(2)  # noqa: S311 -- repeatable on purpose
    ends = {counts: counts.interval for counts in chances(0.5, RUNS_MAX)}
    for rate in RATES[:7]:
        covered = 0
        for _ in range(4000):
            so_far = Repeats()
            while so_far.word is None:
                so_far = so_far.after(failed=source.random() < rate)
            low, high = ends[so_far]
            covered += low <= rate <= high
        assert covered / 4000 >= 0.95 - 3 * (0.95 * 0.05 / 4000) ** 0.5


@pytest.mark.parametrize("repeats", [Repeats(1, 1), Repeats(0, 1), Repeats(2, 2), Repeats(0, 2)])
def test_without_a_chance_to_stop_earlier_it_is_clopper_and_pearsons(repeats: Repeats) -> None:
    """Up to two runs the number of runs is fixed; SciPy's exact interval is the oracle."""
    ends = binomtest(repeats.failed, repeats.n).proportion_ci(method="exact")
    assert (ends.low, ends.high) == pytest.approx(repeats.interval, abs=1e-9)


def test_intervals_are_mirrored_and_in_order() -> None:
    """Failures and passes are treated alike; an earlier end as steady, or more failures, has a higher interval."""
    order = [Repeats(3, 8), Repeats(4, 8), Repeats(5, 8), Repeats(4, 6), Repeats(3, 4), Repeats(2, 2)]
    for one in order:
        mirrored = Repeats(one.n - one.failed, one.n)
        assert one.interval == pytest.approx([1 - end for end in reversed(mirrored.interval)], abs=1e-9)
    lows, highs = zip(*(one.interval for one in order), strict=True)
    assert (list(lows), list(highs)) == (sorted(lows), sorted(highs))
    assert "4 of 8 (95 % interval 0.13 to 0.87)" == str(Repeats(4, 8))


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
