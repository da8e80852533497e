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
        """Administration, of a launched cluster through listeners that no fault touches."""

    @property
    def broker_racks(self) -> Mapping[int, str]:
        """Rack of each broker, under the plan's names."""

    @property
    def voters(self) -> Sequence[int]:
        """Voters of the metadata quorum; empty for an attached cluster."""

    def bootstrap(self, rack: str | None) -> str:
        """Return ``bootstrap.servers`` for clients in ``rack``, or for the harness itself if ``rack`` is None."""

    def kafka_rack(self, rack: str | None) -> str | None:
        """Return the value of ``broker.rack`` for a rack of the plan."""

    def provide(self, topics: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Topic], EndOffsets]:
        """Provide the timeline's topics, in sync; return the topics, and the end offsets of logs that have records."""

    def proxy_bytes(self) -> Mapping[tuple[str, BrokerId, str], int]:
        """Return the bytes that Toxiproxy counted so far, by proxy, node and stream; empty without counters."""

    def usage(self) -> Mapping[BrokerId, ContainerUsage]:
        """Return each broker's resource usage so far; empty for an attached cluster."""

    def describe(self) -> dict[str, Any]:
        """Return the cluster's addresses and the state of its nodes, for ``run.json``."""
