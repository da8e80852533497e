"""What a record adds to a batch of format v2, to the byte, before it is written.

Kafka: ``DefaultRecord.sizeInBytes`` and ``recordSizeUpperBound``, ``ByteUtils.sizeOfVarint``. A record is its length,
one byte of attributes, the deltas of timestamp and offset, and its fields: key, value, headers. Numbers are varints.

How well a topic's batches compress, so that a batch may take in more than ``batch.size`` before compression.

Kafka: ``CompressionRatioEstimator``. The estimate begins at 1; it follows a worse ratio at once (and by 0.05 at least),
a better one by 0.005 a batch. A batch keeps the estimate that it was opened with, and adds 5 % to be safe.

A batch that is being filled, sent and perhaps sent again: records of one partition that share one fate.

Kafka: ``ProducerBatch`` and ``MemoryRecordsBuilder``, without the bytes: those are built when it goes out.

1. Room: the first record always fits. Another one does if the estimate and the most that it could add stay within the
   limit.
2. Full: the estimate has come to the limit, or the batch was closed. Draining closes it for good: a batch that is
   tried again is full, so it never lingers.
3. Doubt: an attempt that was sent and not surely refused leaves the batch in doubt, whatever later attempts meet.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf

from aftershock.workloads.kafka.rules.idempotence import Numbers
from aftershock.workloads.kafka.rules.leader_discovery import Attempts
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition

Headers = Sequence[tuple[str, bytes | None]]

BATCH_OVERHEAD = 61
"""A batch without records."""

RECORD_OVERHEAD_MAX = 21
"""The most that a record's length, attributes and deltas can take (``MAX_RECORD_OVERHEAD``)."""


def fields_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The size of what doesn't depend on the record's place in its batch."""
    # for every record: a varint's size is (bit length + 7) // 7, written out below for it costs less than a call
    size = 1 if key is None else len(key) + (len(key).bit_length() + 7) // 7
    size += 1 if value is None else len(value) + (len(value).bit_length() + 7) // 7
    size += (len(headers).bit_length() + 7) // 7
    for name, content in headers:
        size += _name_size(name)
        size += 1 if content is None else len(content) + (len(content).bit_length() + 7) // 7
    return size


@lru_cache(maxsize=1024)
def _name_size(name: str) -> int:
    length = len(name.encode())
    return length + (length.bit_length() + 7) // 7


def record_size(fields: int, time_delta_ms: int, offset_delta: int) -> int:
    """The size of a whole record, its length included; ``fields`` from ``fields_size``.

    A time that goes back counts like one that goes forward by as much: off by a byte at the most.
    """
    body = 1 + (time_delta_ms.bit_length() + 7) // 7 + (offset_delta.bit_length() + 7) // 7 + fields
    return body + (body.bit_length() + 7) // 7


def batch_bound(fields: int) -> int:
    """The most that a batch of this record alone can take (``estimateSizeInBytesUpperBound``)."""
    return BATCH_OVERHEAD + RECORD_OVERHEAD_MAX + fields


SAFETY = 1.05
WORSE_STEP = 0.05
BETTER_STEP = 0.005


class CompressionRatios:
    """The estimates of one producer: compressed over uncompressed size, by topic."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def of(self, topic: str) -> float:
        """The present estimate."""
        return self._ratios.get(topic, 1.0)

    def observed(self, topic: str, ratio: float) -> None:
        """A batch came out at ``ratio``."""
        known = self.of(topic)
        step = known + WORSE_STEP if ratio > known else known - BETTER_STEP
        self._ratios[topic] = max(step, ratio)

    def too_large(self, topic: str) -> None:
        """A broker refused a batch as too large: hope for nothing again."""
        self._ratios[topic] = 1.0


