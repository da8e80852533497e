"""Where one topic's records go: by key, else to the topic's sticky partition. When that changes is the subclass's.

Order of choice, as ``KafkaProducer.partition`` has it: the caller's explicit partition (then nobody asks here), the
key's hash over all partitions unless keys are ignored, the sticky partition.

For each record the accumulator does this (in one thread, so the races that Kafka's own loop guards against can't be)::

    partition = sticky.choose(key)                     # or the explicit one
    drawn = explicit is None and sticky.draws(key)
    if no open batch of that partition takes the record:
        close the last one if it is open (the record doesn't fit in)
        if sticky.before_new_batch(partition, drawn=drawn):
            choose again, and look at that partition's batches instead; a new one there needs no second question
    append
    if drawn:
        sticky.appended(grown_bytes, enable_switch=the partition's last batch is full or closed)

``grown_bytes`` is the growth of the batch's estimated size, the 61 bytes of its header included with its first record.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from aftershock.workloads.rules.murmur2 import partition_for_key
from aftershock.workloads.rules.topic_view import TopicView
from aftershock.workloads.rules.values import UNKNOWN


class StickyPartition(ABC):
    """The sticky partition of one topic. ``sees`` must have been called before anything else."""

    def __init__(self, random: Random, counts: Counter[str], *, ignore_keys: bool) -> None:
        self._random = random
        self._counts = counts
        self._ignore_keys = ignore_keys
        self._view = TopicView(0, {})
        self._partition = UNKNOWN

    def sees(self, view: TopicView) -> None:
        """Metadata changed. The sticky partition stays what it is; the next draw goes by the new view."""
        self._view = view

    def draws(self, key: bytes | None) -> bool:
        """Whether a record with this key goes to the sticky partition. An empty key is a key."""
        return key is None or self._ignore_keys

    def choose(self, key: bytes | None) -> int:
        """The partition of a record that has no explicit one."""
        if key is not None and not self._ignore_keys:
            return partition_for_key(key, self._view.partitions)
        if self._partition == UNKNOWN:
            self._switch()
        return self._partition

    @abstractmethod
    def before_new_batch(self, partition: int, *, drawn: bool) -> bool:
        """A batch must be opened in ``partition``. True: the sticky partition changed meanwhile, choose again."""

    @abstractmethod
    def appended(self, grown_bytes: int, *, enable_switch: bool) -> None:
        """A drawn record was appended to the sticky partition's last batch."""

    @abstractmethod
    def load(self, queued: Mapping[int, int]) -> None:
        """How many batches wait in each partition that ever had one; said in every pass of the sender."""

    @abstractmethod
    def _draw(self) -> int:
        """A new sticky partition."""

    def _switch(self) -> None:
        self._partition = self._draw()
        self._counts["partition_draws"] += 1

    def _one_of(self, partitions: Sequence[int]) -> int:
        return partitions[self._random_number() % len(partitions)]

    def _random_number(self) -> int:
        return self._random.getrandbits(31)
