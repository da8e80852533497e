"""Launch of a Kafka cluster on Kubernetes, the counterpart of `launch`.

Objects are created in an order that lets each know the addresses of those before: the namespace, the config map to
which everything belongs, the services, the Toxiproxies, the nodes. What a run lacks on the cluster (a permission, a
storage class, a namespace) is refused before the first object exists. A failed launch leaves its objects to the caller,
who removes them with `cluster.remove_run`.
"""

import json
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aftershock.errors import ClusterError, EngineError, FaultError, ImageError, Log
from aftershock.faults.sections.cluster import Kubernetes
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import Cluster, write_descriptor
from aftershock.harness.cluster.engine import OFFICIAL_KAFKA, OFFICIAL_TOXIPROXY, TOXIPROXY
from aftershock.harness.cluster.images import build
from aftershock.harness.cluster.kubernetes import cordons
from aftershock.harness.cluster.kubernetes.api import Api, RefusedError
from aftershock.harness.cluster.kubernetes.cluster import (
    Heartbeat,
    KubernetesCluster,
    addresses,
    collect_logs,
    read_place,
    remove_run,
    write_place,
)
from aftershock.harness.cluster.kubernetes.manifests import TOXIPROXY as PROXY_CONTAINER
from aftershock.harness.cluster.kubernetes.manifests import ZONE, Manifests, Place, place_of
from aftershock.harness.cluster.kubernetes.node import PodNode, hindrance
from aftershock.harness.cluster.topology import ClusterSpec, client_listener, cluster_id_of
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.kafka.settings import set_level
from aftershock.harness.lifecycle import watchdog
from aftershock.harness.lifecycle.heal import heal_kubernetes
from aftershock.harness.safety import ownership
from aftershock.harness.safety.ownership import RUN
from aftershock.harness.safety.rundir import RunDir

_READY_S = 90.0
_STARTED_S = 120.0  # an image may have to be pulled
_UNSCHEDULABLE_S = 20.0  # claims are bound within seconds, and a node that joins is not waited for
_REACHED_S = 10.0
_AT_ONCE = 8
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_QUOTA = re.compile(r"exceeded quota")

NEEDS = (
    *(("create", "", kind) for kind in ("pods", "services", "configmaps", "persistentvolumeclaims")),
    *(("create", "", name) for name in ("pods/exec", "pods/eviction")),
    *(("get", "", kind) for kind in ("pods", "configmaps", "pods/log", "pods/exec")),
    *(("list", "", kind) for kind in ("pods", "services", "configmaps", "persistentvolumeclaims")),
    *(("delete", "", kind) for kind in ("pods", "services", "configmaps", "persistentvolumeclaims")),
    *(("patch", "", kind) for kind in ("configmaps", "pods")),
)
"""What a run does in its namespace: verb, API group and resource."""
_PRODUCTION = re.compile(r"(?<![a-z])(prod|production|live)(?![a-z])", re.IGNORECASE)
NAMESPACE_NEEDS = (*((verb, "", "namespaces") for verb in ("create", "get", "list", "delete")),)
"""What ``namespace: auto`` needs in addition."""


@dataclass(frozen=True)
class PodImages:
    """Images of a cluster's pods, by the names that its manifests have."""

    kafka: str
    toxiproxy: str


def preflight(plan: Kubernetes, allowed: Collection[str], api: Api, log: Log) -> None:
    """Raise EngineError if a run can't be launched there, with what is missing.

    ``allowed`` has the namespaces that the user allows, of which a context that looks like production needs one. What
    the user may not read of the cluster itself (its nodes, its storage classes) is left to the launch.
    """
    if _PRODUCTION.search(api.context) and plan.namespace not in allowed:
        raise EngineError(
            f"the context {api.context} looks like a production cluster; if the run may use it, add --allow-namespace "
            f"{plan.namespace}, or name another one as `cluster.kubernetes.context`"
        )
    log(f"Kubernetes {api.version()} at {api.url}, context {api.context}")
    if (nodes := readable(api, "Node", _selector(plan.node_selector))) is not None:
        _check_nodes(plan, nodes, api.context)
    own = plan.namespace == "auto"
    if not own:
        with suppress(RefusedError):
            if api.find("Namespace", None, plan.namespace) is None:
                raise EngineError(
                    f"the Kubernetes cluster {api.context} has no namespace {plan.namespace}; create it first: kubectl "
                    f"create namespace {plan.namespace}"
                )
    refused = api.refused_verbs(None, NAMESPACE_NEEDS) if own else []
    refused += api.refused_verbs(None if own else plan.namespace, NEEDS)
    refused += api.refused_verbs(None, cordons.NEEDS) if plan.nodes else []
    if refused:
        where = "in a new namespace" if own else f"in the namespace {plan.namespace}"
        option = ("" if own else f" --namespace {plan.namespace}") + (" --nodes" if plan.nodes else "")
        raise EngineError(
            f"the user of the context {api.context} lacks permissions {where}: {', '.join(refused)}; print the role to "
            f"apply with: aftershock kubernetes rbac{option}"
        )
    if (classes := readable(api, "StorageClass")) is not None:
        _check_storage(plan, classes, api.context)


