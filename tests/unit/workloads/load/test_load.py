from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.workloads.load.schedule import Schedule, Stream

RATES = st.sampled_from([0.1, 0.5, 1, 3, 7, 33.3, 60, 149.7, 1000, 99_999])
NUMBERS = st.integers(0, 10**9)


@given(rate=RATES, n=NUMBERS, start=st.integers(0, 10**12), offset=st.integers(0, 10**6))
def test_intended_times_never_drift(rate: float, n: int, start: int, offset: int) -> None:
    """However far out, a record is within a microsecond of where exact arithmetic puts it."""
    exact = start + offset + Fraction(n) * 1_000_000 / Fraction(str(rate))
    assert 0 <= exact - Schedule(start, offset, rate).intended_us(n) < 1


@given(rate=RATES, at=st.integers(-(10**6), 10**8))
def test_count_before_is_the_first_record_not_before(rate: float, at: int) -> None:
    """Stopping at a time leaves out exactly the records intended at or after it."""
    schedule = Schedule(1000, 500, rate)
    count = schedule.count_before(at)
    assert schedule.intended_us(count) >= at
    assert count == 0 or schedule.intended_us(count - 1) < at


def test_a_rate_of_nothing_is_refused() -> None:
    """Rate 0 would divide by zero later; it is refused where it is said."""
    with pytest.raises(ValueError, match="sends nothing"):
        Schedule(0, 0, 0.0)


@given(seed=st.integers(0, 2**63), n=NUMBERS, low=st.integers(0, 5000), more=st.integers(0, 5000))
def test_draws_depend_on_n_alone_and_stay_in_bounds(seed: int, n: int, low: int, more: int) -> None:
    """Asking out of order, or again, gives the same record: arms of one workload send the same."""
    stream = Stream(seed, "orders", low, low + more, 10)
    first = stream.draw(n)
    stream.draw(n + 1)
    assert first == Stream(seed, "orders", low, low + more, 10).draw(n) == stream.draw(n)
    assert low <= first.size_bytes <= low + more
    assert first.key in {b"key-%d" % key for key in range(10)}


def test_draws_use_the_whole_range() -> None:
    """Every size and every key comes up, about equally often."""
    draws = [Stream(7, "orders", 10, 19, 4).draw(n) for n in range(4000)]
    sizes = [sum(draw.size_bytes == size for draw in draws) for size in range(10, 20)]
    keys = [sum(draw.key == b"key-%d" % key for draw in draws) for key in range(4)]
    assert min(sizes) > 300
    assert min(keys) > 850


def test_streams_of_other_seeds_and_workloads_differ() -> None:
    """The stream's name is the seed and the workload, both."""
    draws = [Stream(seed, name, 0, 10**6, None).draw(0) for seed, name in [(7, "a"), (8, "a"), (7, "b")]]
    assert len({draw.size_bytes for draw in draws}) == 3
    assert {draw.key for draw in draws} == {None}
