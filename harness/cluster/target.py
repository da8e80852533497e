"""Interface between a run and its cluster, launched or attached."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster.node import ContainerUsage
from aftershock.harness.cluster.proxies import WireProxy
from aftershock.harness.kafka.admin import Admin
from aftershock.workloads.adapters.security import SecuritySettings
from aftershock.workloads.load.logread import EndOffsets, Topic


class Target(Protocol):
    """Cluster of a run: launched (``cluster.Cluster``) or attached (``attached.AttachedCluster``)."""

    run_id: str
    security: SecuritySettings
    wire_proxy: WireProxy | None

    @property
    def admin(self) -> Admin:
        """Administration, through listeners that no fault touches if there are any."""

    @property
    def broker_racks(self) -> Mapping[int, str]:
        """The rack of each broker, by the plan's names."""

    @property
    def voters(self) -> Sequence[int]:
        """The voters of the metadata quorum; empty for an attached cluster."""

    def bootstrap(self, rack: str | None) -> str:
        """Return ``bootstrap.servers`` for clients in ``rack``; None: for the harness itself."""

    def kafka_rack(self, rack: str | None) -> str | None:
        """Return Kafka's name of one of the plan's racks."""

    def provide(self, topics: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Topic], EndOffsets]:
        """Provide the timeline's topics, in sync; with the first offset of each log where it is not 0."""

    def proxy_bytes(self) -> Mapping[tuple[str, BrokerId, str], int]:
        """Return bytes that the proxies counted so far, by proxy, node and stream; empty without counters."""

    def usage(self) -> Mapping[BrokerId, ContainerUsage]:
        """Return each broker's resource usage so far; empty if it is not measurable."""

    def describe(self) -> dict[str, Any]:
        """Return the cluster's addresses and the state of its nodes, for ``run.json``."""
