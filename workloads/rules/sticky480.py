"""KIP-480, the sticky partitioner before KIP-794, as a control: it switches with every new batch, and so runs away.

Kafka up to 3.2 by default: ``DefaultPartitioner`` over ``StickyPartitionCache``; with keys ignored it is
``UniformStickyPartitioner``. Kafka 4.0 removed them.

1. Whenever a batch must be opened in the sticky partition, for whatever record, another partition becomes sticky
   (``onNewBatch``), and a record without a key of its own goes there.
2. The draw is uniform over partitions that have a leader, the present one excepted; the only one if there is but one;
   over all if none has a leader.

Why it is a control: a slow broker keeps its batches open for longer, so more records go there for each switch, which
makes it slower yet. KIP-794's motivation measured five times the bytes.
"""

from collections.abc import Mapping

from aftershock.workloads.rules.sticky import StickyPartition


class RunawaySticky(StickyPartition):
    """KIP-480 for one topic."""

    def before_new_batch(self, partition: int, *, drawn: bool) -> bool:
        """Rule 1."""
        if partition != self._partition:
            return False
        self._switch()
        return drawn

    def appended(self, grown_bytes: int, *, enable_switch: bool) -> None:
        """Bytes mean nothing to it."""

    def load(self, queued: Mapping[int, int]) -> None:
        """Nor does load."""

    def _draw(self) -> int:
        """Rule 2."""
        led = tuple(self._view.leaders)
        others = [partition for partition in led if partition != self._partition]
        return self._one_of(others or led or range(self._view.partitions))
