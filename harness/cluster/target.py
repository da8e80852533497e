"""A cluster that a run is driven on, whoever started it: what the run needs of it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster.node import Used
from aftershock.harness.cluster.proxies import WireProxy
from aftershock.harness.kafka.admin import Admin
from aftershock.workloads.adapters.security import Secured
from aftershock.workloads.load.logread import EndOffsets, Topic


class Target(Protocol):
    """Launched (``cluster.Cluster``) or attached (``attached.cluster.AttachedCluster``)."""

    run_id: str
    security: Secured
    """How clients and harness connect."""
    wire_proxy: WireProxy | None
    """The proxy that clients pass, where there is one."""

    @property
    def admin(self) -> Admin:
        """Its administration, by a way that no fault touches where there is one."""

    @property
    def broker_racks(self) -> Mapping[int, str]:
        """The rack of each broker, in the plan's words."""

    @property
    def voters(self) -> Sequence[int]:
        """The voters of the metadata quorum; none where what they do is not ours to answer for."""

    def bootstrap(self, rack: str | None) -> str:
        """``bootstrap.servers`` for clients that stand in ``rack``; None: for the harness itself."""

    def kafka_rack(self, rack: str | None) -> str | None:
        """What Kafka calls a rack of the plan's."""

    def provide(self, topics: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Topic], EndOffsets]:
        """The timeline's topics, there and in sync; and where each log begins for us, where that isn't 0."""

    def proxy_bytes(self) -> Mapping[tuple[str, BrokerId, str], int]:
        """Bytes that the proxies have counted so far, by proxy, node and stream; none where nobody counts."""

    def used(self) -> Mapping[BrokerId, Used]:
        """What each broker has had so far; none where nobody tells."""

    def whereabouts(self) -> dict[str, Any]:
        """Where the cluster is dialled and how its nodes are, for ``run.json``."""
