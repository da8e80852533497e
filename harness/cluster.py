"""A cluster from launch to removal.

::

    launch ─▶ networks ─▶ Toxiproxy (its host ports are read) ─▶ proxies ─▶ nodes, all at once ─▶ ready

Ready means: every broker registered and unfenced, the internal topic that consumers need created, and every partition's
ISR full; asked over Kafka's protocol, never read from a log.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from docker.errors import APIError, DockerException

from aftershock.errors import AdminError, ClusterError, EngineError, FaultError
from aftershock.faults.world import BrokerId, PartitionState
from aftershock.harness import engine, labels
from aftershock.harness.admin import Admin
from aftershock.harness.node import Container, KafkaNode, RackNetwork
from aftershock.harness.racks import TOXIPROXY_API_PORT, Node, admin_proxy_port
from aftershock.harness.spec import ClusterSpec, client_listener, cluster_id_of
from aftershock.harness.toxiproxy import Toxiproxy
from aftershock.harness.waiting import still_lacking
from aftershock.workloads.wire.connection import Address

_LOOPBACK = "127.0.0.1"
_READY_S = 90.0


class Cluster:
    """A launched cluster, or one that is being launched; `remove` undoes whatever `launch` got done.

    Attributes:
        nodes: the Kafka nodes by id.
        admin: administration through the listeners that no fault touches.
        toxiproxy: the server every link goes through.
    """

    nodes: Mapping[BrokerId, KafkaNode]
    admin: Admin
    toxiproxy: Toxiproxy

    def __init__(self, spec: ClusterSpec, run_id: str, home: Path, *, keep: bool) -> None:
        self.spec = spec
        self.run_id = run_id
        self.keep = keep
        self._prefix = f"aftershock-{run_id}"
        self._labels = labels.labels_of(run_id, home, keep=keep)
        self._networks: dict[str, RackNetwork] = {}
        self._ports: dict[int, int] = {}
        self._toxiproxy_addresses: dict[str, str] = {}

    def launch(self, kafka_image: str, toxiproxy_image: str, say: Callable[[str], None]) -> None:
        """Bring the cluster up and wait until it is ready.

        Raises:
            EngineError: the Docker engine refused.
            ClusterError: a node died at boot, or the cluster was not ready in time; its last log lines are in the text.
        """
        topology = self.spec.topology
        say(f"starting {len(topology.nodes)} Kafka nodes in {len(topology.racks)} racks behind Toxiproxy")
        with ThreadPoolExecutor(max_workers=8) as pool:
            self._networks = {rack: RackNetwork(f"{self._prefix}-{rack}", self._labels) for rack in topology.racks}
            list(pool.map(RackNetwork.create, self._networks.values()))
            self._start_toxiproxy(toxiproxy_image)
            self._start_nodes(kafka_image, pool)
        self.admin = Admin({BrokerId(n.id): self._admin_address(n.id) for n in topology.brokers})
        self._await_ready()

    def remove(self) -> None:
        """Remove the cluster, unless it is to be kept."""
        if hasattr(self, "admin"):
            self.admin.close()
        if not self.keep:
            labels.remove_run(engine.connect(), self.run_id)

    def bootstrap(self, rack: str | None) -> str:
        """``bootstrap.servers`` for clients that stand in ``rack``; None: for the harness itself."""
        brokers = self.spec.topology.brokers
        if rack is None:
            return ",".join(str(self._admin_address(node.id)) for node in brokers)
        return ",".join(str(self._advertised(rack, node.id)) for node in brokers)

    def link_address(self, rack: str, inside_port: int) -> Address:
        """Where a replication or controller proxy of ``rack`` listens, reached over the rack's own network."""
        return Address(self._toxiproxy_addresses[rack], inside_port)

    def host_address(self, inside_port: int) -> Address:
        """Where a published port of Toxiproxy is dialled on the host."""
        return Address(_LOOPBACK, self._ports[inside_port])

    def await_in_sync(self, deadline_s: float, topics: Sequence[str] | None = None) -> None:
        """Wait until every broker is unfenced and every partition's ISR is full: of ``topics``, or of all there are.

        Raises:
            ClusterError: it did not happen in time; says what is missing.
        """
        self._await("in sync", lambda: self._lacking(topics), deadline_s)

    def collect_logs(self, folder: Path) -> None:
        """Write every node's output to ``folder``/k<id>.log; a node that is gone is left out."""
        folder.mkdir(exist_ok=True)
        for node in getattr(self, "nodes", {}).values():
            with suppress(DockerException):
                (folder / f"{node.node.name}.log").write_text(node.output(), encoding="utf-8")

    def _start_toxiproxy(self, image: str) -> None:
        topology = self.spec.topology
        first, *others = topology.racks
        container = Container(image, f"{self._prefix}-toxiproxy", self._labels)
        container.with_command(["-host=0.0.0.0", "-proxy-metrics"])
        container.with_network(self._networks[first]).with_network_aliases(*topology.foreign_names(first))
        container.publish_on_loopback(topology.published_ports())
        container.start()
        for rack in others:
            try:
                self._networks[rack].connect(container.id, topology.foreign_names(rack))
            except APIError as error:
                raise EngineError(f"can't connect Toxiproxy to rack {rack}: {error.explanation or error}") from error
        self._ports = container.host_ports()
        self._toxiproxy_addresses = {rack: net.address_of(container.id) for rack, net in self._networks.items()}
        self.toxiproxy = Toxiproxy(_LOOPBACK, self._ports[TOXIPROXY_API_PORT])
        self._await_toxiproxy(container)
        self.toxiproxy.populate(topology.proxies(), self._toxiproxy_addresses)

    def _await_toxiproxy(self, container: Container, deadline_s: float = 10.0) -> None:
        if missing := still_lacking(self._toxiproxy_lacking, deadline_s):
            raise ClusterError(f"Toxiproxy does not answer: {missing}\n{container.last_log_lines()}")

    def _toxiproxy_lacking(self) -> str:
        try:
            self.toxiproxy.version()
        except FaultError as error:
            return str(error)
        return ""

    def _start_nodes(self, image: str, pool: ThreadPoolExecutor) -> None:
        cluster_id = cluster_id_of(self.run_id)
        nodes = {}
        for node in self.spec.topology.nodes:
            environment = self.spec.environment(node, cluster_id, self._listeners(node) if node.broker else {})
            kafka = KafkaNode(node, image, self._prefix, self._labels, environment)
            kafka.with_network(self._networks[node.rack]).with_network_aliases(node.name, node.home_name)
            nodes[BrokerId(node.id)] = kafka
        self.nodes = nodes
        list(pool.map(self._start_node, nodes.values()))

    def _start_node(self, node: KafkaNode) -> None:
        # created first: a volume that the container creates would not carry our labels
        node.get_docker_client().client.volumes.create(node.volume, labels=self._labels)
        node.start()

    def _listeners(self, broker: Node) -> dict[str, str]:
        """What a broker advertises on the listeners that are dialled through the host."""
        clients = {client_listener(rack): self._advertised(rack, broker.id) for rack in self.spec.topology.racks}
        return {name: str(address) for name, address in {**clients, "ADMIN": self._admin_address(broker.id)}.items()}

    def _advertised(self, rack: str, broker: int) -> Address:
        """Where clients of ``rack`` are sent for ``broker``: the one place to put another proxy in between."""
        return self.host_address(self.spec.topology.client_proxy_port(rack, broker))

    def _admin_address(self, node: int) -> Address:
        return self.host_address(admin_proxy_port(node))

    def _await_ready(self) -> None:
        self._await("ready", self._unfenced_lacking, _READY_S)
        self.admin.coordinator("aftershock")
        self.await_in_sync(_READY_S)

    def _unfenced_lacking(self) -> str:
        """Which brokers aren't registered and unfenced yet, as a sentence; empty when all are."""
        wanted = {BrokerId(node.id) for node in self.spec.topology.brokers}
        try:
            ready = {member.id for member in self.admin.members() if not member.fenced}
        except AdminError as error:
            return str(error)
        missing = sorted(wanted - ready)
        return f"not registered or fenced: {', '.join(f'k{broker}' for broker in missing)}" if missing else ""

    def _lacking(self, topics: Sequence[str] | None) -> str:
        try:
            return self._unfenced_lacking() or _out_of_sync(self.admin.partitions(topics))
        except AdminError as error:
            return str(error)

    def _raise_if_dead(self) -> None:
        for node in self.nodes.values():
            if node.state() == "exited":
                name = node.node.name
                raise ClusterError(f"{name} (rack {node.node.rack}) died; its last lines:\n{node.last_log_lines()}")

    def _await(self, state: str, lacking: Callable[[], str], deadline_s: float) -> None:
        """Wait until nothing is lacking; a dead node ends it at once. The error has the guilty node's last lines."""

        def alive_but_lacking() -> str:
            missing = lacking()
            if missing:
                self._raise_if_dead()
            return missing

        if missing := still_lacking(alive_but_lacking, deadline_s):
            guilty = next((node for node in self.nodes.values() if node.node.name in missing), None)
            lines = f"\nlast lines of {guilty.node.name}:\n{guilty.last_log_lines()}" if guilty else ""
            raise ClusterError(f"the cluster is not {state} after {deadline_s:.0f} s: {missing}{lines}")


def _out_of_sync(partitions: tuple[PartitionState, ...]) -> str:
    behind = [p for p in partitions if p.leader is None or set(p.isr) != set(p.replicas)]
    shown = ", ".join(f"{p.topic}/{p.partition} (in sync: {sorted(p.isr)} of {sorted(p.replicas)})" for p in behind[:3])
    missing = sorted({broker for p in behind for broker in set(p.replicas) - set(p.isr)})
    return f"{len(behind)} partitions lack replicas {', '.join(f'k{b}' for b in missing)}: {shown}" if behind else ""
