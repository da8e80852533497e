"""The expected load: the judge's count equals that of the load generator's own schedule."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.results.evidence.evidence import Client
from aftershock.results.measure.load import Sender
from aftershock.workloads.load.schedule import US_PER_S, Schedule

CLIENT = Client("w", "a", ("t",), (), acks_all=True, acks="all", idempotent=True, from_latest=False)


def sender(rate: float, start_us: int = 0, end_us: int = 0) -> Sender:
    of_process = Fraction(rate).limit_denominator(US_PER_S)
    return Sender("produce", CLIENT, "w-a-produce", ("t",), 0, of_process, 0, start_us, end_us)


def test_a_benchmark_sends_its_records_whenever_the_load_ends() -> None:
    """Fewer than are due before the end of the load, or more; without a number, those that are due."""
    by_schedule = sender(1_000, 0, US_PER_S)
    assert [1_000, 400, 2_000] == [replace(by_schedule, records=records).count(0) for records in (None, 400, 2_000)]


rates = st.one_of(st.floats(0.01, 5_000), st.integers(1, 60_000).map(lambda rate: rate / 3))


@given(
    rate=rates, start_us=st.integers(0, 10**9), length_us=st.integers(0, 10**8), part=st.floats(0, 1, exclude_max=True)
)
def test_the_expected_count_is_that_of_the_schedule(rate: float, start_us: int, length_us: int, part: float) -> None:
    """The last expected record is due before the end of the load, and the next one is not."""
    offset_us = int(part * US_PER_S / rate)
    schedule = Schedule(start_us, offset_us, rate)
    expected = sender(rate, start_us, start_us + length_us).count(start_us + offset_us)
    assert schedule.count_before(start_us + length_us) == expected
    assert schedule.intended_us(expected) >= start_us + length_us
    assert not expected or schedule.intended_us(expected - 1) < start_us + length_us


@given(rate=rates, count=st.integers(0, 300))
def test_the_sum_of_the_intended_times_is_exact(rate: float, count: int) -> None:
    schedule = Schedule(0, 0, rate)
    assert sum(schedule.intended_us(seq) for seq in range(count)) == sender(rate).due_before_us(count)


@pytest.mark.parametrize("rate", [50.0, 1000 / 3, 0.3])
def test_the_sum_of_a_day_takes_no_time(rate: float) -> None:
    """Euclid's algorithm: forty million terms are summed at once. The sum lies between those of rounded terms."""
    count = 40_000_000
    upper = Fraction(count * (count - 1), 2) * US_PER_S / Fraction(rate).limit_denominator(US_PER_S)
    assert upper - count < sender(rate).due_before_us(count) <= upper
