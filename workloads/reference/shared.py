"""What the parts of one consumer share."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from aftershock.workloads.reference.brokers import Brokers
from aftershock.workloads.reference.consumer_settings import ConsumerSettings
from aftershock.workloads.reference.fetch_buffer import FetchBuffer
from aftershock.workloads.reference.tell import Tell
from aftershock.workloads.rules.backoff import Backoff
from aftershock.workloads.rules.leader_discovery import LeaderDiscovery
from aftershock.workloads.rules.metadata import Metadata
from aftershock.workloads.rules.positions import Positions
from aftershock.workloads.rules.read_replica import ReadReplicas
from aftershock.workloads.rules.values import TopicPartition


class Shared(NamedTuple):
    """One consumer's. ``on_change`` wakes its loop; ``clock_ms`` is the event loop's time."""

    settings: ConsumerSettings
    brokers: Brokers
    metadata: Metadata
    discovery: LeaderDiscovery
    positions: Positions
    replicas: ReadReplicas
    buffer: FetchBuffer
    backoff: Backoff
    clock_ms: Callable[[], float]
    tell: Tell
    on_change: Callable[[], None]

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Have these partitions and no others; nothing stays of those that go: neither data nor a lease."""
        gone = set(self.positions).difference(partitions)
        self.positions.assign(partitions)
        self.buffer.drop(gone)
        self.replicas.forget(gone)
