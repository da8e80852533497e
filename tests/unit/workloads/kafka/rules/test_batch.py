import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.batch import (
    BATCH_OVERHEAD,
    CompressionRatios,
    ProducerBatch,
    batch_bound,
    fields_size,
    record_size,
)
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch_builder import build

TP = TopicPartition("t", 0)


def add(batch: ProducerBatch, value: bytes, *, key: bytes | None = None, token: int = 0) -> int:
    return batch.append(value, key, (), token, 0, fields_size(key, value, ()))


def built(batch: ProducerBatch) -> bytes:
    return build(batch.values, keys=batch.keys, headers=batch.headers, timestamps_ms=batch.timestamps_ms)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.binary(max_size=300), st.none() | st.binary(max_size=10)), min_size=1, max_size=70))
def test_the_estimate_of_a_plain_batch_is_its_size(records: list[tuple[bytes, bytes | None]]) -> None:
    """Uncompressed, the estimate and the sum of the growths returned by append are the built size, to the byte."""
    batch = ProducerBatch(TP, 0, limit=1 << 20)
    grown = sum(add(batch, value, key=key) for value, key in records)
    assert len(built(batch)) == batch.estimate == grown


def test_the_first_record_always_fits() -> None:
    """A record larger than the limit gets its own batch, which is full."""
    batch = ProducerBatch(TP, 0, limit=100)
    assert batch.room >= 5000
    add(batch, bytes(5000))
    assert batch.full
    assert batch.room < 1


def test_room_is_kept_for_the_worst_deltas() -> None:
    """Another record fits if the limit leaves room for its fields and the 21 bytes that its deltas may need."""
    batch = ProducerBatch(TP, 0, limit=500)
    add(batch, bytes(100))
    assert 500 - batch.estimate - 21 == batch.room


def test_a_closed_batch_is_full_and_has_no_room() -> None:
    """Of any size: so a retried batch is full, and never lingers."""
    batch = ProducerBatch(TP, 0, limit=500)
    add(batch, b"v")
    assert not batch.full
    batch.close()
    assert batch.full
    assert batch.room < 1


def test_a_compressed_batch_takes_more_records() -> None:
    """A batch created at an estimated ratio of 0.5 counts each record at half its size plus 5 %."""
    plain, compressed = ProducerBatch(TP, 0, limit=5000), ProducerBatch(TP, 0, limit=5000, ratio=0.5)
    for batch in (plain, compressed):
        add(batch, bytes(1000))
    assert 61 + int((plain.estimate - 61) * 0.525) == compressed.estimate


def test_the_key_column_is_created_on_demand() -> None:
    """Records before the first one with a key get None, so that columns have equal lengths."""
    batch = ProducerBatch(TP, 0, limit=5000)
    add(batch, b"a")
    assert batch.keys is None
    add(batch, b"b", key=b"k")
    add(batch, b"c")
    assert [None, b"k", None] == batch.keys


@pytest.mark.parametrize("doubt", [True, False])
def test_the_parts_of_a_split_are_the_whole_in_order(doubt: bool) -> None:
    """No record is lost, doubled or moved; parts keep to the limit, are closed, never tried, and inherit the doubt."""
    whole = ProducerBatch(TP, 7, limit=16384, reserved=16384)
    for token in range(20):
        add(whole, bytes([token]) * 100, key=None if token % 3 else b"k", token=token)
    whole.attempts.attempts, whole.in_doubt = 3, doubt
    parts = whole.split(600)
    assert list(range(20)) == [token for part in parts for token in part.tokens]
    assert whole.values == [value for part in parts for value in part.values]
    assert whole.keys == [key for part in parts for key in (part.keys or [None] * part.count)]
    assert all(len(built(part)) <= 600 and part.full for part in parts)
    assert {(0, 7.0, 0, doubt)} == {
        (part.attempts.attempts, part.created_ms, part.reserved, part.in_doubt) for part in parts
    }


def test_a_split_leaves_no_empty_part() -> None:
    """Records larger than the limit become parts of one record each."""
    whole = ProducerBatch(TP, 0, limit=16384)
    for token in range(3):
        add(whole, bytes(1000), token=token)
    assert [[0], [1], [2]] == [part.tokens for part in whole.split(100)]


@pytest.mark.parametrize(
    ("observed", "estimates"),
    [
        pytest.param([], 1.0, id="nothing is hoped for at first"),
        pytest.param([0.3], 0.995, id="a better ratio is followed by 0.005"),
        pytest.param([0.3, 0.3], 0.99, id="and again"),
        pytest.param([0.998], 0.998, id="but not beyond what was seen"),
        pytest.param([0.3, 1.2], 1.2, id="a worse one at once"),
        pytest.param([0.3, 1.0], 1.045, id="and by 0.05 at least"),
    ],
)
def test_the_compression_estimate_falls_fast_and_rises_slowly(observed: list[float], estimates: float) -> None:
    """As CompressionRatioEstimator."""
    ratios = CompressionRatios()
    for ratio in observed:
        ratios.observed("t", ratio)
    assert estimates == pytest.approx(ratios.of("t"))


def test_a_batch_too_large_resets_the_estimate() -> None:
    """The next batches of its topic, and of no other topic, assume no compression."""
    ratios = CompressionRatios()
    for topic in ("t", "u"):
        ratios.observed(topic, 0.3)
    ratios.too_large("t")
    assert (1.0, 0.995) == (ratios.of("t"), ratios.of("u"))


CONTENT = st.none() | st.binary(max_size=70) | st.integers(0, 9000).map(bytes)
HEADERS = st.lists(st.tuples(st.text(max_size=70), CONTENT), max_size=3).map(tuple)
RECORDS = st.lists(st.tuples(CONTENT, CONTENT, HEADERS, st.integers(0, 10_000)), min_size=1, max_size=70)


@settings(max_examples=60)
@given(RECORDS)
def test_record_sizes_match_the_built_batch(
    records: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]],
) -> None:
    """To the byte, for any records."""
    keys, values, headers, times = zip(*records, strict=True)
    times_ms = [0, *times[1:]]
    counted = sum(
        record_size(fields_size(key, value, own), time_ms, number)
        for number, (key, value, own, time_ms) in enumerate(zip(keys, values, headers, times_ms, strict=True))
    )
    assert len(build(values, keys=keys, headers=headers, timestamps_ms=times_ms)) == BATCH_OVERHEAD + counted


@given(CONTENT, CONTENT, HEADERS, st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_a_batch_never_exceeds_its_bound(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], time_ms: int, offset: int
) -> None:
    """A batch of one record with any deltas: so a reserved buffer is never exceeded."""
    fields = fields_size(key, value, headers)
    assert BATCH_OVERHEAD + record_size(fields, time_ms, offset) <= batch_bound(fields)


def test_the_bound_is_kafkas() -> None:
    """61 bytes of batch, 21 of record overhead, and key 1, value 6, headers 1 (``estimateSizeInBytesUpperBound``)."""
    assert 61 + 21 + 8 == batch_bound(fields_size(None, b"value", ()))
