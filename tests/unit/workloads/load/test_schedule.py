import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.workloads.load.schedule import (
    HEADER,
    Filler,
    Headers,
    Mark,
    Schedule,
    Stream,
    groups_by_coordinator,
    key_partition,
    pack,
    unpack,
)

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
    first = size_bytes, key = stream.draw(n)
    stream.draw(n + 1)
    assert first == Stream(seed, "orders", low, low + more, 10).draw(n) == stream.draw(n)
    assert low <= size_bytes <= low + more
    assert key in {b"key-%d" % key for key in range(10)}


def test_draws_use_the_whole_range() -> None:
    """Every size and every key comes up, about equally often."""
    draws = [Stream(7, "orders", 10, 19, 4).draw(n) for n in range(4000)]
    sizes = [sum(drawn == size for drawn, _ in draws) for size in range(10, 20)]
    keys = [sum(drawn == b"key-%d" % key for _, drawn in draws) for key in range(4)]
    assert min(sizes) > 300
    assert min(keys) > 850


def test_streams_of_other_seeds_and_workloads_differ() -> None:
    """The stream's name is the seed and the workload, both."""
    draws = [Stream(seed, name, 0, 10**6, None).draw(0) for seed, name in [(7, "a"), (8, "a"), (7, "b")]]
    assert len({size_bytes for size_bytes, _ in draws}) == 3
    assert {key for _, key in draws} == {None}


INT64 = st.integers(0, 2**63 - 1)


@given(producer=st.integers(0, 2**31 - 1), seq=INT64, intended=INT64)
def test_a_mark_survives_the_way_through_a_header(producer: int, seq: int, intended: int) -> None:
    """Packed and read back, beside other people's headers, it is the same; the layout is the documented one."""
    value = pack(producer, seq, intended)
    assert unpack([("trace", b"x"), (HEADER, value)]) == Mark(producer, seq, intended)
    assert value == struct.pack(">iqq", producer, seq, intended)


FOREIGN: list[Headers] = [
    None,
    [],
    [("other", pack(1, 2, 3))],
    [(HEADER, b"short")],
    [(HEADER, None)],
    [(HEADER, "text of 20 bytes !!!")],
    [(HEADER, pack(1, 2, 3) + b"!")],
    [(HEADER, struct.pack(">iqq", -1, 2, 3))],
    [(HEADER, struct.pack(">iqq", 1, -2, 3))],
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_whatever_is_not_ours_is_foreign(headers: Headers) -> None:
    """A header of another name, shape or sign is never taken for ours."""
    assert unpack(headers) is None


@given(seq=INT64, size=st.integers(0, 1000))
def test_values_have_their_size_and_are_always_the_same(seq: int, size: int) -> None:
    """The same record has the same bytes in every process."""
    value = Filler(1000).value(seq, size)
    assert len(value) == size
    assert value == Filler(1000).value(seq, size)


@given(seq=INT64, size=st.integers(1, 1000), made=st.integers(1000, 1010), spoilt=st.integers(0, 999))
def test_any_reader_knows_a_value(seq: int, size: int, made: int, spoilt: int) -> None:
    """Whatever sizes its producer drew: the value is known, and with one bit turned it is not."""
    value, reader = Filler(made).value(seq, size), Filler()
    assert reader.is_value(seq, value)
    turned = bytearray(value)
    turned[spoilt % size] ^= 1
    assert not reader.is_value(seq, bytes(turned))


@pytest.mark.parametrize(
    ("group", "partition"),
    [("", 0), ("a", 97 % 50), ("hello", 99162322 % 50), ("Hello World", 862545276 % 50), ("polygenelubricants", 0)],
)
def test_as_kafka_does(group: str, partition: int) -> None:
    """Java's known hashes: of ``hello``, a negative one, and the one without a positive counterpart."""
    assert partition == key_partition(group, 50)


def test_coordinator_by_coordinator() -> None:
    """Every group occurs once; each partition's groups are adjacent and in numerical order."""
    names = groups_by_coordinator("commits-plain", 90, 3)
    assert {f"commits-plain-{number}" for number in range(90)} == set(names)
    parts = [key_partition(name, 3) for name in names]
    assert parts == sorted(parts)
    assert {0, 1, 2} == set(parts)
    numbers = [int(name.rpartition("-")[2]) for name in names if key_partition(name, 3) == 1]
    assert numbers == sorted(numbers)
