"""Runs: found where they are, never where they aren't, and in linear time."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from aftershock.errors import ProtocolError
from aftershock.tests.unit.workloads.kafka.wire.record_shapes import Shape, alike, any_shapes, shapes_in_runs, unlike
from aftershock.workloads.kafka.wire import record_columns, schema
from aftershock.workloads.kafka.wire.batch import BATCH_OVERHEAD
from aftershock.workloads.kafka.wire.record_columns import Run, columns_of, pieces_of, read

ANY = 2**31 - 1  # a last offset that no record's lies behind
Rows = list[tuple[int, ...]]


def block(shape: Shape) -> memoryview:
    return memoryview(shape.build())[BATCH_OVERHEAD:]


def one_by_one(payload: memoryview) -> Rows:
    """The model: every record read for itself."""
    at, rows = 0, []
    while at < len(payload):
        span = read(payload, at)
        rows.append(tuple(span.row))
        at = span.end
    return rows


@given(any_shapes() | shapes_in_runs())
@settings(max_examples=100)
def test_columns_equal_those_of_records_read_one_by_one(shape: Shape) -> None:
    """Whatever is taken for a run."""
    payload = block(shape)
    assert one_by_one(payload) == by_columns(payload, len(shape.values))


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        (alike(16, 1000), [16]),
        (alike(100, 1000, ms_apart=1), [64, 36]),
        (alike(1000, 10), [64, 512, 424]),
        (alike(60, 10, ms_apart=100), [-1, 8, 51]),
        (alike(63, 10, ms_apart=3, key_size=4), [15, 7, 14, 27]),
        (alike(3, 10), [-3]),
        (alike(20_000, 0), [64, 512, 4096, 3520, 8192, 3616]),
    ],
)
def test_runs_are_found(shape: Shape, lengths: list[int]) -> None:
    """Offset and time deltas that grow by a byte end a run, and another begins; a few records (negative) are no run."""
    pieces = pieces_of(block(shape), len(shape.values), ANY)
    assert lengths == [piece.length if isinstance(piece, Run) else -piece.shape[1] for piece in pieces]


@pytest.mark.parametrize("flipped", [1, 2, 0x80])
def test_one_byte_that_differs_is_never_overlooked(flipped: int) -> None:
    """Each byte of a run changed in turn: the columns are those of records read one by one, or neither can be read."""
    whole = bytes(block(alike(16, 10, ms_apart=1)))
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= flipped
        payload = memoryview(bytes(changed))
        assert outcome(one_by_one_ascending, payload, 16) == outcome(by_columns, payload, 16), at


def one_by_one_ascending(payload: memoryview, count: int) -> Rows:
    rows = one_by_one(payload)
    offsets = [row[1] for row in rows]
    if len(rows) != count or sorted(set(offsets)) != offsets or offsets[0] < 0:
        raise ProtocolError("not so many records, or not in order")
    return rows


def by_columns(payload: memoryview, count: int) -> Rows:
    columns = columns_of(pieces_of(payload, count, ANY), payload)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def outcome(reading: Callable[[memoryview, int], Rows], payload: memoryview, count: int) -> Rows | None:
    """What is read; None when it is refused."""
    try:
        return reading(payload, count)
    except ProtocolError:
        return None


def test_offset_deltas_must_ascend() -> None:
    """A batch that says the same offset twice, or goes back, is corrupt."""
    one = bytes(block(alike(1)))
    with pytest.raises(ProtocolError, match="offset delta 0 follows the offset delta 0"):
        pieces_of(memoryview(one + one), 2, ANY)


def test_a_negative_offset_delta_is_corrupt() -> None:
    """It would lie before the batch."""
    body = b"\0" + b"".join(map(schema.varint, (0, -2, -1, -1, 0)))
    with pytest.raises(ProtocolError, match="offset delta -2"):
        pieces_of(memoryview(schema.varint(len(body)) + body), 1, ANY)


def test_wrong_guesses_cost_no_more_than_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records made so that every guess of a run fails at its end: the bytes compared stay within a few times the data.

    Without the bound each of n records would have all behind it compared in vain: n²/2 of them.
    """
    compared = 0
    offset_deltas = record_columns._offset_deltas  # called once for every guess

    def counting(first: int, count: int) -> bytes:
        nonlocal compared
        compared += count
        return offset_deltas(first, count)

    monkeypatch.setattr(record_columns, "_offset_deltas", counting)
    count = 4000
    pairs = alike(count, 10)
    sized = [value if number % 5 else (value or b"")[:9] for number, value in enumerate(pairs.values)]
    hard = pairs._replace(values=sized)
    payload = block(hard)
    assert one_by_one(payload) == by_columns(payload, count)
    assert compared < 20 * count


def test_unlike_records_take_no_guess_at_all() -> None:
    """Sizes that change are seen from the next record's length: all are singles, in one table."""
    (table,) = pieces_of(block(unlike(50)), 50, ANY)
    assert not isinstance(table, Run)
    assert 50 == table.shape[1]


def record(*fields: bytes | int, length: int | None = None) -> memoryview:
    body = b"\0" + b"".join(field if isinstance(field, bytes) else schema.varint(field) for field in fields)
    return memoryview(schema.varint(len(body) if length is None else length) + body)


def test_a_record_is_read_field_by_field() -> None:
    """Deltas, key, value and two headers, one of them null, each where it is."""
    span = read(record(-3, 5, 2, b"ky", 3, b"val", 2, 1, b"h", 2, b"xy", 1, b"i", -1), 0)
    assert (-3, 5) == (span.time_delta_ms, span.offset_delta)
    assert (5, 2) == (span.key_at, span.key_size)
    assert (8, 3) == (span.value_at, span.value_size)
    assert 11 == span.headers_at
    assert ((15, 17), (20, 20)) == span.header_values


def test_negative_sizes_are_nulls() -> None:
    """As in Kafka, any negative size of a key or value."""
    span = read(record(0, 0, -1, -2, 0), 0)
    assert (-1, -1) == (span.key_size, span.value_size)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (record(0, 0, -1, -1, 0, b"x"), "has length 7, but its fields end"),
        (record(0, 0, -1, -1, 0, length=5), "-1 bytes|fields end"),
        (record(0, 0, 100, b"k"), "the field at byte 6 of the records has 100 bytes, its record only 1 more"),
        (record(0, 0, -1, 2**31, b"v"), "2147483648 bytes"),
        (record(0, 0, -1, -1, -1), "-1 headers"),
        (record(0, 0, -1, -1, 50, b"h"), "50 headers in 1 bytes"),
        (record(0, 0, -1, -1, 1, -1, -1), "name at byte .* is null"),
        (record(0, 0, -1, -1, 1, 1, b"h", 9, b"x"), "9 bytes"),
        (record(0, 0, -1, -1, 0, length=-4), "has length -4"),
        (record(0, 0, -1, -1, 0, length=10**9), "has length 1000000000, but 6 bytes remain"),
        (memoryview(b"\x80"), "cut off"),
        (memoryview(b""), "cut off"),
    ],
)
def test_what_is_no_record(bad: memoryview, complaint: str) -> None:
    """Every size and count is held against what is there before it is used."""
    with pytest.raises(ProtocolError, match=complaint):
        read(bad, 0)
