"""A partition's log in memory, with what a broker knows of its producers."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.wire.batch import (
    AFTER_CRC,
    CONTROL,
    TRANSACTIONAL,
    UNTIL_CRC,
    Batch,
    parse,
)
from aftershock.workloads.kafka.wire.batch_builder import records_bytes, seal

SEQUENCES = 1 << 31
REMEMBERED = 5  # batches of a producer that a broker knows again

CORRUPT_MESSAGE = 2
OFFSET_OUT_OF_RANGE = 1
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47


class Stored(NamedTuple):
    """A batch in the log, its base offset and epoch being the broker's."""

    base: int
    end: int
    epoch: int
    time_ms: int
    data: bytes


class Appended(NamedTuple):
    error: int
    base_offset: int = -1


@dataclass
class Sequences:
    """One producer's latest batches: (first sequence, last sequence) → base offset."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def expected(self) -> int:
        return 0 if not self.batches else (self.batches[-1][1] + 1) % SEQUENCES

    def known(self, first: int, last: int) -> int | None:
        return next((base for *batch, base in self.batches if batch == [first, last]), None)


def marker(producer_id: int, epoch: int, *, commit: bool) -> bytes:
    """The control batch that ends a transaction (``EndTransactionMarker``)."""
    records = records_bytes([bytes(6)], [0], [bytes([0, 0, 0, commit])], None)
    return seal(0, AFTER_CRC.pack(TRANSACTIONAL | CONTROL, 0, 0, 0, producer_id, epoch, -1, 1), records)


class Aborted(NamedTuple):
    """A transaction in a partition's log that was aborted."""

    producer_id: int
    first: int
    marker: int


@dataclass
class Log:
    """Batches in order. ``held`` keeps the high watermark back, ``lagging`` says how far a replica has got.

    ``open`` are the open transactions, producer id → first offset.
    """

    batches: list[Stored] = field(default_factory=list)
    start: int = 0
    held: int | None = None
    lagging: dict[int, int] = field(default_factory=dict)
    producers: dict[int, Sequences] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Epoch, and the offset at which it began."""
    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[Aborted] = field(default_factory=list)

    def last_stable_offset(self, replica: int) -> int:
        return min([self.high_watermark(replica), *self.open.values()])

    def end_transaction(self, producer_id: int, epoch: int, leader_epoch: int, *, commit: bool) -> None:
        """Append the marker of a producer's transaction; with version 2, ``epoch`` is that of the next transaction."""
        data = marker(producer_id, epoch, commit=commit)
        (batch,) = parse(data)
        base = self._store(data, batch, leader_epoch)
        known = self.producers.get(producer_id)
        if known is None or known.epoch < epoch:
            self.producers[producer_id] = Sequences(epoch)
        first = self.open.pop(producer_id, None)
        if first is not None and not commit:
            self.aborted.append(Aborted(producer_id, first, base))

    def high_watermark(self, replica: int | None = None) -> int:
        """What consumers see on a replica."""
        return min(self.end if self.held is None else self.held, self.end_on(replica))

    def end_on(self, replica: int | None) -> int:
        return min(self.end, self.lagging.get(replica, self.end)) if replica is not None else self.end

    def append(self, data: bytes, epoch: int) -> Appended:
        """One batch of a producer; the sequence rules are those of Kafka's ``ProducerAppendInfo``."""
        try:
            (batch,) = parse(data)
        except (ProtocolError, ValueError):
            return Appended(CORRUPT_MESSAGE)
        if batch.header.producer_id < 0:
            return Appended(0, self._store(data, batch, epoch))
        return self._append_once(data, batch, epoch)

    def _append_once(self, data: bytes, batch: Batch, epoch: int) -> Appended:
        first, last = batch.header.base_sequence, (batch.header.base_sequence + len(batch.records) - 1) % SEQUENCES
        known = self.producers.get(batch.header.producer_id)
        if known and batch.header.producer_epoch < known.epoch:
            return Appended(INVALID_PRODUCER_EPOCH)
        if known and batch.header.producer_epoch > known.epoch:
            if first != 0:
                return Appended(OUT_OF_ORDER_SEQUENCE_NUMBER)
            known = None
        if known and (base := known.known(first, last)) is not None:
            return Appended(0, base)
        if known and first != known.expected:
            return Appended(OUT_OF_ORDER_SEQUENCE_NUMBER)
        base = self._store(data, batch, epoch)
        known = known or Sequences(batch.header.producer_epoch)
        self.producers[batch.header.producer_id] = known
        known.batches.append((first, last, base))
        if batch.header.attributes & TRANSACTIONAL:
            self.open.setdefault(batch.header.producer_id, base)
        return Appended(0, base)

    def _store(self, data: bytes, batch: Batch, epoch: int) -> int:
        base = self.end
        _, length, _, magic, crc = UNTIL_CRC.unpack_from(data)
        head = UNTIL_CRC.pack(base, length, epoch, magic, crc)
        stored = Stored(base, base + batch.header.last_offset_delta + 1, epoch, batch.header.max_timestamp_ms, b"")
        self.batches.append(stored._replace(data=head + data[UNTIL_CRC.size :]))
        self.end = stored.end
        return base

    def read(
        self, offset: int, limit: int, replica: int, *, at_least_one: bool, committed: bool = False
    ) -> tuple[int, bytes]:
        """Error code and whole batches from the one that holds ``offset``, of ``limit`` bytes at most or of one.

        With ``committed`` up to the last stable offset, else up to the high watermark.
        """
        until = self.last_stable_offset(replica) if committed else self.high_watermark(replica)
        if not self.start <= offset <= self.end_on(replica):
            return OFFSET_OUT_OF_RANGE, b""
        found: list[bytes] = []
        for batch in self.batches:
            if batch.end <= offset or batch.end > until:
                continue
            limit -= len(batch.data)
            if limit < 0 and (found or not at_least_one):
                break
            found.append(batch.data)
        return 0, b"".join(found)

    def begin_epoch(self, epoch: int) -> None:
        self.epochs.append((epoch, self.end))

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to ``epoch`` and where it ended; (-1, -1) when the log doesn't know."""
        if epoch > self.epochs[-1][0]:
            return -1, -1
        for (own, _), (_, end) in zip(reversed(self.epochs), reversed([*self.epochs[1:], (0, self.end)]), strict=True):
            if own <= epoch:
                return own, end
        return -1, -1

    def truncate(self, end: int) -> None:
        """Drop all batches that reach beyond ``end``."""
        self.batches = [batch for batch in self.batches if batch.end <= end]
        self.end = self.batches[-1].end if self.batches else self.start
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < end] or self.epochs[:1]

    def at_time(self, time_ms: int) -> tuple[int, int]:
        """Offset and timestamp of the first record at that time or later; (-1, -1) if there is none."""
        for stored in self.batches:
            for batch in parse(stored.data) if stored.time_ms >= time_ms else ():
                for record in batch.records:
                    if record.timestamp_ms >= time_ms:
                        return record.offset, record.timestamp_ms
        return -1, -1
