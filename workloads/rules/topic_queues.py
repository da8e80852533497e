"""One topic's batches, a queue a partition, and who chooses the partition."""

from collections import deque

from aftershock.workloads.rules.batch import Batch
from aftershock.workloads.rules.sticky import StickyPartition
from aftershock.workloads.rules.topic_view import TopicView
from aftershock.workloads.rules.values import UNKNOWN, TopicPartition


class Queue:
    """One partition's batches, oldest first. ``muted``: nothing is drained before an answer is there.

    ``lengths`` is the topic's; whoever makes the queue longer or shorter says so there.
    """

    __slots__ = ("batches", "lengths", "muted", "tp")

    def __init__(self, tp: TopicPartition, lengths: dict[int, int]) -> None:
        self.tp = tp
        self.lengths = lengths
        self.batches: deque[Batch] = deque()
        self.muted = False

    def open_for(self, fields: int) -> Batch | None:
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
