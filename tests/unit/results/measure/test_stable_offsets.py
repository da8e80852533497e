"""Lag and standstills of last stable offsets, of samples every half second."""

import pyarrow as pa

from aftershock.results.measure.stable_offsets import merged_lags, stable_offsets
from aftershock.results.model.facts import Lag, StableOffsets, Standstill

HALF_US, S = 500_000, 1_000_000


def measured(*samples: tuple[int, int] | None) -> StableOffsets:
    """Return what is measured of pairs (last stable offset, high watermark), None where the leader did not answer."""
    rows = [(number * HALF_US, *pair) for number, pair in enumerate(samples) if pair]
    t_us, stable, end = zip(*rows, strict=True)
    table = pa.table({"place": ["orders/3"] * len(rows), "t_us": t_us, "stable": stable, "end": end})
    return stable_offsets(table)["orders", 3]


def test_an_offset_that_keeps_up() -> None:
    found = measured((0, 0), (5, 5), (5, 5), (9, 9))
    assert (2, 9, 9, ()) == (found.advances, found.offset, found.end, found.standstills)
    assert [0, 0] == [lag.oldest_us for lag in found.lags]


def test_a_standstill_and_its_lag() -> None:
    """It begins with the first sample whose end is above it; records above it age until it moves."""
    found = measured((5, 5), (5, 7), (5, 8), (5, 8), (8, 8))
    assert (Standstill(5, 8, HALF_US, 3 * HALF_US),) == found.standstills
    assert (Lag(S, 2, 0), Lag(2 * S, 3, S), Lag(3 * S, 0, 0)) == found.lags


def test_the_age_is_that_of_the_oldest_record_above_it() -> None:
    """It may have been in the log before the last stable offset reached it."""
    found = measured((0, 0), (0, 4), (0, 8), (6, 9), (6, 9), (6, 9))
    assert 3 * HALF_US == found.lags[-1].oldest_us  # offset 6 was below the end from the third sample on


def test_a_leader_that_does_not_answer_ends_a_standstill() -> None:
    found = measured((5, 7), (5, 7), *[None] * 12, (5, 7), (5, 7))
    assert [HALF_US] == [one.end_us - one.start_us for one in found.standstills]


def test_a_new_leaders_high_watermark_is_no_lag() -> None:
    """It is lower until the followers have fetched; readers have read more already."""
    found = measured((9, 9), (9, 9), (4, 6), (4, 6), (9, 9))
    assert ((), 0) == (found.standstills, max(lag.oldest_us for lag in found.lags))


def test_a_log_that_stays_shorter_is_another_one() -> None:
    found = measured((90, 90), *[(4, 6)] * 12)
    (stood,) = found.standstills
    assert (4, 11 * HALF_US) == (stood.offset, stood.end_us - stood.start_us)


def test_lags_of_partitions_are_added_and_the_oldest_counts() -> None:
    merged = merged_lags([(Lag(S, 2, 10), Lag(2 * S, 0, 0)), (Lag(S, 3, 70),)])
    assert (Lag(S, 5, 70), Lag(2 * S, 0, 0)) == merged


def test_runs_without_samples() -> None:
    empty = pa.table({name: [] for name in ("place", "t_us", "stable", "end")})
    assert {} == stable_offsets(empty)
