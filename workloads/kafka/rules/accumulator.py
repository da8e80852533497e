"""Record accumulator of one producer (batches by partition, their memory and expiry, and the order of sending).

Modelled on Kafka's ``RecordAccumulator``, ``BufferPool``, ``IncompleteBatches``, and the expiry in ``Sender``.

Append.
  1. A record joins the last batch of its partition if there is room; otherwise that batch is closed and a new batch
     opened, which takes ``batch.size`` (or the record's size bound, if larger) from ``buffer.memory``.
  2. A record is rejected if buffer memory is short, or if the record exceeds ``max.request.size`` or the whole buffer.
     If the last batch was already full, the sticky partition (KIP-794) is switched before the check for memory, so that
     the record may still join a batch of another partition; if the record closed the batch, the check comes first
     (``RecordAccumulator.append``, ``partitionChanged``). Kafka waits for memory in between; here a rejected record
     that is appended again finds the last batch full.

Ready.
  3. A partition's first batch is ready if the batch is full, a second batch is queued, ``linger.ms`` has passed, a
     caller waits for memory or for a flush, or the producer closes; but not while the batch backs off
     (``leader_discovery.py``) or its partition is muted. A broker is ready if a partition that it leads has a ready
     batch.
  4. A partition that has batches but no leader requires a metadata refresh.

Drain of one broker's batches into one Produce request.
  5. A Produce request takes at most one batch per partition, the oldest, ready or not, unless the batch backs off or
     the partition is muted. A Produce request starts at the partition where the last request to the broker ended, so
     that no partition starves.
  6. A Produce request ends before it exceeds ``max.request.size`` (but has at least one batch), or at the first
     partition whose batch must wait because of its sequence (``idempotence.py``); as in Kafka, later partitions wait.
  7. If only one request may be in flight, a partition with a batch in flight is *muted*, so that no other batch of the
     partition is sent until the response arrives.

After the response.
  8. A batch to retry is queued in the order of sequences; without idempotence, at the front.
  9. A batch that the broker rejects as too large is split by ``batch.size``. A part that is rejected again is split by
     half of its own size, but at least by the size bound of its largest record (KAFKA-8350,
     ``RecordAccumulator.splitAndReenqueue``). The first split of an uncompressed batch only repeats the batch.

Memory and expiry.
  10. A batch occupies memory from its opening until its result is known, or, if the batch expires in flight, until the
      response arrives or is lost (``Sender.failExpiredBatches``, ``maybeRemoveAndDeallocateBatchLater``).
  11. A batch expires ``delivery.timeout.ms`` after its creation, whether it is queued, backing off or in flight.
  12. The parts of a split batch have the creation time of the split batch and occupy no buffer memory.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from aftershock.workloads.kafka.rules.batch import (
    BATCH_OVERHEAD,
    CompressionRatios,
    Headers,
    ProducerBatch,
    batch_bound,
    fields_size,
)
from aftershock.workloads.kafka.rules.idempotence import Idempotence, Numbers, precedes
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscovery
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.partitioner import Partitioner, StickyPartition, TopicView, UniformSticky
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition


class Unfinished:
    """Batches of a producer whose result isn't known yet, and the buffer memory that they leave free."""

    def __init__(self, buffer_memory: int, delivery_timeout_ms: float) -> None:
        self.free_bytes = buffer_memory
        self._delivery_timeout_ms = delivery_timeout_ms
        self._batches: dict[ProducerBatch, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: ProducerBatch) -> None:
        self.free_bytes -= batch.reserved
        self._batches[batch] = None

    def add_parts(self, parts: Iterable[ProducerBatch]) -> None:
        """Add the parts of a split batch in the order of their creation times."""
        batches = [*self._batches, *parts]
        self._batches = dict.fromkeys(sorted(batches, key=lambda batch: batch.created_ms))

    def finish(self, batch: ProducerBatch, *, release: bool = True) -> None:
        """Close a batch that was delivered or failed; by default, return its memory to the buffer."""
        del self._batches[batch]
        batch.done = True
        batch.close()
        if release:
            self.release(batch)

    def release(self, batch: ProducerBatch) -> None:
        """Return a batch's memory to the buffer, once."""
        self.free_bytes += batch.reserved
        batch.reserved = 0

    @property
    def oldest_ms(self) -> float:
        """Creation time of the oldest batch whose result isn't known yet; infinite if there is no such batch."""
        return next(iter(self._batches)).created_ms if self._batches else inf

    @property
    def next_expiry_ms(self) -> float:
        return self.oldest_ms + self._delivery_timeout_ms

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        expired = []
        for batch in self._batches:
            if batch.created_ms + self._delivery_timeout_ms > now_ms:
                break
            expired.append(batch)
        return expired

    def all(self) -> list[ProducerBatch]:
        return list(self._batches)


