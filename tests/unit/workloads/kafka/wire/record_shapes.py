"""Records for tests of the batch codec: of any shape, and of the shapes that have a fast path."""

from typing import Any, NamedTuple

from hypothesis import strategies as st

from aftershock.tests.unit.workloads.kafka.wire.kafka_python_records import DefaultRecordBatchBuilder
from aftershock.workloads.kafka.wire.batch import Record
from aftershock.workloads.kafka.wire.batch_builder import build

Headers = list[tuple[str, bytes | None]]

NOW_MS = 1_790_000_000_000
HEADER = "aftershock"
_LEADER_EPOCH = slice(12, 16)


class Shape(NamedTuple):
    """The columns that ``build`` takes."""

    values: list[bytes | None]
    timestamps_ms: list[int]
    keys: list[bytes | None] | None
    headers: list[Headers] | None

    def build(self, **told: Any) -> bytes:
        return build(self.values, timestamps_ms=self.timestamps_ms, keys=self.keys, headers=self.headers, **told)

    def records(self) -> list[Record]:
        """What a reader must find."""
        keys, headers = self.keys or [None] * len(self.values), self.headers or [[]] * len(self.values)
        columns = zip(self.timestamps_ms, keys, self.values, headers, strict=True)
        return [Record(offset, time_ms, k, v, tuple(h)) for offset, (time_ms, k, v, h) in enumerate(columns)]

    def built_by_kafka_python(self, codec: int = 0) -> bytes:
        """The same batch by an independent implementation.

        Its leader epoch, which only brokers set and no CRC covers, is 0; Kafka's own producer says -1, and so do we.
        """
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=codec,
            is_transactional=False,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 30,
        )
        for record in self.records():
            assert builder.append(record.offset, record.timestamp_ms, record.key, record.value, list(record.headers))
        batch = bytes(builder.build())
        return batch[: _LEADER_EPOCH.start] + b"\xff" * 4 + batch[_LEADER_EPOCH.stop :]


def alike(count: int, size: int = 10, *, ms_apart: int = 0, key_size: int | None = None, marks: bool = True) -> Shape:
    """Records of one shape with contents of their own; ``marks``: each with one header of 20 bytes."""
    return Shape(
        [_content(number, size) for number in range(count)],
        [NOW_MS + number * ms_apart for number in range(count)],
        None if key_size is None else [_content(number + 7, key_size) for number in range(count)],
        [[(HEADER, _content(number + 3, 20))] for number in range(count)] if marks else None,
    )


def unlike(count: int) -> Shape:
    """Records of sizes that change from one to the next."""
    shape = alike(count, 200)
    return shape._replace(values=[(value or b"")[: 30 + number * 7 % 150] for number, value in enumerate(shape.values)])


def _content(number: int, size: int) -> bytes:
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


_contents = st.none() | st.binary(max_size=80)
_headers = st.lists(st.tuples(st.text(max_size=9), _contents), max_size=3)
_times = st.integers(NOW_MS - 100_000, NOW_MS + 100_000)


@st.composite
def any_shapes(draw: st.DrawFn) -> Shape:
    """Any records at all: null and empty contents, several headers, timestamps that go back."""
    count = draw(st.integers(1, 12))

    def column(strategy: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(strategy, min_size=count, max_size=count))

    return Shape(
        column(_contents),
        column(_times),
        draw(st.none() | st.just(column(_contents))),
        draw(st.none() | st.just(column(_headers))),
    )


@st.composite
def shapes_in_runs(draw: st.DrawFn) -> Shape:
    """Runs of records alike, of one length each, with a few in between that aren't."""
    parts = [
        alike(
            draw(st.integers(1, 90)),
            draw(st.sampled_from([0, 1, 10, 63, 64, 200])),
            ms_apart=draw(st.sampled_from([0, 1, 3, 70])),
            marks=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    headers = [h for part in parts for h in (part.headers or [[] for _ in part.values])]
    return Shape(
        [value for part in parts for value in part.values],
        [time_ms for part in parts for time_ms in part.timestamps_ms],
        None,
        headers,
    )
