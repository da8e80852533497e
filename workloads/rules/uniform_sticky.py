"""KIP-794, the strictly uniform sticky partitioner: switch by bytes, draw by load; with KIP-1123's draw in the rack.

Kafka: ``BuiltInPartitioner``, and ``RecordAccumulator.append`` around it. S is ``batch.size`` (at least 1).

1. Bytes produced to the sticky partition are counted, whatever becomes of the batches.
2. From S bytes on it switches at the first append that leaves the partition's last batch full (``enable_switch``), so
   that no fraction of a batch stays behind; from 2 S on, at any append.
3. A switch that was put off by rule 2 is made good before a new batch is opened there.
4. The count starts again at 0, also where the draw, which is with replacement, finds the same partition again.
5. The draw: with a load table (adaptive; ``partition_load.py``) by its weights, otherwise uniform over partitions that
   have a leader, and over all if none has.
6. Rack-aware, both kinds of draw are among partitions whose leader is in the client's rack, if there are any.

KIP and Kafka: the KIP switches at S bytes sharp, Kafka puts it off as in rules 2 and 3 (KAFKA-14156). So where records
don't fill a batch to the byte, a partition with a backlog gets two batches a turn and one without gets one: uniform
is uniform within a factor of two. The KIP speaks of the inverse of a queue's length; Kafka's weights are linear in it.
Rule 6 is Kafka 4.4's.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import NamedTuple

from aftershock.workloads.rules.partition_load import LoadTable, load_table, prefer_rack
from aftershock.workloads.rules.sticky import StickyPartition
from aftershock.workloads.rules.topic_view import TopicView

Late = Callable[[], Collection[int]]
"""Which nodes are late now; asked in every pass of the sender."""


class Loads(NamedTuple):
    """A topic as the sender's latest pass found it."""

    view: TopicView
    queued: Mapping[int, int]
    late: Collection[int]


class UniformSticky(StickyPartition):
    """KIP-794 for one topic. ``late`` None: not adaptive, draws are uniform."""

    def __init__(
        self,
        random: Random,
        counts: Counter[str],
        *,
        ignore_keys: bool,
        batch_size: int,
        late: Late | None,
        rack_aware: bool,
    ) -> None:
        super().__init__(random, counts, ignore_keys=ignore_keys)
        self._switch_bytes = max(1, batch_size)
        self._produced_bytes = 0
        self._late = late
        self._rack_aware = rack_aware
        self._loads: Loads | None = None
        self._table: LoadTable | None = None

    def before_new_batch(self, partition: int, *, drawn: bool) -> bool:  # noqa: ARG002 (a drawn one is the sticky one)
        """Rule 3. Only records without a key of their own have a say."""
        if not drawn or self._produced_bytes < self._switch_bytes:
            return False
        self._switch()
        return True

    def appended(self, grown_bytes: int, *, enable_switch: bool) -> None:
        """Rules 1 and 2."""
        produced = self._produced_bytes = self._produced_bytes + grown_bytes
        if produced >= self._switch_bytes and (enable_switch or produced >= 2 * self._switch_bytes):
            self._switch()

    def load(self, queued: Mapping[int, int]) -> None:
        """Keeps what is so now. The table is made when a draw needs it: passes are many, draws are few."""
        if self._late is not None:
            self._loads = Loads(self._view, dict(queued), self._late())

    def _switch(self) -> None:
        self._produced_bytes = 0
        super()._switch()

    def _draw(self) -> int:
        """Rules 5 and 6."""
        table = self._weighed()
        if table is None:
            return self._one_of(self._candidates())
        self._counts["partition_draws_weighted"] += 1
        if table.left_out:
            self._counts["partitions_left_out"] += table.left_out
        if table.in_rack:
            self._counts["partition_draws_in_rack"] += 1
        return table.at(self._random_number())

    def _candidates(self) -> Sequence[int]:
        if self._rack_aware and self._view.in_rack:
            self._counts["partition_draws_in_rack"] += 1
            return self._view.in_rack
        return tuple(self._view.leaders) or range(self._view.partitions)

    def _weighed(self) -> LoadTable | None:
        """The table of the latest pass, made once."""
        if self._loads is not None:
            self._table = self._weigh(self._loads)
            self._loads = None
        return self._table

    def _weigh(self, loads: Loads) -> LoadTable | None:
        table = load_table(loads.view, loads.queued, loads.late)
        if table is None or not self._rack_aware:
            return table
        return prefer_rack(table, loads.view, loads.queued)
