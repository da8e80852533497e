"""Launch of a Kafka cluster with Testcontainers, under Aftershock's own names and labels.

All Docker objects of a cluster carry Aftershock's labels, by which `ownership.remove_run` removes the objects after a
failure, and the watchdog removes the objects if the launching process dies. Testcontainers' own reaper is switched off,
because its image can't always be pulled, and because it would remove clusters that should stay.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container as EngineContainer
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from aftershock.errors import ClusterError, EngineError, FaultError, Log
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster import engine, preloads
from aftershock.harness.cluster.cluster import Cluster, ProxyLayer, prefix_of, write_descriptor
from aftershock.harness.cluster.disks import create_volumes, run_on_volume, volumes_of
from aftershock.harness.cluster.engine import Image, docker_errors
from aftershock.harness.cluster.image_contract import checked_image
from aftershock.harness.cluster.node import KafkaNode, last_log_lines
from aftershock.harness.cluster.packets import start_helper
from aftershock.harness.cluster.topology import LOG_DIR, ClusterSpec, Node, client_listener, cluster_id_of
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.kafka.settings import create_topic_on, set_level
from aftershock.harness.lifecycle import watchdog
from aftershock.harness.safety import ownership
from aftershock.harness.safety.ownership import NODE
from aftershock.harness.safety.rundir import RunDir

# Testcontainers reads its settings at import
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")


_READY_S = 90.0
_TOXIPROXY_S = 10.0
_AT_ONCE = 8  # requests to the Docker engine


class RackNetwork(Network):
    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        super().__init__(docker_network_kw={"driver": "bridge", "labels": dict(labels)})
        self.name = name

    def create(self) -> "RackNetwork":
        with docker_errors(EngineError, f"create the Docker network {self.name}"):
            super().create()
        return self


class Container(DockerContainer):
    def __init__(self, image: str, name: str, labels: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(image, name=name, labels=dict(labels), **kwargs)

    def start(self) -> "Container":
        with docker_errors(EngineError, f"start the container {self._name}"):
            super().start()
        return self


@dataclass(frozen=True)
class Images:
    """Images of a cluster; ``tools`` is for clusters with block devices, clocks, packet rules or GC pauses."""

    kafka: Image
    toxiproxy: Image
    tools: Image | None = None


def images_for(client: docker.DockerClient, spec: ClusterSpec, log: Log) -> Images:
    """Find, pull or build the Docker images for a cluster.

    Raises ImageError if an image is not available, EngineError if the engine can't run such a cluster.
    """
    if spec.block_device and (refusal := engine.block_device_refusal(client)):
        raise EngineError(f"the nodes can't have block devices: {refusal}")
    needs_tools = spec.block_device or spec.clocks or spec.packets or spec.gc_pauses
    tools = engine.tools_image(client, log) if needs_tools else None
    if spec.image:
        kafka = checked_image(client, spec.image, log)
    else:
        kafka = (engine.java_client_image if spec.own_classes else engine.kafka_image)(client, spec.kafka, log)
    return Images(kafka, engine.toxiproxy_image(client, log), tools)


def provenance(home: RunDir, cluster: Cluster, images: Images) -> dict[str, Any]:
    """Return the facts for ``run.json`` about a run's cluster, which are its id, profile, images and versions."""
    profile, kafka = cluster.spec.profile, cluster.spec.kafka
    return {
        "cluster": cluster.run_id,
        "profile": {"name": profile.name, **profile.broker, "jvm": profile.jvm_flags},
        "images": {name: image for name, image in asdict(images).items() if image},
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
    """Launch a cluster that belongs to ``owner``, by default this process, and wait until the cluster is ready.

    If a launch fails, the caller must remove the created Docker objects with `ownership.remove_run`. Raises EngineError
    if the Docker engine refused a request, ClusterError if a node died at boot or the cluster was not ready in time.
    """
    topology = spec.topology
    log(f"starting {len(topology.nodes)} Kafka nodes in {len(topology.racks)} racks behind Toxiproxy")
    watchdog.watch(owner or ownership.owner(), run_id, home)
    labels = ownership.labels_of(run_id, home, keep=keep, owned_by=owner)
    networks = {rack: RackNetwork(f"{prefix_of(run_id)}-{rack}", labels) for rack in topology.racks}
    with closing(engine.connect()) as client, ThreadPoolExecutor(_AT_ONCE) as pool:
        objects = _DockerObjects(client, spec, run_id, images, labels, networks)
        list(pool.map(objects.create_volumes, topology.nodes))
        list(pool.map(RackNetwork.create, networks.values()))
        proxy_layer = objects.start_proxy_layer(home)
        containers = [objects.node_container(node, proxy_layer) for node in topology.nodes]
        started = zip(topology.nodes, pool.map(Container.start, containers), strict=True)
        running = {BrokerId(node.id): KafkaNode(node, container.get_wrapped_container()) for node, container in started}
    cluster = Cluster(spec, run_id, proxy_layer, running)
    cluster.await_ready(_READY_S)
    _prepare(cluster)
    write_descriptor(home, run_id, spec)
    return cluster


def _prepare(cluster: Cluster) -> None:
    """Set what the cluster spec asks of a running cluster: levels of features, the topic of clocks, a flushed boot."""
    spec = cluster.spec
    for feature, level in spec.features.items():
        set_level(cluster.admin, feature, level)
    if spec.clocks:
        replicas = {number: (broker,) for number, broker in enumerate(spec.topology.broker_ids)}
        create_topic_on(cluster.admin, preloads.CLOCK_TOPIC, replicas, {"message.timestamp.type": "LogAppendTime"})
    if spec.block_device and spec.block_device.flush_boot:
        # a node whose `bootstrap.checkpoint`, which Kafka does not flush, is lost in a power cut never starts again
        def flush(node: KafkaNode) -> None:
            run_on_volume(node.container, LOG_DIR, f"sync -f {LOG_DIR}", root=True)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(flush, cluster.nodes.values()))