def readable(api: Api, kind: str, selector: str = "") -> list[dict[str, Any]] | None:
    """Return the objects of a kind; None if the user may not list them."""
    try:
        return api.objects(kind, selector=selector)
    except RefusedError:
        return None


def _check_nodes(plan: Kubernetes, nodes: Iterable[Mapping[str, Any]], context: str) -> None:
    zones = {(node["metadata"].get("labels") or {}).get(ZONE) for node in nodes if _takes_pods(node)}
    if not zones:
        words = f"with the labels {_selector(plan.node_selector)} " if plan.node_selector else ""
        raise EngineError(f"no node {words}of the Kubernetes cluster {context} is ready and takes pods")
    for rack, zone in plan.zones.items():
        if zone not in zones:
            there = ", ".join(sorted(filter(None, zones))) or "no zone"
            raise EngineError(
                f"no node is in the zone {zone} of rack {rack} (`cluster.kubernetes.zones`); the nodes are in {there}"
            )


def _check_storage(plan: Kubernetes, classes: Iterable[Mapping[str, Any]], context: str) -> None:
    by_name = {item["metadata"]["name"]: item["metadata"].get("annotations") or {} for item in classes}
    names = ", ".join(sorted(by_name)) or "none"
    if plan.storage_class and plan.storage_class not in by_name:
        raise EngineError(
            f"the Kubernetes cluster {context} has no storage class {plan.storage_class}; its classes are: {names}"
        )
    if not plan.storage_class and "true" not in {item.get(_DEFAULT_CLASS) for item in by_name.values()}:
        raise EngineError(
            f"the Kubernetes cluster {context} has no default storage class for the brokers' volumes; write one as "
            f"`cluster.kubernetes.storage_class`; its classes are: {names}"
        )


def role(
    namespace: str | None, needs: Iterable[tuple[str, str, str]] | None = None, name: str = "aftershock"
) -> list[dict[str, Any]]:
    """Return the least role for runs in a namespace, or, with None, for runs that make their own; as manifests.

    ``needs`` is what the runs do there, by default launch clusters: verb, API group and resource. ``name`` is that of
    the role.

    A run in a namespace that exists needs nothing outside. What it may not read of nodes and storage classes is then
    refused by the cluster itself, later and in the scheduler's words.
    """
    launches = needs is None
    needs = tuple(needs or (*NEEDS, *(() if namespace else NAMESPACE_NEEDS)))
    by_verbs: dict[tuple[str, ...], list[str]] = {}
    for resource in dict.fromkeys(resource for _, _, resource in needs):
        verbs = tuple(verb for verb, _, needed in needs if needed == resource)
        by_verbs.setdefault(verbs, []).append(resource)
    rules = [{"apiGroups": [""], "resources": names, "verbs": [*verbs]} for verbs, names in by_verbs.items()]
    if launches and namespace is None:
        rules.append({"apiGroups": ["", "storage.k8s.io"], "resources": ["nodes", "storageclasses"], "verbs": ["list"]})
    kind = "Role" if namespace else "ClusterRole"
    place = {"namespace": namespace} if namespace else {}
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": name, **place}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": {"name": name, **place},
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "USER"}],
        },
    ]


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _takes_pods(node: Mapping[str, Any]) -> bool:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or ())
    return ready and not node["spec"].get("unschedulable")


