"""Ranks from paired differences: who is told apart, how often clients that are the same are, and the planted client."""

import numpy as np
import pytest

from aftershock.results.studies.ranks import Paired, explained, paired, rank
from aftershock.results.studies.recount import Unit, Value, Values
from aftershock.results.studies.suite import registered

SUITE = registered()
UNITS = [Unit(block, copy) for block in (1, 2) for copy in (0, 1, 2)]


def units(*seconds: float, healed: tuple[int, ...] = ()) -> dict[Unit, Value]:
    return {unit: Value(s, healed=n in healed) for n, (unit, s) in enumerate(zip(UNITS, seconds, strict=True))}


def ranked(values: dict[str, Values], counts_s: float = 0.5) -> dict[str, int]:
    found = rank(values, SUITE.units, SUITE.explained_min, counts_s)
    return {client: standing.rank for client, standing in found.standings.items()}


FAST = units(4.0, 4.1, 4.2, 5.0, 5.1, 5.2)
SLOWER = units(5.0, 5.1, 5.2, 6.0, 6.1, 6.2)
SLOWEST = units(34.0, 34.1, 34.2, 35.0, 35.1, 35.2)


def test_paired_differences_leave_out_what_a_repetition_did_to_all() -> None:
    assert Paired(pytest.approx(1.0), pytest.approx(1.0), pytest.approx(1.0), 6) == paired(SLOWER, FAST)
    assert paired(FAST, {Unit(9, 0): Value(1.0)}) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"a": FAST, "b": SLOWEST}, {"a": 1, "b": 2}),
        ({"a": FAST, "b": FAST, "c": SLOWEST}, {"a": 1, "b": 1, "c": 3}),
        # one difference of another sign, and the interval contains 0
        ({"a": FAST, "b": units(34.0, 34.1, 34.2, 35.0, 35.1, 5.1)}, {"a": 1, "b": 1}),
        # a second, in each of six units, and only 44 % of the variance: the cluster explains the larger part
        ({"a": units(3, 4, 5, 3, 4, 5), "b": units(4, 5, 6, 4, 5, 6)}, {"a": 1, "b": 1}),
        # too small to count
        ({"a": units(*[1.0] * 6), "b": units(*[1.4] * 6)}, {"a": 1, "b": 1}),
    ],
)
def test_clients_that_cannot_be_told_apart_share_a_rank(values: dict[str, Values], expected: dict[str, int]) -> None:
    assert expected == ranked(values)


def test_fewer_than_six_pairs_tell_nothing_apart() -> None:
    fewer = {unit: value for unit, value in SLOWEST.items() if unit != Unit(2, 2)}
    assert {"a": 1, "b": 1} == ranked({"a": FAST, "b": fewer})
    assert {} == ranked({"a": FAST})
    assert {} == ranked({})
    assert {} == ranked({"a": FAST, "b": {}})


def test_the_heal_bounds_a_difference_from_below() -> None:
    """Two clients that waited for the heal are equal; to one that did not, the difference is at least so much."""
    waited = units(*[90.0] * 6, healed=(0, 1, 2, 3, 4, 5))
    difference = paired(waited, FAST)
    assert difference
    assert (True, pytest.approx(85.4)) == (difference.at_least, difference.median_s)
    assert {"a": 1, "b": 2, "c": 2} == ranked({"a": FAST, "b": waited, "c": waited})
    assert paired(waited, waited) == Paired(0.0, 0.0, 0.0, 6)


def test_the_share_of_the_variance_is_that_of_the_clients() -> None:
    """The sums of squares of two clients with six units, counted by hand: 3 between the clients, 11 in all."""
    table = {"a": units(3, 4, 5, 3, 4, 5), "b": units(4, 5, 6, 4, 5, 6)}
    assert 3 / 11 == pytest.approx(explained(table))
    assert 1.0 == explained({"a": units(*[1.0] * 6), "b": units(*[2.0] * 6)})
    assert 0.0 == explained({"a": units(*[1.0] * 6), "b": units(*[1.0] * 6)})


def random_units(
    random: np.random.Generator, blocks_s: list[float], late_s: float = 0.0, noise_s: float = 0.3
) -> Values:
    return {
        Unit(block, copy): Value(s + late_s + float(random.gamma(2.0, noise_s)))
        for block, s in enumerate(blocks_s, 1)
        for copy in range(3)
    }


def test_clients_that_are_the_same_are_hardly_ever_told_apart() -> None:
    """Three copies in two repetitions that differ by seconds: at most 1 in 100 rows of three equal clients differs."""
    random = np.random.default_rng(7)
    wrong = 0
    for _ in range(1_000):
        blocks_s = list(random.uniform(2.0, 8.0, 2))
        values = {name: random_units(random, blocks_s, noise_s=1.0) for name in "abc"}
        wrong += max(ranked(values).values()) > 1
    assert wrong <= 10


AFFECTED = {row.id for row in SUITE.rows} - {"leader-slow", "leaders-moved", "member-dies"}


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_slow_client_is_last_where_it_is_slow_and_only_there(seed: int) -> None:
    """It sleeps for 5 s before it connects again, which three scenarios do not make it do; others differ by noise."""
    random = np.random.default_rng(seed)
    for row in SUITE.rows:
        blocks_s = list(random.uniform(3.0, 6.0, 2))
        late_s = 5.0 if row.id in AFFECTED else 0.0
        noise_s = 0.02 if row.figure == "p95" else 0.2
        values = {
            name: random_units(random, blocks_s, late_s * (name == "slow"), noise_s) for name in ("a", "b", "slow")
        }
        ranks = ranked(values, SUITE.counts_s[row.figure])
        assert ({"a": 1, "b": 1, "slow": 3} if late_s else {"a": 1, "b": 1, "slow": 1}) == ranks, row.id
