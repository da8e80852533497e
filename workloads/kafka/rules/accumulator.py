"""The batches that have not ended: the memory they hold, and when they expire.

Kafka: ``BufferPool``, ``IncompleteBatches`` and the expiry of ``RecordAccumulator`` and ``Sender``.

1. A batch takes its memory when it is opened and gives it back when it has ended, once.
2. A batch expires ``delivery.timeout.ms`` after it was created, wherever it is: queued, backing off or in flight.
3. The parts of a split batch are as old as the whole, and hold no memory of the buffer.

One topic's batches, a queue a partition, and who chooses the partition.

Where records wait for their leader, and the rules of when which batch goes.

Kafka: ``RecordAccumulator``.

Append
  1. A record joins the last batch of its partition if that has room. Otherwise that batch is closed and a new one is
     opened, which takes ``batch.size`` (or the record's own bound, if larger) from ``buffer.memory``.
  2. Without memory for it the record isn't taken; and while somebody waits for memory, every batch is ready. A record
     that no request, or not the whole buffer, could hold isn't taken either.

Ready
  3. A partition's first batch is ready if it is full, or another one is behind it, or it has waited ``linger.ms``, or
     somebody waits for memory, or for a flush, or it is the end; but not while it backs off (``leader_discovery.py``),
     nor while its partition is muted. Then its leader's node is ready.
  4. A partition with batches and without a leader calls for metadata.

Drain, of one node into one request
  5. At most one batch a partition: its first, ready or not, unless it backs off or the partition is muted. It begins
     where the last drain ended, so that none starves.
  6. It ends before ``max.request.size`` would be passed (but one batch always goes), and at a partition whose first
     batch may not go for its sequence's sake (``idempotence.py``): nothing behind that goes either, as shipped.
  7. Where at most one request may be in flight, a drained partition is muted until its answer is there.

Afterwards
  8. A batch that is to be tried again goes where its sequence belongs; without idempotence, to the front.
  9. One that a broker finds too large is split; its parts have never been tried. Kafka splits by ``batch.size``, which
     does nothing to an uncompressed batch (KAFKA-8350): it is tried until it expires. We split by ``batch.size`` or
     half of the batch's own size, whichever is less.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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
from aftershock.workloads.kafka.rules.partitioner import Partitioner, StickyPartition, TopicView
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition


class Unfinished:
    """``free_bytes`` is what is left of the buffer."""

    def __init__(self, buffer_memory: int, delivery_timeout_ms: float) -> None:
        self.free_bytes = buffer_memory
        self._delivery_timeout_ms = delivery_timeout_ms
        self._batches: dict[ProducerBatch, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: ProducerBatch) -> None:
        """A batch was opened; it is the youngest."""
        self.free_bytes -= batch.reserved
        self._batches[batch] = None

    def add_parts(self, parts: Iterable[ProducerBatch]) -> None:
        """A batch was split; its parts go by its age."""
        everything = [*self._batches, *parts]
        self._batches = dict.fromkeys(sorted(everything, key=lambda batch: batch.created_ms))

    def finish(self, batch: ProducerBatch) -> None:
        """A batch has ended, well or badly."""
        del self._batches[batch]
        self.free_bytes += batch.reserved
        batch.done = True
        batch.close()

    @property
    def oldest_ms(self) -> float:
        """When the oldest batch was created; infinite when there is none."""
        return next(iter(self._batches)).created_ms if self._batches else inf

    @property
    def next_expiry_ms(self) -> float:
        """When the next batch expires."""
        return self.oldest_ms + self._delivery_timeout_ms

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """The batches whose time is up, oldest first. They stay until they are finished."""
        found = []
        for batch in self._batches:
            if batch.created_ms + self._delivery_timeout_ms > now_ms:
                break
            found.append(batch)
        return found

    def all(self) -> list[ProducerBatch]:
        """All of them, oldest first."""
        return list(self._batches)


class Queue:
    """One partition's batches, oldest first. ``muted``: nothing is drained before an answer is there.

    ``lengths`` is the topic's; whoever makes the queue longer or shorter says so there.
    """

    __slots__ = ("batches", "lengths", "muted", "tp")

    def __init__(self, tp: TopicPartition, lengths: dict[int, int]) -> None:
        self.tp = tp
        self.lengths = lengths
        self.batches: deque[ProducerBatch] = deque()
        self.muted = False

    def open_for(self, fields: int) -> ProducerBatch | None:
        """The batch that has room for such a record; None if there is none, and then the last one is closed."""
        if not self.batches:
            return None
        last = self.batches[-1]
        if fields <= last.room:
            return last
        last.close()
        return None


class TopicQueues:
    """The queues of one topic, made as records come. ``version``: of the metadata that ``view`` was made from.

    ``everybody`` has the queues of all topics, in the order in which they were made.
    """

    __slots__ = ("everybody", "lengths", "name", "queues", "sticky", "version", "view")

    def __init__(self, name: str, sticky: StickyPartition, everybody: list[Queue]) -> None:
        self.everybody = everybody
        self.name = name
        self.sticky = sticky
        self.view = TopicView(0, {})
        self.version = UNKNOWN
        self.queues: dict[int, Queue] = {}
        self.lengths: dict[int, int] = {}
        """How many batches wait in each queue: what the partitioner weighs partitions by."""

    def sees(self, view: TopicView, version: int) -> None:
        """The metadata is of another version now."""
        self.view, self.version = view, version
        self.sticky.sees(view)

    def queue_for(self, key: bytes | None, partition: int | None) -> Queue:
        """Where a record goes: to its explicit partition, else where the partitioner says."""
        chosen = self.sticky.choose(key) if partition is None else partition
        return self.queues.get(chosen) or self._new_queue(chosen)

    def _new_queue(self, partition: int) -> Queue:
        self.lengths[partition] = 0
        queue = self.queues[partition] = Queue(TopicPartition(self.name, partition), self.lengths)
        self.everybody.append(queue)
        return queue


class Limits(NamedTuple):
    """The settings that the accumulator goes by, under Kafka's names."""

    batch_size: int
    buffer_memory: int
    linger_ms: float
    delivery_timeout_ms: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    compression_type: str
    client_rack: str | None


