"""What a cluster is made of on the engine, launched with Testcontainers under names and labels of ours.

Testcontainers' own reaper is switched off: its image can't always be pulled, it would reap kept clusters, and the sweep
by label and dead owner (`labels.py`) does its work.

Launching a cluster.

::

    watchdog ─▶ networks ─▶ Toxiproxy (its host ports are read) ─▶ proxies ─▶ nodes, all at once ─▶ ready ─▶ card
                                                                      └▶ wire proxy, where one is wanted

Ready means: every broker registered and unfenced, the internal topic that consumers need created, and every partition's
ISR full; asked over Kafka's protocol, never read from a log. Whatever goes wrong, what was begun carries our labels:
`labels.remove_run` undoes it, and the watchdog does when we can't.
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
from docker.models.containers import Container as Handle
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from aftershock.errors import ClusterError, EngineError, FaultError
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster import engine, ownership
from aftershock.harness.cluster.cluster import Cluster, Crossing, prefix_of, write_card
from aftershock.harness.cluster.disks import create_volumes, held_by_toxiproxy, volumes_of
from aftershock.harness.cluster.engine import Image
from aftershock.harness.cluster.node import KafkaNode, last_log_lines
from aftershock.harness.cluster.ownership import NODE
from aftershock.harness.cluster.topology import ClusterSpec, Node, client_listener, cluster_id_of
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.run.rundir import RunDir
from aftershock.harness.safety import watchdog

# Testcontainers reads its settings when it is imported
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")


_MEMORY = "1g"


class RackNetwork(Network):
    """A rack's network, under a name and labels of ours."""

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        super().__init__(docker_network_kw={"driver": "bridge", "labels": dict(labels)})
        self.name = name

    def create(self) -> "RackNetwork":
        """Create it.

        Raises:
            EngineError: the engine refused, for want of free address ranges say.
        """
        try:
            super().create()
        except APIError as error:
            raise EngineError(f"can't create network {self.name}: {error.explanation or error}") from error
        return self


class Container(DockerContainer):
    """A container with our name and labels, whose published ports are on loopback only."""

    def __init__(self, image: str, name: str, labels: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(image, name=name, labels=dict(labels), **kwargs)

    def publish_on_loopback(self, ports: list[int]) -> None:
        """Publish ``ports``, each on a loopback port that the engine chooses."""
        self.ports |= {f"{port}/tcp": ("127.0.0.1",) for port in ports}  # type: ignore[misc]  # Docker's (address,) form

    def start(self) -> "Container":
        """Create and start it.

        Raises:
            EngineError: the engine refused.
        """
        try:
            super().start()
        except APIError as error:
            raise EngineError(f"can't start {self._name}: {error.explanation or error}") from error
        return self


class KafkaContainer(Container):
    """The container of one Kafka node, its logs on volumes, so that they survive a kill as a disk would.

    ``volumes``: where each is mounted, by name; they must be there, as one that the container creates lacks our labels.
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
        # root without the right to write everywhere: a log directory that is made unwritable is so for every user
        rights = {"cap_drop": ["DAC_OVERRIDE"]}
        super().__init__(image, name, labels, env=dict(environment), hostname=node.name, mem_limit=_MEMORY, **rights)
        for volume, path in volumes.items():
            self.with_volume_mapping(volume, path, "rw")


Say = Callable[[str], None]
_READY_S = 90.0
_TOXIPROXY_S = 10.0


@dataclass(frozen=True)
class Images:
    """The two images of a cluster."""

    kafka: Image
    toxiproxy: Image


def images_for(client: docker.DockerClient, spec: ClusterSpec, say: Say) -> Images:
    """Find, pull or build what a cluster needs; ImageError where that can't be done."""
    image = engine.java_client_image if spec.own_classes else engine.kafka_image
    return Images(image(client, spec.kafka, say), engine.toxiproxy_image(client, say))


def provenance(home: RunDir, cluster: Cluster, images: Images) -> dict[str, Any]:
    """What ``run.json`` says of the cluster that a run stands on: which, and of what it was made."""
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
    say: Say,
    *,
    keep: bool = False,
    owner: str | None = None,
) -> Cluster:
    """Bring a cluster up and wait until it is ready. It belongs to ``owner``, by default this process.

    On an error what was begun stays, logs included, and it is the caller's to remove (`labels.remove_run`).

    Raises:
        EngineError: the Docker engine refused.
        ClusterError: a node died at boot, or the cluster was not ready in time; its last log lines are in the text.
    """
    topology = spec.topology
    say(f"starting {len(topology.nodes)} Kafka nodes in {len(topology.racks)} racks behind Toxiproxy")
    watchdog.watch(owner or ownership.owner(), run_id, home)
    marks = ownership.labels_of(run_id, home, keep=keep, owned_by=owner)
    with closing(engine.connect()) as client:
        cluster = _Launch(client, spec, run_id, marks, images).perform(home)
    cluster.await_ready(_READY_S)
    write_card(home, run_id, spec)
    return cluster


