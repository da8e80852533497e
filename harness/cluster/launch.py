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
from itertools import product
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container as EngineContainer
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from aftershock.errors import ClusterError, EngineError, FaultError, Log
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster import clocks, engine, gc_pauses, ownership
from aftershock.harness.cluster.cluster import Cluster, ProxyLayer, prefix_of, write_descriptor
from aftershock.harness.cluster.disks import create_volumes, run_on_volume, volumes_of
from aftershock.harness.cluster.engine import Image, docker_errors
from aftershock.harness.cluster.image_contract import checked_image
from aftershock.harness.cluster.node import KafkaNode, last_log_lines
from aftershock.harness.cluster.ownership import NODE
from aftershock.harness.cluster.packets import start_helper
from aftershock.harness.cluster.preloads import create_preload, preload_volume
from aftershock.harness.cluster.topology import LOG_DIR, ClusterSpec, client_listener, cluster_id_of
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.kafka.settings import create_topic_on, set_level
from aftershock.harness.run.rundir import RunDir
from aftershock.harness.safety import watchdog

# Testcontainers reads its settings at import
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")


_READY_S = 90.0
_TOXIPROXY_S = 10.0


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
    prefix = prefix_of(run_id)
    names = {node: f"{prefix}-{node.name}" for node in topology.nodes}
    networks = {rack: RackNetwork(f"{prefix}-{rack}", labels) for rack in topology.racks}
    with closing(engine.connect()) as client, ThreadPoolExecutor(max_workers=8) as pool:
        tools = images.tools.name if images.tools else ""
        list(pool.map(lambda node: create_volumes(client, spec, node, names[node], labels, tools), names))
        folders = [clocks.CLOCK_DIR] * spec.clocks + [gc_pauses.GC_DIR] * spec.gc_pauses
        places = product(names.values(), folders)
        list(pool.map(lambda place: create_preload(client, place[0], place[1], labels, tools), places))
        preloaded = (clocks.ENVIRONMENT if spec.clocks else {}) | (gc_pauses.ENVIRONMENT if spec.gc_pauses else {})
        list(pool.map(RackNetwork.create, networks.values()))
        toxiproxy = Container(images.toxiproxy.name, f"{prefix}-toxiproxy", labels)
        for node, name in names.items():
            for volume, path in volumes_of(spec, node, name).items():
                if path != LOG_DIR:  # the kernel drops a volume in memory that no container mounts
                    toxiproxy.with_volume_mapping(volume, f"/held/{volume}", "ro")
        proxy_layer = _start_toxiproxy(spec, prefix, toxiproxy, networks)
        if spec.packets:
            start_helper(client, prefix, toxiproxy.get_wrapped_container(), labels, tools)
        if spec.wire_proxy:
            proxy_layer.add_wire_proxy(home)
        nodes = {}
        for node in topology.nodes:
            advertised: dict[str, str] = {}
            if node.broker:
                listeners = {client_listener(rack): proxy_layer.advertised(rack, node.id) for rack in topology.racks}
                advertised = {name: str(address) for name, address in listeners.items()}
                advertised["ADMIN"] = str(proxy_layer.admin_address(node.id))
            network: dict[str, Any] = {"hostname": node.name}
            if spec.hosts:
                host = Container(images.kafka.name, f"{names[node]}-host", labels, **network)
                host.with_command(["sleep", "infinity"])
                host.with_network(networks[node.rack]).with_network_aliases(node.name, node.home_name)
                network = {"network_mode": f"container:{host.start().get_wrapped_container().id}"}
            nodes[node] = container = Container(
                images.kafka.name,
                names[node],
                {**labels, NODE: str(node.id), "aftershock.rack": node.rack},
                env=spec.environment(node, cluster_id_of(run_id), advertised) | preloaded,
                mem_limit=spec.memory,
                # root without DAC_OVERRIDE, so that an unwritable log directory is unwritable for root too
                cap_drop=["DAC_OVERRIDE"],
                **network,
            )
            # existing volumes, because volumes that the container creates lack our labels
            for volume, path in volumes_of(spec, node, names[node]).items():
                container.with_volume_mapping(volume, path, "rw")
            for folder in folders:
                container.with_volume_mapping(preload_volume(names[node], folder), folder, "rw")
            if not spec.hosts:
                container.with_network(networks[node.rack]).with_network_aliases(node.name, node.home_name)
        started = zip(nodes, pool.map(Container.start, nodes.values()), strict=True)
        running = {BrokerId(node.id): KafkaNode(node, container.get_wrapped_container()) for node, container in started}
    cluster = Cluster(spec, run_id, proxy_layer, running)
    cluster.await_ready(_READY_S)
    for feature, level in spec.features.items():
        set_level(cluster.admin, feature, level)
    if spec.clocks:
        replicas = {number: (broker,) for number, broker in enumerate(topology.broker_ids)}
        create_topic_on(cluster.admin, clocks.TOPIC, replicas, {"message.timestamp.type": "LogAppendTime"})
    if spec.block_device and spec.block_device.flush_boot:
        # a node whose `bootstrap.checkpoint`, which Kafka does not flush, is lost in a power cut never starts again
        with ThreadPoolExecutor(max_workers=8) as pool:
            flush = f"sync -f {LOG_DIR}"
            list(pool.map(lambda node: run_on_volume(node.container, LOG_DIR, flush, root=True), running.values()))
    write_descriptor(home, run_id, spec)
    return cluster


def _start_toxiproxy(
    spec: ClusterSpec, prefix: str, container: Container, networks: Mapping[str, RackNetwork]
) -> ProxyLayer:
    topology = spec.topology
    first, *further = topology.racks
    container.with_command(["-host=0.0.0.0", "-proxy-metrics"])
    container.with_network(networks[first]).with_network_aliases(*topology.foreign_names(first))
    ports = {f"{port}/tcp": ("127.0.0.1",) for port in topology.published_ports()}  # a port of the engine's choice
    container.ports |= ports  # type: ignore[arg-type]  # Docker's (address,) form
    started: EngineContainer = container.start().get_wrapped_container()
    for rack in further:
        with docker_errors(EngineError, f"connect Toxiproxy to the Docker network of rack {rack}"):
            networks[rack].connect(started.id, topology.foreign_names(rack))
    proxy_layer = ProxyLayer(spec, prefix, started)

    def missing_state() -> str:
        try:
            proxy_layer.toxiproxy.version()
        except FaultError as error:
            return str(error)
        return ""

    if missing := still_lacking(missing_state, _TOXIPROXY_S):
        raise ClusterError(f"the cluster's Toxiproxy does not answer: {missing}\n{last_log_lines(started)}")
    proxy_layer.toxiproxy.populate(topology.proxies(), proxy_layer.address_in)
    return proxy_layer