def images_for(api: Api, spec: ClusterSpec, *, workers: bool = False) -> PodImages:
    """Return the images of a cluster's pods: built ones if a node reports to have them, else the official ones.

    A kubelet reports the fifty largest images of its node. An image that no node has is pulled by the nodes. With
    ``workers``, a node must have the image of pods of clients.
    """
    here = {
        _short(name)
        for node in readable(api, "Node") or ()
        for item in node["status"].get("images") or ()
        for name in item["names"]
    }

    def choose(*names: str) -> str:
        return next((name for name in names if _short(name) in here), names[0])

    if workers and here and _short(build.worker().name) not in here:
        raise ImageError(
            f"no Kubernetes node has the image {build.worker().name} for the clients of `run_on`, and no registry has "
            "it: build it with `aftershock images --for PLAN`, and import it there"
        )
    official = f"{OFFICIAL_KAFKA}:{spec.kafka}"
    if spec.image:
        kafka = spec.image
    else:
        kafka = choose(official, build.kafka(spec.kafka).name)
        if spec.own_classes:
            kafka = build.java_client(kafka).name
            if _short(kafka) not in here:
                raise ImageError(
                    f"no Kubernetes node has the image {kafka}, which the plan's broker settings need and no registry "
                    "has: import it there"
                )
    return PodImages(kafka, choose(f"{OFFICIAL_TOXIPROXY}:{TOXIPROXY}", build.toxiproxy().name))


def _short(image: str) -> str:
    return image.removeprefix("docker.io/").removeprefix("library/")


def provenance(home: RunDir, cluster: Cluster, kubernetes: str, images: PodImages) -> dict[str, Any]:
    """Return the facts for ``run.json`` about a run's cluster, which are its id, profile, images and versions."""
    profile = cluster.spec.profile
    versions = {"kafka": cluster.spec.kafka, "toxiproxy": engine.TOXIPROXY, "kubernetes": kubernetes}
    return {
        "cluster": cluster.run_id,
        "profile": {"name": profile.name, **profile.broker, "jvm": profile.jvm_flags},
        "images": {name: {"name": image, "digest": "", "origin": "node"} for name, image in asdict(images).items()},
        "versions": {**home.facts["versions"], **versions},
    }


def launch(spec: ClusterSpec, run_id: str, home: Path, images: PodImages, api: Api, log: Log) -> KubernetesCluster:
    """Launch a cluster that belongs to this process, and wait until it is ready.

    Raises ClusterError if an object is refused, a pod does not start, a node dies at boot, or the cluster is not ready
    in time, with the words of the scheduler or the kubelet.
    """
    plan = spec.kubernetes or Kubernetes()
    topology, place = spec.topology, place_of(run_id, api.context, plan)
    log(
        f"starting {len(topology.nodes)} Kafka nodes in {len(topology.racks)} racks behind Toxiproxy, in the namespace "
        f"{place.namespace}"
    )
    write_place(home, place)
    watchdog.watch(ownership.owner(), run_id, home)
    labels = ownership.labels_of(run_id, home, keep=False)
    manifests = Manifests(place, spec, plan, images.kafka, images.toxiproxy, labels)
    if place.own_namespace:
        api.create(manifests.namespace())
    manifests = replace(manifests, owner=_create(api, manifests.root())["metadata"]["uid"])
    heartbeat = Heartbeat(api, place)
    try:
        cluster = _launched(manifests, home, api)
    except BaseException:
        heartbeat.end()
        raise
    cluster.heartbeat = heartbeat
    write_descriptor(home, run_id, spec)
    return cluster


def _launched(manifests: Manifests, home: Path, api: Api) -> KubernetesCluster:
    """Create the objects of a cluster, and return it once it is ready."""
    place, spec, topology = manifests.place, manifests.spec, manifests.spec.topology
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        services = list(pool.map(lambda item: _create(api, item), manifests.services()))
        own = {service["metadata"]["name"]: service["spec"]["clusterIP"] for service in services}
        nodes = {node.id: own[place.node(node)] for node in topology.nodes}
        proxies = {rack: own[place.toxiproxy(rack)] for rack in topology.racks}
        first = [manifests.proxy_table(rack, nodes) for rack in topology.racks]
        first += [manifests.claim(node) for node in topology.nodes]
        list(pool.map(lambda item: _create(api, item), first))
        list(pool.map(lambda rack: _create(api, manifests.toxiproxy(rack)), topology.racks))
    _await_pods(api, place, [place.toxiproxy(rack) for rack in topology.racks], PROXY_CONTAINER)
    layer = addresses(api, place, spec)

    def unreachable() -> str:
        try:
            layer.toxiproxy.version()
        except FaultError as error:
            return str(error)
        return ""

    if missing := still_lacking(unreachable, _REACHED_S):
        raise ClusterError(
            f"the ports of the Kubernetes nodes are not reachable from this host ({missing}): open the range of "
            "NodePorts to it, or run Aftershock where the nodes' addresses are reachable"
        )
    if spec.wire_proxy:
        layer.add_wire_proxy(home)
    pods = {}
    for node in topology.nodes:
        advertised = {}
        if node.broker:
            advertised = {client_listener(rack): str(layer.advertised(rack, node.id)) for rack in topology.racks}
            advertised["ADMIN"] = str(layer.admin_address(node.id))
        environment = spec.environment(node, cluster_id_of(place.run_id), advertised)
        pods[node.name] = manifests.node(node, environment, nodes, proxies)
    # a node that starts again is made from the same manifest, by any process
    api.patch("ConfigMap", place.namespace, place.root, {"data": {name: json.dumps(pod) for name, pod in pods.items()}})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda item: _create(api, item), pods.values()))
    _await_pods(api, place, [pod["metadata"]["name"] for pod in pods.values()])
    running = {BrokerId(node.id): PodNode(node, place, api) for node in topology.nodes}
    cluster = KubernetesCluster(spec, place, layer, running, api)
    cluster.await_ready(_READY_S)
    for feature, level in spec.features.items():
        set_level(cluster.admin, feature, level)
    return cluster


