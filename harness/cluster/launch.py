"""Launch of a cluster with Testcontainers, under our own names and labels.

::

    watchdog ─▶ networks ─▶ Toxiproxy (its host ports are read) ─▶ proxies ─▶ nodes, all at once ─▶ ready ─▶ descriptor
                                                                      └▶ wire proxy, if requested

Ready means: every broker is registered and unfenced, the internal topic that consumers need exists, and every
partition's ISR is full. The state is queried over Kafka's protocol, never read from a log. After a failure, all created
objects carry our labels: `ownership.remove_run` removes them, and the watchdog does so if this process can't.

Testcontainers' own reaper is switched off: its image can't always be pulled, it would remove kept clusters, and the
sweep by label and dead owner (`ownership.py`) does its job.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.models.containers import Container as EngineContainer
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from aftershock.errors import ClusterError, EngineError, FaultError
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster import engine, ownership
from aftershock.harness.cluster.cluster import Cluster, ProxyLayer, prefix_of, write_descriptor
from aftershock.harness.cluster.disks import create_volumes, volumes_kept_mounted, volumes_of
from aftershock.harness.cluster.engine import Image
from aftershock.harness.cluster.node import KafkaNode, last_log_lines
from aftershock.harness.cluster.ownership import NODE
from aftershock.harness.cluster.topology import ClusterSpec, Node, client_listener, cluster_id_of
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.run.rundir import RunDir
from aftershock.harness.safety import watchdog

# Testcontainers reads its settings at import
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")


_MEMORY = "1g"


class RackNetwork(Network):
    """A rack's network with our name and labels."""

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        super().__init__(docker_network_kw={"driver": "bridge", "labels": dict(labels)})
        self.name = name

    def create(self) -> "RackNetwork":
        """Create the network.

        Raises:
            EngineError: the engine refused, for example without a free address range.
        """
        try:
            super().create()
        except APIError as error:
            raise EngineError(f"can't create network {self.name}: {error.explanation or error}") from error
        return self


