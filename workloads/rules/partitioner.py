"""The partitioner of one producer: one of four modes, made of KIP-794's switches, with the partitioner before it.

============  ====================================================  =======================================
mode          is                                                    Kafka's configuration
============  ====================================================  =======================================
sticky        KIP-480, the control (``sticky480.py``)               the default up to 3.2; gone since 4.0
uniform       KIP-794, uniform draws (``uniform_sticky.py``)        partitioner.adaptive.partitioning.enable=false
adaptive      and draws weighed by load (``partition_load.py``)     the default
availability  and late brokers left out (``node_latency.py``)       partitioner.availability.timeout.ms=5
============  ====================================================  =======================================

Counters: ``partition_draws`` of all modes; ``partition_draws_weighted`` by load; ``partitions_left_out`` of those, for
being late; ``partition_draws_in_rack`` among leaders in the client's rack (KIP-1123).
"""

from collections import Counter
from random import Random

from aftershock.errors import SettingError
from aftershock.workloads.rules.node_latency import NodeLatency
from aftershock.workloads.rules.sticky import StickyPartition
from aftershock.workloads.rules.sticky480 import RunawaySticky
from aftershock.workloads.rules.uniform_sticky import UniformSticky

MODES = ("sticky", "uniform", "adaptive", "availability")
AVAILABILITY_TIMEOUT_MS = 5
"""Of mode ``availability`` where nobody says otherwise: the value that KIP-794 measured with."""


class Partitioner:
    """The sticky partitions of all topics, and what they know in common of brokers.

    ``batch_size`` in bytes, ``availability_timeout_ms`` 0: off, or 5 ms in mode ``availability``; as in Kafka it means
    nothing to the modes that don't adapt. ``rack_aware`` likewise means nothing to ``sticky``. ``SettingError`` for
    a mode that doesn't exist.
    """

    def __init__(
        self,
        mode: str,
        *,
        batch_size: int,
        random: Random,
        ignore_keys: bool = False,
        rack_aware: bool = False,
        availability_timeout_ms: float = 0,
    ) -> None:
        if mode not in MODES:
            raise SettingError(f"partitioner: there is no mode {mode!r}, use one of {', '.join(MODES)}")
        self.counts: Counter[str] = Counter()
        self._mode = mode
        self._batch_size = batch_size
        self._random = random
        self._ignore_keys = ignore_keys
        self._rack_aware = rack_aware
        self._timeout_ms = availability_timeout_ms or (AVAILABILITY_TIMEOUT_MS if mode == "availability" else 0)
        self._latency = NodeLatency()
        self._topics: dict[str, StickyPartition] = {}

    def topic(self, name: str) -> StickyPartition:
        """A topic's sticky partition, to be kept (every record needs it) and to be told what it ``sees``."""
        if name not in self._topics:
            self._topics[name] = self._new_topic()
        return self._topics[name]

    def node_ready(self, node_id: int, now_ms: float, *, can_drain: bool) -> None:
        """In every pass of the sender, of each node with data that is ready: whether it can be sent at once."""
        if self._timeout_ms:
            self._latency.ready(node_id, now_ms, can_drain=can_drain)

    def _new_topic(self) -> StickyPartition:
        if self._mode == "sticky":
            return RunawaySticky(self._random, self.counts, ignore_keys=self._ignore_keys)
        return UniformSticky(
            self._random,
            self.counts,
            ignore_keys=self._ignore_keys,
            batch_size=self._batch_size,
            late=None if self._mode == "uniform" else self._late,
            rack_aware=self._rack_aware,
        )

    def _late(self) -> frozenset[int]:
        return self._latency.later_than(self._timeout_ms)
