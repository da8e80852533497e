"""A running Kafka cluster that Aftershock launched on Kubernetes: addresses, proxies, and what a run leaves there.

Clients and the harness reach the cluster at a port of a Kubernetes node (a service of type NodePort): the addresses of
pods are unreachable from outside most clusters. The descriptor ``kubernetes.json`` in the folder of a run says where
its objects are, and is written before the first of them is created.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from aftershock.errors import ClusterError, FaultError
from aftershock.faults.targets.values import BrokerId, Toxic
from aftershock.harness.cluster.cluster import DESCRIPTOR_FILE, Cluster
from aftershock.harness.cluster.kubernetes.api import FORBIDDEN, IN_CLUSTER, Api, RefusedError
from aftershock.harness.cluster.kubernetes.manifests import Place
from aftershock.harness.cluster.kubernetes.node import PodNode
from aftershock.harness.cluster.proxies import LaunchedToxiproxy, WireProxy, client_routes
from aftershock.harness.cluster.topology import (
    ADMIN_PORT,
    QUORUM_PROXY_PORT,
    TOXIPROXY_API_PORT,
    ClusterSpec,
    client_proxy,
)
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety.ownership import HOME, KEEP, OWNER, RUN, LabelledCluster
from aftershock.results.evidence.files import write_whole
from aftershock.workloads.kafka.wire.connection import Address

PLACE_FILE = "kubernetes.json"
_GONE_S = 90.0
_KINDS = ("Pod", "Service", "ConfigMap", "PersistentVolumeClaim")
"""Kinds of the objects of a run."""
_SOURCE = re.compile(r"^[a-z]+_(?P<rack>.+)-k\d+$")


class RackToxiproxies:
    """Client of the Toxiproxy servers of all racks, by the interface of `proxies.Toxiproxy`.

    The proxy of a link is on the server of the rack from which the link comes, which its name contains.
    """

    def __init__(self, servers: Mapping[str, LaunchedToxiproxy]) -> None:
        self._servers = servers

    @property
    def url(self) -> str:
        return ", ".join(f"{rack}: {server.url}" for rack, server in self._servers.items())

    def version(self) -> str:
        (version, *_) = {server.version() for server in self._servers.values()}
        return version

    def toxics(self) -> dict[str, tuple[Toxic, ...]]:
        return self._merged(LaunchedToxiproxy.toxics)

    def upstreams(self) -> dict[str, str]:
        return self._merged(LaunchedToxiproxy.upstreams)

    def received_bytes(self) -> dict[tuple[str, str], int]:
        return self._merged(LaunchedToxiproxy.received_bytes)

    def disabled(self) -> frozenset[str]:
        return frozenset(name for server in self._servers.values() for name in server.disabled())

    def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        self._of(proxy).add_toxic(proxy, toxic)

    def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        self._of(proxy).update_toxic(proxy, toxic)

    def remove_toxic(self, proxy: str, name: str) -> None:
        self._of(proxy).remove_toxic(proxy, name)

    def enable(self, proxy: str, *, enabled: bool) -> None:
        self._of(proxy).enable(proxy, enabled=enabled)

    def redirect(self, proxy: str, upstream: str) -> None:
        self._of(proxy).redirect(proxy, upstream)

    def _of(self, proxy: str) -> LaunchedToxiproxy:
        match = _SOURCE.match(proxy)
        if match is None or match["rack"] not in self._servers:
            raise FaultError(f"no Toxiproxy of the cluster has the proxy {proxy}")
        return self._servers[match["rack"]]

    def _merged(self, read: Callable[[LaunchedToxiproxy], Mapping[Any, Any]]) -> dict[Any, Any]:
        return {key: value for server in self._servers.values() for key, value in read(server).items()}


class PodProxyLayer:
    """Addresses of a cluster on Kubernetes, by the interface of `cluster.ProxyLayer`.

    ``hosts`` has the address of the Kubernetes node of each rack's Toxiproxy, ``ports`` the port there of each port of
    a service, by the service's name.
    """

    packets = None

    def __init__(
        self, spec: ClusterSpec, place: Place, hosts: Mapping[str, str], ports: Mapping[str, Mapping[int, int]]
    ) -> None:
        self._topology, self._place, self._hosts, self._ports = spec.topology, place, hosts, ports
        self.wire_proxy: WireProxy | None = None
        servers = {rack: self.link_address(rack, TOXIPROXY_API_PORT) for rack in self._topology.racks}
        self.toxiproxy = RackToxiproxies({rack: LaunchedToxiproxy(*address) for rack, address in servers.items()})

    def link_address(self, rack: str, inside_port: int) -> Address:
        return Address(self._hosts[rack], self._ports[self._place.toxiproxy(rack)][inside_port])

    def host_address(self, inside_port: int) -> Address:
        """Return the address of a proxy for clients, or of a voter for the harness, by its port in one Docker host."""
        for proxy in self._topology.proxies():
            if proxy.listen_port == inside_port and proxy.source_rack is not None and proxy.listen_rack is None:
                return self.link_address(proxy.source_rack, inside_port)
        node = inside_port - QUORUM_PROXY_PORT
        return self._direct(node, inside_port)

    def advertised(self, rack: str, broker: int) -> Address:
        """Return the address, of the wire proxy or Toxiproxy, that a broker advertises to clients in ``rack``."""
        if self.wire_proxy is not None:
            return self.wire_proxy.addresses[client_proxy(rack, broker)]
        return self.link_address(rack, self._topology.client_proxy_port(rack, broker))

    def admin_address(self, node: int) -> Address:
        return self._direct(node, ADMIN_PORT)

    def _direct(self, node: int, port: int) -> Address:
        name = self._place.node(next(n for n in self._topology.nodes if n.id == node))
        return Address(self._hosts[self._topology.racks[0]], self._ports[f"{name}-admin"][port])

    def add_wire_proxy(self, home: Path) -> None:
        routes = client_routes(self._topology.proxies(), lambda proxy: self.host_address(proxy.listen_port))
        guard = self.link_address(self._topology.racks[0], TOXIPROXY_API_PORT)
        self.wire_proxy = WireProxy.start(routes, guard, home)


BEAT = "aftershock.beat"
"""Annotation that the process of a run changes while it lives, so that other machines see its death."""
BEAT_S = 5.0
BEATS_MISSED = 5  # a starved host may miss some, and a long pause of the API server as well


class Heartbeat:
    """Signs of life of a run on its root object, from a thread of this process; the number counts up."""

    def __init__(self, api: Api, place: Place) -> None:
        self._api, self._place, self._ended = api, place, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        number = 0
        while not self._ended.wait(BEAT_S):
            number += 1
            with suppress(Exception):  # whatever it is: the API server may come back
                self._tell(number)

    def _tell(self, number: int) -> None:
        change = {"metadata": {"annotations": {BEAT: str(number)}}}
        self._api.patch("ConfigMap", self._place.namespace, self._place.root, change)


def silent_runs(api: Api, places: Collection[Place]) -> list[Place]:
    """Return the runs that give no sign of life for ``BEATS_MISSED`` intervals; waits that long.

    No clocks are compared: the beats of a run are read twice.
    """

    def beats() -> dict[Place, str | None]:
        roots = {place: api.find("ConfigMap", place.namespace, place.root) for place in places}
        return {place: _annotations(root).get(BEAT) if root else None for place, root in roots.items()}

    if not places:
        return []
    before = beats()
    time.sleep(BEAT_S * BEATS_MISSED)
    return [place for place, beat in beats().items() if beat == before[place]]


class KubernetesCluster(Cluster):
    """A cluster that Aftershock launched on Kubernetes; what needs Docker is refused before a run (``plan check``)."""

    def __init__(
        self, spec: ClusterSpec, place: Place, layer: PodProxyLayer, nodes: Mapping[BrokerId, PodNode], api: Api
    ) -> None:
        # `PodProxyLayer` and `PodNode` have what the base class uses of their counterparts
        super().__init__(spec, place.run_id, cast("Any", layer), cast("Any", nodes))
        self.place, self.api, self.pods = place, api, nodes
        self.heartbeat: Heartbeat | None = None

    def close(self) -> None:
        super().close()
        if self.heartbeat:
            self.heartbeat.end()
        self.api.close()

    def run_script(self, node: BrokerId, script: str) -> str:
        return self.pods[node].run(script)

    @cached_property
    def kubernetes_version(self) -> str:
        return self.api.version()

    def describe(self) -> dict[str, Any]:
        facts = {"version": self.kubernetes_version, "context": self.place.context, "namespace": self.place.namespace}
        homes = {}
        for broker, node in self.pods.items():
            if pod := node.pod():
                homes[broker] = {"kubernetes_node": pod["spec"].get("nodeName"), "address": pod["status"].get("podIP")}
        described = super().describe()
        described["brokers"] = [item | homes.get(BrokerId(item["id"]), {}) for item in described["brokers"]]
        return described | {"kubernetes": facts}


def write_place(home: Path, place: Place) -> None:
    write_whole(home / PLACE_FILE, json.dumps(asdict(place), indent=1) + "\n")


def read_place(home: Path) -> Place | None:
    """Return where the objects of a run are, None if the run is not on Kubernetes; raise ClusterError if unreadable."""
    path = home / PLACE_FILE
    try:
        return Place(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ClusterError(
            f"{path} can't be read ({error!r}); remove the run with: aftershock heal --kubernetes"
        ) from error


def addresses(api: Api, place: Place, spec: ClusterSpec) -> PodProxyLayer:
    """Return the addresses of a cluster whose Toxiproxies are scheduled; raise ClusterError if a part is missing."""
    selector = f"{RUN}={place.run_id}"
    ports = {
        service["metadata"]["name"]: {p["port"]: p["nodePort"] for p in service["spec"]["ports"] if p.get("nodePort")}
        for service in api.objects("Service", place.namespace, selector)
    }
    hosts = {}
    for rack in spec.topology.racks:
        pod = api.find("Pod", place.namespace, place.toxiproxy(rack))
        if pod is None or not pod["status"].get("hostIP"):
            raise ClusterError(
                f"the cluster {place.run_id} lacks the pod {place.toxiproxy(rack)}, and no client reaches it; remove "
                "it with: aftershock heal --kubernetes"
            )
        hosts[rack] = str(pod["status"]["hostIP"])
    return PodProxyLayer(spec, place, hosts, ports)


def attach(home: Path) -> KubernetesCluster:
    """Return the cluster on Kubernetes whose folder is ``home``; raise ClusterError if parts of it are missing."""
    place = read_place(home)
    try:
        document = json.loads((home / DESCRIPTOR_FILE).read_text(encoding="utf-8"))
        spec = ClusterSpec.from_json(document["spec"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"no cluster was launched from {home} ({error!r})") from error
    if place is None:
        raise ClusterError(f"the cluster of {home} is not on Kubernetes")
    api = api_of(place)
    layer = addresses(api, place, spec)
    layer.wire_proxy = WireProxy.open(home) if spec.wire_proxy else None
    nodes = {BrokerId(node.id): PodNode(node, place, api) for node in spec.topology.nodes}
    return KubernetesCluster(spec, place, layer, nodes, api)


def api_of(place: Place) -> Api:
    """Return a client of the cluster in which a place is."""
    return Api(None if place.context == IN_CLUSTER else place.context)


def collect_logs(place: Place, spec: ClusterSpec, api: Api, folder: Path) -> None:
    """Write the output of each node's pods, in order, to ``folder``/k<id>.log."""
    folder.mkdir(exist_ok=True)
    for node in spec.topology.nodes:
        with suppress(RefusedError):
            if text := PodNode(node, place, api).log():
                write_whole(folder / f"{node.name}.log", text)


