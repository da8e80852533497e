"""The odds of each partition in an adaptive draw: the longer its queue, the smaller (KIP-794).

Kafka: ``BuiltInPartitioner.updatePartitionLoadStats``; the in-rack table is KIP-1123's. An example: queues of 0, 3 and
1 batches have the weights 4, 1 and 3 (the longest queue and one, less the own), whose running sum 4, 5, 8 is the
cumulative frequency table: a random number 0…7 belongs to the first entry that is greater than it.

1. A partition without a leader has no place in the table.
2. Nor has one with waiting batches whose broker is *late* (``node_latency.py``).
3. No table, that is a uniform draw: while some partition never had a batch, with fewer than two queues, with nobody
   left, or when all queues are equally long and nobody was left out.
4. The in-rack table has the partitions of the first one whose leader is in the client's rack, with weights by their
   own longest queue. It holds where it isn't empty.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from aftershock.workloads.rules.topic_view import TopicView

QUEUES_MIN = 2


class LoadTable(NamedTuple):
    """Partitions and their cumulative frequencies; how many a late broker kept out of it; whether all are near."""

    partitions: tuple[int, ...]
    cumulative: tuple[int, ...]
    left_out: int = 0
    in_rack: bool = False

    def at(self, number: int) -> int:
        """The partition that a non-negative random number falls to."""
        return self.partitions[bisect_right(self.cumulative, number % self.cumulative[-1])]


def load_table(view: TopicView, queued: Mapping[int, int], late: Collection[int]) -> LoadTable | None:
    """Rules 1-3; None: draw uniformly. ``queued``: batches waiting where there ever was one; ``late``: node ids."""
    if len(queued) < max(view.partitions, QUEUES_MIN):
        return None
    led = [partition for partition in view.leaders if partition in queued]
    kept = [partition for partition in led if not (queued[partition] and view.leaders[partition] in late)]
    all_equal = len(kept) == len(queued) and len(set(queued.values())) == 1
    if not kept or all_equal:
        return None
    return LoadTable(tuple(kept), weigh(kept, queued), left_out=len(led) - len(kept))


def prefer_rack(table: LoadTable, view: TopicView, queued: Mapping[int, int]) -> LoadTable:
    """Rule 4: what a client draws from that prefers leaders in its own rack."""
    in_rack = frozenset(view.in_rack)
    near = tuple(partition for partition in table.partitions if partition in in_rack)
    return LoadTable(near, weigh(near, queued), table.left_out, in_rack=True) if near else table


def weigh(partitions: Sequence[int], queued: Mapping[int, int]) -> tuple[int, ...]:
    """The weights that the module describes, summed up."""
    sizes = [queued[partition] for partition in partitions]
    most = max(sizes) + 1
    return tuple(accumulate([most - size for size in sizes]))