@dataclass(slots=True, eq=False)
class Queue:
    """Queued batches of one partition, oldest first; while ``muted``, no batch of the partition is sent."""

    tp: TopicPartition
    lengths: dict[int, int]
    batches: deque[ProducerBatch] = field(default_factory=deque)
    muted: bool = False

    def open_for(self, fields: int) -> ProducerBatch | None:
        """Return the last batch if a record of ``fields`` bytes fits."""
        return self.batches[-1] if self.batches and fields <= self.batches[-1].room else None

    def close_last(self) -> None:
        if self.batches:
            self.batches[-1].close()


_EMPTY_VIEW = TopicView(0, {})


@dataclass(slots=True, eq=False)
class TopicQueues:
    """Batch queues of one topic by partition; the first record of a partition creates its batch queue.

    ``all_queues`` holds the batch queues of all topics, ``version`` is the version of the metadata from which ``view``
    was built, and ``lengths`` is the number of queued batches by partition, for the partitioner's weights.
    """

    name: str
    sticky: StickyPartition
    all_queues: list[Queue]
    view: TopicView = _EMPTY_VIEW
    version: int = UNKNOWN
    queues: dict[int, Queue] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    def queue_for(self, key: bytes | None, partition: int | None) -> Queue:
        """Return the batch queue of a record's partition, by default chosen by the partitioner."""
        target = self.sticky.choose(key) if partition is None else partition
        queue = self.queues.get(target)
        if queue is None:
            self.lengths[target] = 0
            queue = self.queues[target] = Queue(TopicPartition(self.name, target), self.lengths)
            self.all_queues.append(queue)
        return queue


class Limits(NamedTuple):
    """Settings of the record accumulator, under Kafka's names."""

    batch_size: int
    buffer_memory: int
    linger_ms: float
    delivery_timeout_ms: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    compression_type: str
    client_rack: str | None


class AppendResult(Enum):
    NO_PARTITION = auto()  # the partition is missing from the metadata
    NO_MEMORY = auto()
    TOO_LARGE = auto()  # larger than any request, or than the whole buffer
    JOINED = auto()  # accepted, nothing to send yet
    READY = auto()  # accepted, and the sender must be woken: the batch is new or full


_JOINED, _READY = AppendResult.JOINED, AppendResult.READY  # an enum member lookup costs as much as a call


class Ready(NamedTuple):
    """Brokers with ready batches, milliseconds until another batch may be ready, and partitions without a leader."""

    nodes: Sequence[int]
    wait_ms: float
    leaderless: Sequence[TopicPartition]


