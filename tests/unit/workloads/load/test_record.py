import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.workloads.load.schedule import HEADER, Filler, Headers, Mark, pack, unpack

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