def _create(api: Api, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Create an object; a new namespace has no account for its pods for a moment, and refuses them meanwhile."""
    give_up_s = time.monotonic() + _REACHED_S
    while True:
        try:
            return api.create(manifest)
        except RefusedError as error:
            if _QUOTA.search(str(error)):
                raise ClusterError(
                    f"{str(error).partition('; `aftershock')[0]}; raise the quota of the namespace, or lower `racks`"
                ) from error
            if "serviceaccount" not in str(error) or time.monotonic() > give_up_s:
                raise
        time.sleep(0.1)


def _await_pods(api: Api, place: Place, names: Sequence[str], container: str = "kafka") -> None:
    """Wait until the containers of pods run; raise ClusterError with the words of the scheduler or the kubelet."""
    began_s = time.monotonic()
    while True:
        pods = {pod["metadata"]["name"]: pod for pod in api.objects("Pod", place.namespace, f"{RUN}={place.run_id}")}
        problems = [hindrance(pods[name], container) if name in pods else (f"no pod {name}", True) for name in names]
        problems = [problem for problem in problems if problem[0]]
        if not problems:
            return
        waited_s = time.monotonic() - began_s
        for problem, for_good in problems:
            limit_s = 0.0 if for_good else _UNSCHEDULABLE_S if problem.startswith("no node takes") else _STARTED_S
            if waited_s >= limit_s:
                images = ", ".join(
                    sorted({item["image"] for pod in pods.values() for item in pod["spec"]["containers"]})
                )
                advice = f"; the images are {images}" if "mage" in problem else ""
                raise ClusterError(f"the cluster does not start: {problem}{advice}")
        time.sleep(0.1)


class KubernetesLauncher:
    """Launch on a Kubernetes cluster, by the interface `run.Launcher`; ``allowed`` has the allowed namespaces."""

    def __init__(self, spec: ClusterSpec, plan: Kubernetes, allowed: Collection[str], *, workers: bool = False) -> None:
        self._spec, self._plan, self._allowed, self._workers = spec, plan, allowed, workers
        self._api = Api(plan.context)
        self._images: PodImages

    def sweep(self, log: Log) -> None:
        namespace = None if self._plan.namespace == "auto" else self._plan.namespace
        with suppress(RefusedError):  # a user who may not look for remains is refused by `prepare`, with all reasons
            for action in heal_kubernetes(self._api, None, log, namespace=namespace).actions:
                log(f"cleaned up after a dead run: {action}")

    def volumes_folder(self) -> Path | None:
        return None

    def prepare(self, log: Log) -> None:
        preflight(self._plan, self._allowed, self._api, log)
        self._images = images_for(self._api, self._spec, workers=self._workers)

    def launch(self, home: RunDir, log: Log) -> KubernetesCluster:
        return launch(self._spec, home.run_id, home.path, self._images, self._api, log)

    def provenance(self, home: RunDir, cluster: Cluster) -> dict[str, Any]:
        return provenance(home, cluster, self._api.version(), self._images)

    def clean_up(self, home: RunDir) -> None:
        if place := read_place(home.path):
            collect_logs(place, self._spec, self._api, home.path / "logs")
            try:
                for machine in cordons.cordoned_by_runs(self._api).get(home.run_id, ()) if self._plan.nodes else ():
                    cordons.uncordon(self._api, machine, home.run_id)
            finally:
                remove_run(self._api, place)