@dataclass(frozen=True)
class Remains:
    """A run's objects on a Kubernetes cluster, found by their labels."""

    cluster: LabelledCluster
    place: Place
    created: datetime


def list_runs(api: Api, namespace: str | None = None) -> list[Remains]:
    """Return the runs with objects on a cluster, or in one namespace, sorted by id.

    Raises RefusedError if the user may not list them. Without a namespace, either namespaces or config maps suffice,
    and what is refused is left out.
    """
    found: dict[str, Remains] = {}
    roots: list[tuple[dict[str, Any], bool]] = []
    refused = list[RefusedError]()
    for kind in ("ConfigMap",) if namespace else ("Namespace", "ConfigMap"):
        try:
            items = api.objects(kind, namespace, RUN)
        except RefusedError as error:
            refused.append(error)
        else:
            roots += [(item, kind == "Namespace") for item in items if OWNER in _annotations(item)]
    if refused and namespace:
        raise refused[0]
    if len(refused) > 1:
        raise RefusedError(f"{refused[-1]}; look in one namespace only, with --namespace NAME", refused[-1].status)
    for root, is_namespace in roots:
        metadata, annotations = root["metadata"], _annotations(root)
        run_id = metadata["labels"][RUN]
        if run_id in found:
            continue
        place = Place(
            run_id, api.context, metadata["name" if is_namespace else "namespace"], own_namespace=is_namespace
        )
        home = Path(annotations.get(HOME, ""))
        labelled = LabelledCluster(run_id, annotations.get(OWNER, ""), home, annotations.get(KEEP) == "true")
        created = datetime.strptime(metadata["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        found[run_id] = Remains(labelled, place, created)
    return [found[run_id] for run_id in sorted(found)]


def _annotations(item: Mapping[str, Any]) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}


def remove_run(api: Api, place: Place) -> list[str]:
    """Remove all objects of a run, and its namespace if the run made it; return their names once they are gone.

    Raises ClusterError if an object is still there after ``_GONE_S``.
    """
    selector, removed = f"{RUN}={place.run_id}", list[str]()
    if place.own_namespace:
        namespace = api.find("Namespace", None, place.namespace)
        if namespace is None or namespace["metadata"].get("labels", {}).get(RUN) != place.run_id:
            return []
    for kind in _KINDS:
        for item in _listed(api, kind, place, selector):
            # an hour's grace of a stopped process helps nobody whose cluster is removed
            if api.delete(kind, place.namespace, item, grace_s=0):
                removed.append(f"{kind.lower()}/{item}")
    if place.own_namespace and api.delete("Namespace", None, place.namespace):
        removed.append(f"namespace/{place.namespace}")

    def left() -> str:
        if place.own_namespace:
            return place.namespace if api.find("Namespace", None, place.namespace) else ""
        names: Iterable[str] = (item for kind in _KINDS for item in _listed(api, kind, place, selector))
        return next(iter(names), "")

    if name := still_lacking(left, _GONE_S):
        raise ClusterError(
            f"{name} of the run {place.run_id} is still there {_GONE_S:.0f} s after its removal; see what holds it "
            f"with: kubectl --context {place.context} get all,pvc -n {place.namespace}"
        )
    return removed


def _listed(api: Api, kind: str, place: Place, selector: str) -> list[str]:
    try:
        return [item["metadata"]["name"] for item in api.objects(kind, place.namespace, selector)]
    except RefusedError as error:
        if error.status == FORBIDDEN:  # who may not list them, as for attached brokers, has not created any
            return []
        raise