@dataclass(frozen=True)
class _DockerObjects:
    """Docker objects of one cluster, which share its labels and the prefix of its names."""

    client: docker.DockerClient
    spec: ClusterSpec
    run_id: str
    images: Images
    labels: Mapping[str, str]
    networks: Mapping[str, RackNetwork]

    @property
    def prefix(self) -> str:
        return prefix_of(self.run_id)

    @property
    def tools(self) -> str:
        return self.images.tools.name if self.images.tools else ""

    @property
    def preload_folders(self) -> list[str]:
        return [preloads.CLOCK_DIR] * self.spec.clocks + [preloads.GC_DIR] * self.spec.gc_pauses

    def name_of(self, node: Node) -> str:
        return f"{self.prefix}-{node.name}"

    def create_volumes(self, node: Node) -> None:
        name = self.name_of(node)
        create_volumes(self.client, self.spec, node, name, self.labels, self.tools)
        for folder in self.preload_folders:
            preloads.create_preload(self.client, name, folder, self.labels, self.tools)

    def start_proxy_layer(self, home: Path) -> ProxyLayer:
        """Start Toxiproxy with the links of the cluster, and what the spec asks for around it."""
        topology = self.spec.topology
        first, *further = topology.racks
        container = Container(self.images.toxiproxy.name, f"{self.prefix}-toxiproxy", self.labels)
        for node in topology.nodes:
            for volume, path in volumes_of(self.spec, node, self.name_of(node)).items():
                if path != LOG_DIR:  # the kernel drops a volume in memory that no container mounts
                    container.with_volume_mapping(volume, f"/held/{volume}", "ro")
        container.with_command(["-host=0.0.0.0", "-proxy-metrics"])
        container.with_network(self.networks[first]).with_network_aliases(*topology.foreign_names(first))
        ports = {f"{port}/tcp": ("127.0.0.1",) for port in topology.published_ports()}  # a port of the engine's choice
        container.ports |= ports  # type: ignore[arg-type]  # Docker's (address,) form
        started: EngineContainer = container.start().get_wrapped_container()
        for rack in further:
            with docker_errors(EngineError, f"connect Toxiproxy to the Docker network of rack {rack}"):
                self.networks[rack].connect(started.id, topology.foreign_names(rack))
        proxy_layer = ProxyLayer(self.spec, self.prefix, started)

        def missing_state() -> str:
            try:
                proxy_layer.toxiproxy.version()
            except FaultError as error:
                return str(error)
            return ""

        if missing := still_lacking(missing_state, _TOXIPROXY_S):
            raise ClusterError(f"the cluster's Toxiproxy does not answer: {missing}\n{last_log_lines(started)}")
        proxy_layer.toxiproxy.populate(topology.proxies(), proxy_layer.address_in)
        if self.spec.packets:
            start_helper(self.client, self.prefix, started, self.labels, self.tools)
        if self.spec.wire_proxy:
            proxy_layer.add_wire_proxy(home)
        return proxy_layer

    def node_container(self, node: Node, proxy_layer: ProxyLayer) -> Container:
        """Return the container of a node, not yet started; a host of the node is started before."""
        spec, name = self.spec, self.name_of(node)
        advertised = {}
        if node.broker:
            racks = spec.topology.racks
            advertised = {client_listener(rack): str(proxy_layer.advertised(rack, node.id)) for rack in racks}
            advertised["ADMIN"] = str(proxy_layer.admin_address(node.id))
        environment = spec.environment(node, cluster_id_of(self.run_id), advertised)
        environment |= preloads.CLOCK_ENVIRONMENT if spec.clocks else {}
        environment |= preloads.GC_ENVIRONMENT if spec.gc_pauses else {}
        network: dict[str, Any] = {"hostname": node.name}
        if spec.hosts:
            host = Container(self.images.kafka.name, f"{name}-host", self.labels, **network)
            host.with_command(["sleep", "infinity"])
            self._connect(host, node)
            network = {"network_mode": f"container:{host.start().get_wrapped_container().id}"}
        container = Container(
            self.images.kafka.name,
            name,
            {**self.labels, NODE: str(node.id), "aftershock.rack": node.rack},
            env=environment,
            mem_limit=spec.memory,
            # root without DAC_OVERRIDE, so that an unwritable log directory is unwritable for root too
            cap_drop=["DAC_OVERRIDE"],
            **network,
        )
        # existing volumes, because volumes that the container creates lack our labels
        for volume, path in volumes_of(spec, node, name).items():
            container.with_volume_mapping(volume, path, "rw")
        for folder in self.preload_folders:
            container.with_volume_mapping(preloads.preload_volume(name, folder), folder, "rw")
        if not spec.hosts:
            self._connect(container, node)
        return container

    def _connect(self, container: Container, node: Node) -> None:
        container.with_network(self.networks[node.rack]).with_network_aliases(node.name, node.home_name)
