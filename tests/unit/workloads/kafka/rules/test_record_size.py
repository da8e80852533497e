from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.batch import BATCH_OVERHEAD, batch_bound, fields_size, record_size
from aftershock.workloads.kafka.wire.batch_builder import build

CONTENT = st.none() | st.binary(max_size=70) | st.integers(0, 9000).map(bytes)
HEADERS = st.lists(st.tuples(st.text(max_size=70), CONTENT), max_size=3).map(tuple)
RECORDS = st.lists(st.tuples(CONTENT, CONTENT, HEADERS, st.integers(0, 10_000)), min_size=1, max_size=70)


@settings(max_examples=60)
@given(RECORDS)
def test_sizes_are_those_of_the_bytes(
    records: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]],
) -> None:
    """What is counted before a batch is built is what building it then takes, to the byte, whatever the records are."""
    keys, values, headers, times = zip(*records, strict=True)
    times_ms = [0, *times[1:]]
    counted = sum(
        record_size(fields_size(key, value, own), time_ms, number)
        for number, (key, value, own, time_ms) in enumerate(zip(keys, values, headers, times_ms, strict=True))
    )
    assert len(build(values, keys=keys, headers=headers, timestamps_ms=times_ms)) == BATCH_OVERHEAD + counted


@given(CONTENT, CONTENT, HEADERS, st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_the_bound_holds_whatever_the_deltas(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], time_ms: int, offset: int
) -> None:
    """A batch of one record never takes more than its bound, so a buffer that was reserved by it is never exceeded."""
    fields = fields_size(key, value, headers)
    assert BATCH_OVERHEAD + record_size(fields, time_ms, offset) <= batch_bound(fields)


def test_the_bound_is_kafkas() -> None:
    """61 bytes of batch, 21 of record overhead, and key 1, value 6, headers 1 (``estimateSizeInBytesUpperBound``)."""
    assert 61 + 21 + 8 == batch_bound(fields_size(None, b"value", ()))