class _Launch:
    """One launch: what its steps have in common."""

    def __init__(
        self, client: docker.DockerClient, spec: ClusterSpec, run_id: str, marks: dict[str, str], images: Images
    ) -> None:
        self._client = client
        self._spec = spec
        self._run_id = run_id
        self._prefix = prefix_of(run_id)
        self._labels = marks
        self._images = images
        self._names = {node: f"{self._prefix}-{node.name}" for node in spec.topology.nodes}
        self._networks = {rack: RackNetwork(f"{self._prefix}-{rack}", marks) for rack in spec.topology.racks}

    def perform(self, home: Path) -> Cluster:
        create_volumes(self._client, self._spec, self._names, self._labels)
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(RackNetwork.create, self._networks.values()))
            crossing = self._start_toxiproxy()
            if self._spec.wire_proxy:
                crossing.lead_through_wire_proxy(home)
            nodes = {BrokerId(node.id): self._kafka(node, crossing) for node in self._spec.topology.nodes}
            started = dict(zip(nodes, pool.map(KafkaContainer.start, nodes.values()), strict=True))
        names = {BrokerId(node.id): node for node in self._spec.topology.nodes}
        running = {broker: KafkaNode(names[broker], each.get_wrapped_container()) for broker, each in started.items()}
        return Cluster(self._spec, self._run_id, crossing, running)

    def _start_toxiproxy(self) -> Crossing:
        topology = self._spec.topology
        first, *others = topology.racks
        container = Container(self._images.toxiproxy.name, f"{self._prefix}-toxiproxy", self._labels)
        container.with_command(["-host=0.0.0.0", "-proxy-metrics"])
        container.with_network(self._networks[first]).with_network_aliases(*topology.foreign_names(first))
        container.publish_on_loopback(topology.published_ports())
        for volume in held_by_toxiproxy(self._spec, self._names):
            container.with_volume_mapping(volume, f"/held/{volume}", "ro")
        handle: Handle = container.start().get_wrapped_container()
        for rack in others:
            try:
                self._networks[rack].connect(handle.id, topology.foreign_names(rack))
            except APIError as error:
                raise EngineError(f"can't connect Toxiproxy to rack {rack}: {error.explanation or error}") from error
        crossing = Crossing(self._spec, self._prefix, handle)
        _await_answer(crossing, handle)
        crossing.toxiproxy.populate(topology.proxies(), crossing.address_in)
        return crossing

    def _kafka(self, node: Node, crossing: Crossing) -> KafkaContainer:
        advertised = self._advertised(node, crossing) if node.broker else {}
        environment = self._spec.environment(node, cluster_id_of(self._run_id), advertised)
        name = self._names[node]
        volumes = volumes_of(self._spec, node, name)
        kafka = KafkaContainer(node, self._images.kafka.name, name, self._labels, environment, volumes)
        kafka.with_network(self._networks[node.rack]).with_network_aliases(node.name, node.home_name)
        return kafka

    def _advertised(self, broker: Node, crossing: Crossing) -> dict[str, str]:
        """What a broker advertises on the listeners that are dialled through the host."""
        racks = self._spec.topology.racks
        clients = {client_listener(rack): crossing.advertised(rack, broker.id) for rack in racks}
        return {name: str(at) for name, at in {**clients, "ADMIN": crossing.admin_address(broker.id)}.items()}


def _await_answer(crossing: Crossing, container: Handle) -> None:
    def lacking() -> str:
        try:
            crossing.toxiproxy.version()
        except FaultError as error:
            return str(error)
        return ""

    if missing := still_lacking(lacking, _TOXIPROXY_S):
        raise ClusterError(f"Toxiproxy does not answer: {missing}\n{last_log_lines(container)}")
