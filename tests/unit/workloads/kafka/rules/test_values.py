from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.values import Backoff


def seeded(initial_ms: float, max_ms: float, seed: int = 3) -> Backoff:
    return Backoff(initial_ms, max_ms, Random(seed))  # noqa: S311  # repeatable, not secret


@pytest.mark.parametrize(
    ("attempt", "lowest", "highest"),
    [(0, 80, 120), (1, 160, 240), (2, 320, 480), (3, 640, 960), (4, 800, 1000), (5, 800, 1000), (10_000, 800, 1000)],
)
def test_back_off_doubles_within_20_percent(attempt: int, lowest: float, highest: float) -> None:
    """The extremes of many draws lie within the bounds and near them: doubled, spread by 20 %, capped at the
    maximum.
    """
    backoff = seeded(100, 1000)
    draws = [backoff.ms(attempt) for _ in range(400)]
    assert lowest <= min(draws) <= lowest * 1.05
    assert highest * 0.95 <= max(draws) <= highest


@given(st.integers(0, 60), st.integers(0, 500), st.integers(0, 2000), st.integers(0, 2**32))
def test_stays_within_its_bounds(attempt: int, initial_ms: int, max_ms: int, seed: int) -> None:
    """For any setting the wait is within 0.8 to 1.2 of the capped doubling, and never above the maximum."""
    expected = min(initial_ms * 2**attempt, max_ms)
    drawn = seeded(initial_ms, max_ms, seed).ms(attempt)
    assert 0.8 * expected - 1e-6 <= drawn <= min(1.2 * expected, max_ms) + 1e-6


@pytest.mark.parametrize("max_ms", [50, 100])
def test_back_off_is_constant_if_it_can_not_grow(max_ms: float) -> None:
    """With a maximum at or below the first wait every wait is the maximum, without spread (as
    ``ExponentialBackoff``).
    """
    backoff = seeded(100, max_ms)
    assert {max_ms} == {backoff.ms(attempt) for attempt in range(5)}


def test_the_seed_determines_the_back_off() -> None:
    """Two with one seed draw alike; a single one draws a new value each time."""
    first, second = seeded(100, 1000), seeded(100, 1000)
    draws = [first.ms(2) for _ in range(5)]
    assert draws == [second.ms(2) for _ in range(5)]
    assert 5 == len(set(draws))
