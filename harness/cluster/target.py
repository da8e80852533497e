"""Interface between a run and its Kafka cluster, which is launched or attached."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster.node import ContainerUsage
from aftershock.harness.cluster.proxies import WireProxy
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.kafka.leader_history import Checkpoints
from aftershock.workloads.load.logread import EndOffsets, Topic
from aftershock.workloads.load.security import SecuritySettings


class Target(Protocol):
    """Kafka cluster of a run, launched (``cluster.Cluster``) or attached (``attached.AttachedCluster``)."""

    run_id: str
    security: SecuritySettings
    wire_proxy: WireProxy | None

    @property
    def admin(self) -> Admin:
        """Client for the administration of the cluster."""

    @property
    def broker_racks(self) -> Mapping[int, str]:
        """Rack of each broker, with the rack's name in the plan."""

    @property
    def voters(self) -> Sequence[int]:
        """Ids of the nodes that vote in the metadata quorum; empty for an attached cluster."""

    def bootstrap(self, rack: str | None, *, own_addresses: bool = False) -> str:
        """Return ``bootstrap.servers`` for clients in ``rack``, or, without ``rack``, for the harness itself.

        With ``own_addresses``, no broker advertises these addresses, if the cluster has a wire proxy.
        """

    def kafka_rack(self, rack: str | None) -> str | None:
        """Return the value of Kafka's ``broker.rack`` for a rack that the plan names."""

    def provide(self, topics: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Topic], EndOffsets]:
        """Create or check the topics of a run; return the topics, and the end offsets of partitions with records."""

    def proxy_bytes(self) -> Mapping[tuple[str, BrokerId, str], int]:
        """Return the bytes that Toxiproxy counted so far, by proxy, node and stream; empty without Toxiproxy."""

    def usage(self) -> Mapping[BrokerId, ContainerUsage]:
        """Return each broker's CPU time and sent bytes so far; empty for an attached cluster."""

    def metrics(self) -> Mapping[BrokerId, Mapping[str, float]]:
        """Return the metrics of each running broker of a cluster with ``jmx``; empty for an attached cluster."""

    def request_cpu_us(self) -> Mapping[BrokerId, int]:
        """Return the CPU time so far of each broker's threads that handle requests; empty if not measurable."""

    def metadata_log(self) -> bytes:
        """Return the segments of the active controller's log; empty for an attached cluster."""

    def epoch_checkpoints(self) -> Checkpoints:
        """Return the start of each leader epoch in each replica's log; empty for an attached cluster."""

    def keep_line(self, line: Mapping[str, Any]) -> None:
        """Keep a line of the run's journal where another machine finds it, if the cluster has such a place.

        Raises FaultError if a fault that is about to be injected can't be kept.
        """

    def exits(self) -> Sequence[str]:
        """Return a sentence for each node that does not run; empty for an attached cluster."""

    def describe(self) -> dict[str, Any]:
        """Return the cluster's addresses and the states of its nodes, to be stored in ``run.json``."""