class ProducerBatch:
    """One batch: columns of records, and what has become of them so far.

    ``limit`` is the size in bytes that it is filled to; ``reserved`` what it took from the buffer; ``ratio`` the
    estimate of its compression, None for no compression. ``raw`` is the size of its records before compression,
    ``estimate`` that of the batch after it; a record whose fields take at most ``room`` bytes still fits (rule 1).
    ``keys`` is None while no record has one.

    ``attempts`` counts those that failed, ``sends`` those that were begun; ``node_id``, ``leader_epoch`` and
    ``immediate`` (a retry without back-off) are of the latest one, ``error`` is the code that it failed with.
    ``numbers`` is None without idempotence. ``cleared_ms``: when it was last found not to back off. ``done``: it has
    ended, and been reported.
    """

    __slots__ = (
        "attempts",
        "cleared_ms",
        "closed",
        "created_ms",
        "done",
        "error",
        "estimate",
        "headers",
        "immediate",
        "in_doubt",
        "keys",
        "leader_epoch",
        "limit",
        "node_id",
        "numbers",
        "raw",
        "reserved",
        "room",
        "scale",
        "sends",
        "timestamps_ms",
        "tokens",
        "tp",
        "values",
    )

    def __init__(
        self, tp: TopicPartition, created_ms: float, *, limit: int, reserved: int = 0, ratio: float | None = None
    ) -> None:
        self.tp = tp
        self.created_ms = created_ms
        self.cleared_ms = -inf
        self.limit = limit
        self.reserved = reserved
        self.scale = 1.0 if ratio is None else ratio * SAFETY
        self.raw = self.estimate = 0
        self.room: float = inf
        self.closed = self.done = self.in_doubt = self.immediate = False
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers] = []
        self.timestamps_ms: list[int] = []
        self.tokens: list[int] = []
        self.attempts = Attempts()
        self.sends = self.error = 0
        self.numbers: Numbers | None = None
        self.node_id = self.leader_epoch = UNKNOWN

    @property
    def count(self) -> int:
        """How many records it has."""
        return len(self.values)

    @property
    def full(self) -> bool:
        """Rule 2."""
        return self.closed or self.estimate >= self.limit

    @property
    def numbered(self) -> bool:
        """Whether it has a sequence, which it has from its first drain on."""
        return self.numbers is not None and self.numbers.base_sequence != UNKNOWN

    def close(self) -> None:
        """Take nothing more."""
        self.closed = True
        self.room = -inf

    def append(
        self, value: bytes | None, key: bytes | None, headers: Headers, token: int, timestamp_ms: int, fields: int
    ) -> int:
        """Take a record; by how much the estimate has grown, the batch's own 61 bytes included with the first."""
        values, times = self.values, self.timestamps_ms
        times.append(timestamp_ms)
        raw = self.raw = self.raw + record_size(fields, timestamp_ms - times[0], len(values))
        values.append(value)
        self.headers.append(headers)
        self.tokens.append(token)
        if key is not None or self.keys is not None:
            self._append_key(key)
        before, estimate = self.estimate, BATCH_OVERHEAD + int(raw * self.scale)
        self.estimate = estimate
        self.room = self.limit - estimate - RECORD_OVERHEAD_MAX
        return estimate - before

    def _append_key(self, key: bytes | None) -> None:
        """Columns stay level: the records before the first one with a key get None."""
        if self.keys is None:
            self.keys = [None] * (len(self.values) - 1)
        self.keys.append(key)

    def split(self, limit: int) -> Sequence["ProducerBatch"]:
        """Batches of at most ``limit`` bytes, or of one record, in order: closed, never tried, outside the buffer."""
        parts: list[ProducerBatch] = []
        for number, value in enumerate(self.values):
            key, headers = self.keys[number] if self.keys else None, self.headers[number]
            fields = fields_size(key, value, headers)
            if not parts or fields > parts[-1].room:
                parts.append(ProducerBatch(self.tp, self.created_ms, limit=limit))
            parts[-1].append(value, key, headers, self.tokens[number], self.timestamps_ms[number], fields)
        for part in parts:
            part.close()
            part.in_doubt, part.sends = self.in_doubt, self.sends
        return parts
