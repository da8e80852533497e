"""Batches that a producer fills (sizes of records, compression estimates, and the state of a batch until it ends).

Modelled on Kafka's ``ProducerBatch``, ``MemoryRecordsBuilder``, ``DefaultRecord.sizeInBytes``,
``CompressionRatioEstimator``. A producer's batch is encoded only when it is sent.

1. A batch accepts its first record, and further records while the estimated size of the batch with the record stays
   within the batch's size limit.
2. A batch is full if its estimated size reaches the size limit, or if the batch was closed. Sending closes a batch, so
   a retried batch never lingers.
3. A batch is in doubt after an attempt that may have been written (``surely_refused`` in ``idempotence.py``).
4. The compression estimate of a topic, compressed over uncompressed size, starts at 1. A batch that compresses worse
   raises the topic's estimate at once, by at least 0.05; a batch that compresses better lowers the estimate by 0.005.
   A batch uses the compression estimate at the time of its opening, plus 5 % for safety.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import lru_cache
from math import inf
from uuid import UUID

from aftershock.workloads.kafka.rules.idempotence import Numbers
from aftershock.workloads.kafka.rules.leader_discovery import Attempts
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition

Headers = Sequence[tuple[str, bytes | None]]

BATCH_OVERHEAD = 61
"""Size of an encoded batch without records."""

RECORD_OVERHEAD_MAX = 21
"""Largest size of a record's bytes before its key: length, attributes and deltas (``MAX_RECORD_OVERHEAD``)."""


def fields_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the size of a record's key, value and headers, including their length fields."""
    # Called for every record: the size of a varint, (bit length + 7) // 7, is written out because a call costs more.
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
    """Return the encoded size of a record; ``fields`` is the result of ``fields_size``.

    The result may be one byte too large for a record that is older than the batch's first record.
    """
    body = 1 + (time_delta_ms.bit_length() + 7) // 7 + (offset_delta.bit_length() + 7) // 7 + fields
    return body + (body.bit_length() + 7) // 7


def batch_bound(fields: int) -> int:
    """Return an upper bound of the size of a batch with a record of ``fields`` bytes."""
    return BATCH_OVERHEAD + RECORD_OVERHEAD_MAX + fields


SAFETY = 1.05
WORSE_STEP = 0.05
BETTER_STEP = 0.005


class CompressionRatios:
    """Compression estimates of one producer by topic."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def of(self, topic: str) -> float:
        return self._ratios.get(topic, 1.0)

    def observed(self, topic: str, ratio: float) -> None:
        estimate = self.of(topic)
        step = estimate + WORSE_STEP if ratio > estimate else estimate - BETTER_STEP
        self._ratios[topic] = max(step, ratio)

    def too_large(self, topic: str) -> None:
        """Reset a topic's compression estimate after a broker refused a batch as too large."""
        self._ratios[topic] = 1.0


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records of one partition that are delivered or fail together; a batch without any key has no ``keys``.

    ``limit`` is the size in bytes up to which a batch is filled, ``reserved`` the bytes of ``buffer.memory`` that the
    batch occupies, ``raw`` the size of its records before compression, ``estimate`` the estimated size of the encoded
    batch, and ``room`` the largest size of the key, value and headers of a further record.

    ``sends`` is the number of attempts to send the batch, including the current attempt. ``node_id``, ``leader_epoch``,
    ``topic_id``, ``error`` and ``immediate`` (a retry without back-off) describe the latest attempt to send the batch.
    ``cleared_ms`` is the latest time at which the batch did not wait for a retry back-off.
    """

    tp: TopicPartition
    created_ms: float
    _: KW_ONLY
    limit: int
    reserved: int = 0
    ratio: InitVar[float | None] = None
    scale: float = field(init=False)
    raw: int = field(default=0, init=False)
    estimate: int = field(default=0, init=False)
    room: float = field(default=inf, init=False)
    values: list[bytes | None] = field(default_factory=list, init=False)
    keys: list[bytes | None] | None = field(default=None, init=False)
    headers: list[Headers] = field(default_factory=list, init=False)
    timestamps_ms: list[int] = field(default_factory=list, init=False)
    tokens: list[int] = field(default_factory=list, init=False)
    closed: bool = field(default=False, init=False)
    done: bool = field(default=False, init=False)
    in_doubt: bool = field(default=False, init=False)
    attempts: Attempts = field(default_factory=Attempts, init=False)
    sends: int = field(default=0, init=False)
    error: int = field(default=0, init=False)
    immediate: bool = field(default=False, init=False)
    cleared_ms: float = field(default=-inf, init=False)
    numbers: Numbers | None = field(default=None, init=False)
    node_id: int = field(default=UNKNOWN, init=False)
    leader_epoch: int = field(default=UNKNOWN, init=False)
    topic_id: UUID | None = field(default=None, init=False)

    def __post_init__(self, ratio: float | None) -> None:
        self.scale = 1.0 if ratio is None else ratio * SAFETY

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def full(self) -> bool:
        return self.closed or self.estimate >= self.limit

    @property
    def numbered(self) -> bool:
        """True if the batch has a sequence number, assigned by the first attempt to send the batch."""
        return self.numbers is not None and self.numbers.base_sequence != UNKNOWN

    def close(self) -> None:
        self.closed = True
        self.room = -inf

    def append(
        self, value: bytes | None, key: bytes | None, headers: Headers, token: int, timestamp_ms: int, fields: int
    ) -> int:
        """Append a record to the batch; return the growth of the batch's estimated size, including a new header."""
        values, times = self.values, self.timestamps_ms
        times.append(timestamp_ms)
        raw = self.raw = self.raw + record_size(fields, timestamp_ms - times[0], len(values))
        if key is not None or self.keys is not None:
            if self.keys is None:  # the earlier records have no key
                self.keys = [None] * len(values)
            self.keys.append(key)
        values.append(value)
        self.headers.append(headers)
        self.tokens.append(token)
        before, estimate = self.estimate, BATCH_OVERHEAD + int(raw * self.scale)
        self.estimate = estimate
        self.room = self.limit - estimate - RECORD_OVERHEAD_MAX
        return estimate - before

    def split(self, limit: int) -> Sequence["ProducerBatch"]:
        """Split a batch into closed batches of at most ``limit`` bytes, or of a single larger record."""
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