class Taken(Enum):
    """What came of an append. ``READY``: taken, and the sender had better look (a new batch, or a full one).

    ``NO_PARTITION``: the metadata doesn't know it. ``TOO_LARGE``: for any request, or for the whole buffer.
    """

    NO_PARTITION = auto()
    NO_MEMORY = auto()
    TOO_LARGE = auto()
    JOINED = auto()
    READY = auto()


_JOINED, _READY = Taken.JOINED, Taken.READY  # to look one up in its class takes as long as a call


class Ready(NamedTuple):
    """What a look at all queues found: nodes to drain, how long until another look may find more, and rule 4."""

    nodes: Sequence[int]
    wait_ms: float
    leaderless: Sequence[TopicPartition]


class RecordAccumulator:
    """The batches of one producer. ``idempotence`` None: without.

    ``waiting`` is how many callers wait for memory, ``flushing`` how many for a flush; ``closing``: it is the end.
    ``unfinished`` holds every batch until its ``finish``.
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
        self.closing = False
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

    # -- append

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
    ) -> Taken:
        """Take one record (rules 1 and 2). ``partition`` None: the partitioner chooses."""
        queues = self._topics.get(topic)
        if queues is None or queues.version != self._metadata.version:
            queues = self._look_at(topic)
        if not 0 <= (partition or 0) < queues.view.partitions:
            return Taken.NO_PARTITION
        fields = fields_size(key, value, headers)
        if fields > self._fields_max:
            return Taken.TOO_LARGE
        queue = queues.queue_for(key, partition)
        batch = queue.open_for(fields) or self._open(queues, queue, key, partition, fields, now_ms)
        if batch is None:
            return Taken.NO_MEMORY
        grown = batch.append(value, key, headers, token, timestamp_ms, fields)
        full = batch.estimate >= batch.limit
        if partition is None and (key is None or queues.sticky.draws(key)):
            queues.sticky.appended(grown, enable_switch=full)
        return _READY if full or len(batch.values) == 1 else _JOINED

    def _look_at(self, topic: str) -> TopicQueues:
        """A topic's queues, by the metadata of now."""
        queues = self._topics.get(topic)
        if queues is None:
            queues = self._topics[topic] = TopicQueues(topic, self._partitioner.topic(topic), self._queues)
        found = self._metadata.topic(topic)
        if found is not None and found.partitions:
            view = TopicView.of(found, self._metadata.nodes, self._limits.client_rack)
            queues.sees(view, self._metadata.version)
        return queues

    def _open(
        self, queues: TopicQueues, queue: Queue, key: bytes | None, partition: int | None, fields: int, now_ms: float
    ) -> ProducerBatch | None:
        """A new batch, or the open one of the partition that the partitioner moves to instead; None without memory."""
        size = max(self._limits.batch_size, batch_bound(fields))
        if size > self.unfinished.free_bytes:
            return None
        drawn = partition is None and queues.sticky.draws(key)
        if queues.sticky.before_new_batch(queue.tp.partition, drawn=drawn):
            queue = queues.queue_for(key, partition)
            if opened := queue.open_for(fields):
                return opened
        ratio = self._ratios.of(queues.name) if self._ratios else None
        batch = ProducerBatch(queue.tp, now_ms, limit=size, reserved=size, ratio=ratio)
        self.unfinished.add(batch)
        queue.batches.append(batch)
        self._changed(queue)
        return batch

    def _changed(self, queue: Queue) -> None:
        """A queue has got longer or shorter."""
        queue.lengths[queue.tp.partition] = len(queue.batches)
        if queue.batches:
            self._loaded[queue] = None
        else:
            self._loaded.pop(queue, None)

    # -- ready

    @property
    def is_empty(self) -> bool:
        """Whether no batch waits to be drained."""
        return not self._loaded

    def ready(self, now_ms: float) -> Ready:
        """Rules 3 and 4. The partitioner learns the lengths of all queues."""
        nodes: dict[int, None] = {}
        leaderless: list[TopicPartition] = []
        wait_ms = inf
        for queue in self._loaded:
            leader = self._metadata.leader(queue.tp).node_id
            if leader == UNKNOWN:
                leaderless.append(queue.tp)
            elif leader not in nodes and not queue.muted:
                left_ms = self._left_ms(queue, now_ms)
                if left_ms <= 0:
                    nodes[leader] = None
                elif left_ms < wait_ms:
                    wait_ms = left_ms
        for queues in self._topics.values():
            queues.sticky.load(queues.lengths)
        return Ready(list(nodes), wait_ms, leaderless)

    def _left_ms(self, queue: Queue, now_ms: float) -> float:
        """How long until a queue's first batch is ready, if nothing happens."""
        first = queue.batches[0]
        if (backing_off_ms := self._backs_off_ms(first, now_ms)) > 0:
            return backing_off_ms
        if first.full or len(queue.batches) > 1 or self.waiting or self.flushing or self.closing:
            return 0
        return first.created_ms + self._limits.linger_ms - now_ms

    def _backs_off_ms(self, batch: ProducerBatch, now_ms: float) -> float:
        """Asked anew at each look, but once in one: the draws of ``ready`` and of ``drain`` must not contradict."""
        if batch.cleared_ms == now_ms:
            return 0
        wait_ms = self._discovery.wait_ms(batch.attempts, batch.tp, now_ms)
        if wait_ms == 0:
            batch.cleared_ms = now_ms
        return wait_ms

    # -- drain

    def drain(self, node_id: int, now_ms: float) -> list[ProducerBatch]:
        """What goes to a node in one request now (rules 5 to 7): closed, numbered, counted as in flight."""
        queues, start = self._led_by(node_id), self._drain_from.get(node_id, 0)
        taken: list[ProducerBatch] = []
        size = 0
        for step in range(len(queues)):
            at = self._drain_from[node_id] = (start + step) % len(queues)
            queue = queues[at]
            if queue.muted or not queue.batches:
                continue
            first = queue.batches[0]
            if self._backs_off_ms(first, now_ms) > 0:
                continue
            if (taken and size + first.estimate > self._limits.max_request_size) or not self._may_go(first):
                break
            size += first.estimate
            taken.append(self._take(queue, node_id))
        return taken

    def _led_by(self, node_id: int) -> Sequence[Queue]:
        """The queues of the partitions that a node leads."""
        as_of = (self._metadata.version, len(self._queues))
        if self._led_as_of != as_of:
            led: dict[int, list[Queue]] = {}
            for queue in self._queues:
                led.setdefault(self._metadata.leader(queue.tp).node_id, []).append(queue)
            self._led, self._led_as_of = led, as_of
        return self._led.get(node_id, ())

    def _may_go(self, batch: ProducerBatch) -> bool:
        if self._idempotence is None:
            return True
        if batch.numbers is None:
            batch.numbers = Numbers(batch.tp, 0)  # whoever may not go yet may still grow
        return self._idempotence.may_drain(batch.numbers)

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

    # -- afterwards

    def built(self, batch: ProducerBatch, size: int) -> None:
        """A drained batch came out at ``size`` bytes: what the next ones of its topic may hope for."""
        if self._ratios:
            self._ratios.observed(batch.tp.topic, (size - BATCH_OVERHEAD) / batch.raw)

    def unmute(self, batch: ProducerBatch) -> None:
        """The answer to a drained batch is there, or will never be."""
        if self._one_at_a_time:
            self._queue_of(batch).muted = False

    def retry(self, batch: ProducerBatch, now_ms: float) -> None:
        """A drained batch is to be tried again (rule 8)."""
        batch.attempts.failed(now_ms)
        batch.cleared_ms = -inf
        self._put_back(batch)

    def split(self, batch: ProducerBatch) -> Sequence[ProducerBatch]:
        """A drained batch is too large (rule 9). Its parts are queued in its place, and returned; it has ended."""
        parts = batch.split(min(self._limits.batch_size, (BATCH_OVERHEAD + batch.raw) // 2))
        if self._ratios:
            self._ratios.too_large(batch.tp.topic)
        if self._idempotence is not None and batch.numbers is not None:
            numbers = self._idempotence.split(batch.numbers, [part.count for part in parts])
            for part, own in zip(parts, numbers, strict=True):
                part.numbers = own
        self.unfinished.finish(batch)
        self.unfinished.add_parts(parts)
        for part in reversed(parts):
            self._put_back(part)
        return parts

    def withdraw(self, batch: ProducerBatch) -> bool:
        """Take a batch out of its queue, if it is there; False means that it is in flight."""
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
        queue = self._queue_of(batch)
        queue.batches.insert(_place(queue, batch), batch)
        self._changed(queue)


def _place(queue: Queue, batch: ProducerBatch) -> int:
    """Behind those with an earlier sequence. Batches that have none were never drained and are behind all that have."""
    place = 0
    if batch.numbers is not None:
        for other in queue.batches:
            if other.numbers is None or not other.numbered:
                break
            if not precedes(other.numbers.base_sequence, batch.numbers.base_sequence):
                break
            place += 1
    return place