class RecordAccumulator:
    """Record accumulator of a producer; ``waiting`` and ``flushing`` count callers that wait for memory or a flush.

    ``completing`` is True while a transaction is about to end, so that no batch lingers.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        metadata: Metadata,
        discovery: LeaderDiscovery,
        partitioner: Partitioner,
        idempotence: Idempotence | None,
    ) -> None:
        self.waiting = self.flushing = 0
        self.closing = self.completing = False
        self.unfinished = Unfinished(limits.buffer_memory, limits.delivery_timeout_ms)
        self._limits = limits
        self._one_at_a_time = limits.max_in_flight_requests_per_connection == 1
        self._fields_max = min(limits.max_request_size, limits.buffer_memory) - batch_bound(0)
        self._metadata = metadata
        self._discovery = discovery
        self._partitioner = partitioner
        self._idempotence = idempotence
        self._ratios = None if limits.compression_type == "none" else CompressionRatios()
        self._topics: dict[str, TopicQueues] = {}
        self._queues: list[Queue] = []
        self._loaded: dict[Queue, None] = {}
        self._led: Mapping[int, Sequence[Queue]] = {}
        self._led_as_of = (UNKNOWN, UNKNOWN)
        self._drain_from: dict[int, int] = {}

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        token: int,
        timestamp_ms: int,
        now_ms: float,
    ) -> AppendResult:
        """Append a record to a batch of its partition, by default chosen by the partitioner."""
        queues = self._topics.get(topic)
        if queues is None or queues.version != self._metadata.version:
            queues = self._refresh_topic(topic)
        if not 0 <= (partition or 0) < queues.view.partitions:
            return AppendResult.NO_PARTITION
        fields = fields_size(key, value, headers)
        if fields > self._fields_max:
            return AppendResult.TOO_LARGE
        queue = queues.queue_for(key, partition)
        batch = queue.open_for(fields) or self._open(queues, queue, key, partition, fields, now_ms)
        if batch is None:
            return AppendResult.NO_MEMORY
        grown = batch.append(value, key, headers, token, timestamp_ms, fields)
        full = batch.estimate >= batch.limit
        if partition is None and (key is None or queues.sticky.draws(key)):
            queues.sticky.appended(grown, enable_switch=full)
        return _READY if full or len(batch.values) == 1 else _JOINED

    def _refresh_topic(self, topic: str) -> TopicQueues:
        queues = self._topics.get(topic)
        if queues is None:
            queues = self._topics[topic] = TopicQueues(topic, self._partitioner.topic(topic), self._queues)
        cached = self._metadata.topic(topic)
        if cached is not None and cached.partitions:
            queues.view = TopicView.of(cached, self._metadata.nodes, self._limits.client_rack)
            queues.version = self._metadata.version
            queues.sticky.set_view(queues.view)
        return queues

    def _open(
        self, queues: TopicQueues, queue: Queue, key: bytes | None, partition: int | None, fields: int, now_ms: float
    ) -> ProducerBatch | None:
        """Return a new batch, or the open batch of a new sticky partition; None if buffer memory is short."""
        size = max(self._limits.batch_size, batch_bound(fields))
        switch_first = isinstance(queues.sticky, UniformSticky) and (not queue.batches or queue.batches[-1].full)
        queue.close_last()
        if not switch_first and size > self.unfinished.free_bytes:
            return None
        drawn = partition is None and queues.sticky.draws(key)
        if queues.sticky.before_new_batch(queue.tp.partition, drawn=drawn):
            queue = queues.queue_for(key, partition)
            if opened := queue.open_for(fields):
                return opened
            queue.close_last()
        if size > self.unfinished.free_bytes:
            return None
        ratio = self._ratios.of(queues.name) if self._ratios else None
        batch = ProducerBatch(queue.tp, now_ms, limit=size, reserved=size, ratio=ratio)
        self.unfinished.add(batch)
        queue.batches.append(batch)
        self._changed(queue)
        return batch

    def _changed(self, queue: Queue) -> None:
        queue.lengths[queue.tp.partition] = len(queue.batches)
        if queue.batches:
            self._loaded[queue] = None
        else:
            self._loaded.pop(queue, None)

    @property
    def is_empty(self) -> bool:
        return not self._loaded

    @property
    def loaded(self) -> Iterable[TopicPartition]:
        """Partitions with queued batches."""
        return [queue.tp for queue in self._loaded]

    def ready(self, now_ms: float) -> Ready:
        """Return the brokers with ready batches, and pass the lengths of all batch queues to the partitioner."""
        nodes: dict[int, None] = {}
        leaderless: list[TopicPartition] = []
        wait_ms = inf
        for queue in self._loaded:
            leader = self._metadata.leader(queue.tp).node_id
            if leader == UNKNOWN:
                leaderless.append(queue.tp)
            elif leader not in nodes and not queue.muted:
                first = queue.batches[0]
                left_ms = self._backoff_ms(first, now_ms)
                hurries = self.waiting or self.flushing or self.closing or self.completing
                if left_ms <= 0 and not (first.full or len(queue.batches) > 1 or hurries):
                    left_ms = first.created_ms + self._limits.linger_ms - now_ms
                if left_ms <= 0:
                    nodes[leader] = None
                elif left_ms < wait_ms:
                    wait_ms = left_ms
        for queues in self._topics.values():
            queues.sticky.load(queues.lengths)
        return Ready(list(nodes), wait_ms, leaderless)

    def _backoff_ms(self, batch: ProducerBatch, now_ms: float) -> float:
        """Return a batch's remaining retry back-off in milliseconds, drawn at random again in each pass of the sender.

        If the back-off is over, the result is 0 until ``now_ms`` changes, so that ``drain`` and ``ready`` agree on the
        ready batches.
        """
        if batch.cleared_ms == now_ms:
            return 0
        wait_ms = self._discovery.wait_ms(batch.attempts, batch.tp, now_ms)
        if wait_ms == 0:
            batch.cleared_ms = now_ms
        return wait_ms

    def drain(self, node_id: int, now_ms: float) -> list[ProducerBatch]:
        """Dequeue the batches of one Produce request to a broker, and close and number these batches."""
        as_of = (self._metadata.version, len(self._queues))
        if self._led_as_of != as_of:
            led: dict[int, list[Queue]] = {}
            for queue in self._queues:
                led.setdefault(self._metadata.leader(queue.tp).node_id, []).append(queue)
            self._led, self._led_as_of = led, as_of
        queues, start = self._led.get(node_id, ()), self._drain_from.get(node_id, 0)
        drained: list[ProducerBatch] = []
        size = 0
        for step in range(len(queues)):
            at = self._drain_from[node_id] = (start + step) % len(queues)
            queue = queues[at]
            if queue.muted or not queue.batches:
                continue
            first = queue.batches[0]
            if self._backoff_ms(first, now_ms) > 0:
                continue
            if drained and size + first.estimate > self._limits.max_request_size:
                break
            if self._idempotence is not None:
                if first.numbers is None:
                    first.numbers = Numbers(first.tp, 0)  # _take sets the count: until then the batch may still grow
                if not self._idempotence.may_drain(first.numbers):
                    break
            size += first.estimate
            drained.append(self._take(queue, node_id))
        return drained

    def _take(self, queue: Queue, node_id: int) -> ProducerBatch:
        batch = queue.batches.popleft()
        self._changed(queue)
        batch.close()
        batch.sends += 1
        batch.node_id, batch.leader_epoch = node_id, self._metadata.leader(queue.tp).epoch
        batch.immediate = self._discovery.drained(batch.attempts)
        if self._idempotence is not None and batch.numbers is not None:
            batch.numbers.count = batch.count
            self._idempotence.drained(batch.numbers)
        queue.muted = self._one_at_a_time
        return batch

    def built(self, batch: ProducerBatch, size: int) -> None:
        """Update a topic's compression estimate from the size in bytes of an encoded batch."""
        if self._ratios:
            self._ratios.observed(batch.tp.topic, (size - BATCH_OVERHEAD) / batch.raw)

    def unmute(self, batch: ProducerBatch) -> None:
        """Unmute the partition of a batch, because the response for the batch has arrived or is lost."""
        if self._one_at_a_time:
            self._queue_of(batch).muted = False

    def retry(self, batch: ProducerBatch, now_ms: float) -> None:
        """Queue a batch for a retry."""
        batch.attempts.on_failure(now_ms)
        batch.cleared_ms = -inf
        self._put_back(batch)

    def split(self, batch: ProducerBatch) -> Sequence[ProducerBatch]:
        """Split a batch that the broker refused as too large, and queue and return the smaller batches."""
        limit = self._limits.batch_size
        if batch.reserved == 0:  # a part of a split batch
            columns = zip(batch.keys or [None] * batch.count, batch.values, batch.headers, strict=True)
            limit = max(batch.estimate // 2, *(batch_bound(fields_size(*record)) for record in columns))
        parts = batch.split(limit)
        if self._ratios:
            self._ratios.too_large(batch.tp.topic)
        if self._idempotence is not None and batch.numbers is not None:
            numbers = self._idempotence.split(batch.numbers, [part.count for part in parts])
            for part, part_numbers in zip(parts, numbers, strict=True):
                part.numbers = part_numbers
        self.unfinished.finish(batch)
        self.unfinished.add_parts(parts)
        for part in reversed(parts):
            self._put_back(part)
        return parts

    def withdraw(self, batch: ProducerBatch) -> bool:
        """Close a batch and remove the batch from its partition's queue; return False for a batch in flight."""
        queue = self._queue_of(batch)
        batch.close()
        if batch not in queue.batches:
            return False
        queue.batches.remove(batch)
        self._changed(queue)
        return True

    def _queue_of(self, batch: ProducerBatch) -> Queue:
        return self._topics[batch.tp.topic].queues[batch.tp.partition]

    def _put_back(self, batch: ProducerBatch) -> None:
        """Insert a batch into its partition's queue after all batches with an earlier sequence, else at the front."""
        queue = self._queue_of(batch)
        place = 0
        if batch.numbers is not None:
            for queued in queue.batches:
                if queued.numbers is None or not queued.numbered:
                    break
                if not precedes(queued.numbers.base_sequence, batch.numbers.base_sequence):
                    break
                place += 1
        queue.batches.insert(place, batch)
        self._changed(queue)