class Container(DockerContainer):
    """A container with our name and labels, and published ports on loopback only."""

    def __init__(self, image: str, name: str, labels: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(image, name=name, labels=dict(labels), **kwargs)

    def publish_on_loopback(self, ports: list[int]) -> None:
        """Publish ``ports``, each on a loopback port of the engine's choice."""
        self.ports |= {f"{port}/tcp": ("127.0.0.1",) for port in ports}  # type: ignore[misc]  # Docker's (address,) form

    def start(self) -> "Container":
        """Create and start the container.

        Raises:
            EngineError: the engine refused.
        """
        try:
            super().start()
        except APIError as error:
            raise EngineError(f"can't start {self._name}: {error.explanation or error}") from error
        return self


class KafkaContainer(Container):
    """The container of one Kafka node. Its logs are on volumes, so they survive a kill as on a disk.

    ``volumes``: mount paths by volume name. They must exist, because volumes created by the container lack our labels.
    """

    def __init__(
        self,
        node: Node,
        image: str,
        name: str,
        labels: Mapping[str, str],
        environment: Mapping[str, str],
        volumes: Mapping[str, str],
    ) -> None:
        labels = {**labels, NODE: str(node.id), "aftershock.rack": node.rack}
        # root without DAC_OVERRIDE, so that an unwritable log directory is unwritable for root too
        privileges = {"cap_drop": ["DAC_OVERRIDE"]}
        super().__init__(
            image, name, labels, env=dict(environment), hostname=node.name, mem_limit=_MEMORY, **privileges
        )
        for volume, path in volumes.items():
            self.with_volume_mapping(volume, path, "rw")


Log = Callable[[str], None]
_READY_S = 90.0
_TOXIPROXY_S = 10.0


@dataclass(frozen=True)
class Images:
    """The two images of a cluster."""

    kafka: Image
    toxiproxy: Image


def images_for(client: docker.DockerClient, spec: ClusterSpec, log: Log) -> Images:
    """Find, pull or build a cluster's images. Raises ImageError if one is not available."""
    image = engine.java_client_image if spec.own_classes else engine.kafka_image
    return Images(image(client, spec.kafka, log), engine.toxiproxy_image(client, log))


def provenance(home: RunDir, cluster: Cluster, images: Images) -> dict[str, Any]:
    """Return the facts for ``run.json`` about a run's cluster: its id, profile, images and versions."""
    profile, kafka = cluster.spec.profile, cluster.spec.kafka
    return {
        "cluster": cluster.run_id,
        "profile": {"name": profile.name, **profile.broker, "jvm": profile.jvm_flags},
        "images": asdict(images),
        "versions": {**home.facts["versions"], "kafka": kafka, "toxiproxy": engine.TOXIPROXY},
    }


def launch(
    spec: ClusterSpec,
    run_id: str,
    home: Path,
    images: Images,
    log: Log,
    *,
    keep: bool = False,
    owner: str | None = None,
) -> Cluster:
    """Launch a cluster and wait until it is ready. It belongs to ``owner``, by default this process.

    After an error all created objects and logs stay; the caller removes them (`ownership.remove_run`).

    Raises:
        EngineError: the Docker engine refused.
        ClusterError: a node died at boot, or the cluster was not ready in time; the text has the last log lines.
    """
    topology = spec.topology
    log(f"starting {len(topology.nodes)} Kafka nodes in {len(topology.racks)} racks behind Toxiproxy")
    watchdog.watch(owner or ownership.owner(), run_id, home)
    labels = ownership.labels_of(run_id, home, keep=keep, owned_by=owner)
    with closing(engine.connect()) as client:
        cluster = _Launch(client, spec, run_id, labels, images).run(home)
    cluster.await_ready(_READY_S)
    write_descriptor(home, run_id, spec)
    return cluster


class _Launch:
    """State of one launch."""

    def __init__(
        self, client: docker.DockerClient, spec: ClusterSpec, run_id: str, labels: dict[str, str], images: Images
    ) -> None:
        self._client = client
        self._spec = spec
        self._run_id = run_id
        self._prefix = prefix_of(run_id)
        self._labels = labels
        self._images = images
        self._names = {node: f"{self._prefix}-{node.name}" for node in spec.topology.nodes}
        self._networks = {rack: RackNetwork(f"{self._prefix}-{rack}", labels) for rack in spec.topology.racks}

    def run(self, home: Path) -> Cluster:
        create_volumes(self._client, self._spec, self._names, self._labels)
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(RackNetwork.create, self._networks.values()))
            proxy_layer = self._start_toxiproxy()
            if self._spec.wire_proxy:
                proxy_layer.add_wire_proxy(home)
            nodes = {BrokerId(node.id): self._kafka(node, proxy_layer) for node in self._spec.topology.nodes}
            started = dict(zip(nodes, pool.map(KafkaContainer.start, nodes.values()), strict=True))
        by_id = {BrokerId(node.id): node for node in self._spec.topology.nodes}
        running = {
            broker: KafkaNode(by_id[broker], container.get_wrapped_container()) for broker, container in started.items()
        }
        return Cluster(self._spec, self._run_id, proxy_layer, running)

    def _start_toxiproxy(self) -> ProxyLayer:
        topology = self._spec.topology
        first, *others = topology.racks
        container = Container(self._images.toxiproxy.name, f"{self._prefix}-toxiproxy", self._labels)
        container.with_command(["-host=0.0.0.0", "-proxy-metrics"])
        container.with_network(self._networks[first]).with_network_aliases(*topology.foreign_names(first))
        container.publish_on_loopback(topology.published_ports())
        for volume in volumes_kept_mounted(self._spec, self._names):
            container.with_volume_mapping(volume, f"/held/{volume}", "ro")
        toxiproxy: EngineContainer = container.start().get_wrapped_container()
        for rack in others:
            try:
                self._networks[rack].connect(toxiproxy.id, topology.foreign_names(rack))
            except APIError as error:
                raise EngineError(f"can't connect Toxiproxy to rack {rack}: {error.explanation or error}") from error
        proxy_layer = ProxyLayer(self._spec, self._prefix, toxiproxy)
        _await_answer(proxy_layer, toxiproxy)
        proxy_layer.toxiproxy.populate(topology.proxies(), proxy_layer.address_in)
        return proxy_layer

    def _kafka(self, node: Node, proxy_layer: ProxyLayer) -> KafkaContainer:
        advertised: dict[str, str] = {}
        if node.broker:
            for rack in self._spec.topology.racks:
                advertised[client_listener(rack)] = str(proxy_layer.advertised(rack, node.id))
            advertised["ADMIN"] = str(proxy_layer.admin_address(node.id))
        environment = self._spec.environment(node, cluster_id_of(self._run_id), advertised)
        name = self._names[node]
        volumes = volumes_of(self._spec, node, name)
        kafka = KafkaContainer(node, self._images.kafka.name, name, self._labels, environment, volumes)
        kafka.with_network(self._networks[node.rack]).with_network_aliases(node.name, node.home_name)
        return kafka


def _await_answer(proxy_layer: ProxyLayer, container: EngineContainer) -> None:
    def missing_state() -> str:
        try:
            proxy_layer.toxiproxy.version()
        except FaultError as error:
            return str(error)
        return ""

    if missing := still_lacking(missing_state, _TOXIPROXY_S):
        raise ClusterError(f"Toxiproxy does not answer: {missing}\n{last_log_lines(container)}")
