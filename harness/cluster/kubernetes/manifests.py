"""Kubernetes objects of a launched cluster, as plain data: what is created, and nothing about how.

A cluster has, for each Kafka node, a claim for its volume, a service with an address that stays, and pods, one at a
time; and for each rack a Toxiproxy, which all connections from that rack pass. Brokers advertise the addresses of
these Toxiproxies to clients, and know each other by names in ``/etc/hosts`` (``hostAliases``): a node of the own rack
is its service, a node of another rack is the own rack's Toxiproxy.

Process 1 of a node's container is a script of ours, which starts the node when the harness wants (`node.PodNode`). The
kubelet restarts no container (``restartPolicy: Never``): a node whose pod was deleted starts in a further pod,
``k1-2``, on the same volume, with another address behind the same service.

Every object has the labels of the run, and belongs to one config map, so that the garbage collector of the cluster
removes the rest if only that is deleted.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.faults.sections.cluster import Kubernetes
from aftershock.harness.cluster.topology import (
    ADMIN_PORT,
    JMX_PORT,
    LOG_DIR,
    QUORUM_PROXY_PORT,
    TOXIPROXY_API_PORT,
    ClusterSpec,
    Node,
    Proxy,
)
from aftershock.harness.safety.ownership import HOME, HOST, KEEP, NODE, OWNER, RUN

Object = dict[str, Any]

RACK = "aftershock.rack"
KAFKA, TOXIPROXY = "kafka", "toxiproxy"
"""Names of the containers."""
SERVED = "aftershock.served"
"""Label of the pods of nodes to which services lead."""
ZONE = "topology.kubernetes.io/zone"
MANAGED = {"app.kubernetes.io/managed-by": "aftershock"}
VOLUME_BYTES = 10 << 30
SUPERVISOR_DIR = "/run/aftershock"
"""Folder in a node's container for the exit status of its process, which exists while the node is down."""

_SUPERVISOR = f"""\
down={SUPERVISOR_DIR}/down
[ -x /etc/kafka/docker/run ] || {{ echo 'the image has no /etc/kafka/docker/run, which starts the node'; exit 1; }}
trap 'ending=yes; kill -TERM "$node" 2>/dev/null' TERM
while [ -z "$ending" ]; do
  /etc/kafka/docker/run &
  node=$!
  status=0
  wait "$node" || status=$?
  while kill -0 "$node" 2>/dev/null; do wait "$node" || status=$?; done # a signal of this script ends `wait` early
  echo "$status" >"$down.new" && mv "$down.new" "$down"
  while [ -z "$ending" ] && [ -e "$down" ]; do sleep 0.05; done
done
exit "$status"
"""
_NAME_MAX = 63  # of a namespace, a label's value and a service (RFC 1123)
_KAFKA_GROUP = 1000  # of Kafka's user, in the official image too; the volume is given to this group
_MEMORY_REQUEST = 512 << 20  # a broker of the profile `fast` takes 290 to 380 MiB
_SHUT_DOWN_S = 30


@dataclass(frozen=True)
class Place:
    """Where the objects of a run are: a context of the kubeconfig, and a namespace, which may be the run's own."""

    run_id: str
    context: str
    namespace: str
    own_namespace: bool

    @property
    def prefix(self) -> str:
        """Beginning of the names of objects, which are unique in a namespace that runs share."""
        return "" if self.own_namespace else f"a{self.run_id.rpartition('-')[2]}-"

    @property
    def root(self) -> str:
        """Name of the config map to which all other objects belong."""
        return f"{self.prefix}aftershock"

    def node(self, node: Node) -> str:
        return f"{self.prefix}{node.name}"

    def toxiproxy(self, rack: str) -> str:
        return f"{self.prefix}toxiproxy-{rack}"


def place_of(run_id: str, context: str, plan: Kubernetes) -> Place:
    """Return the place of a run; the name of its own namespace is the run's id, shortened in the middle if too long."""
    if plan.namespace != "auto":
        return Place(run_id, context, plan.namespace, own_namespace=False)
    name = f"aftershock-{run_id}"
    if len(name) > _NAME_MAX:
        head, _, token = name.rpartition("-")
        name = f"{head[: _NAME_MAX - len(token) - 1].rstrip('-')}-{token}"
    return Place(run_id, context, name, own_namespace=True)


@dataclass(frozen=True)
class Manifests:
    """Objects of one cluster at one place; ``labels`` are those of `ownership.labels_of`, ``owner`` the root's uid."""

    place: Place
    spec: ClusterSpec
    plan: Kubernetes
    kafka_image: str
    toxiproxy_image: str
    labels: Mapping[str, str]
    owner: str = ""

    # --- the run -------------------------------------------------------------------------------------------------

    def namespace(self) -> Object:
        metadata = _run_metadata(self.place, self.labels, self.place.namespace)
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}

    def root(self) -> Object:
        return root_of(self.place, self.labels)

    # --- services and volumes ------------------------------------------------------------------------------------

    def services(self) -> Iterator[Object]:
        for node in self.spec.topology.nodes:
            ports = self.node_ports(node)
            selector = {NODE: str(node.id), SERVED: "yes"}
            yield self._service(self.place.node(node), selector, {port: port for port in ports.values()})
            outside = {ADMIN_PORT: ADMIN_PORT} if node.broker else {}
            if node.controller:
                outside[QUORUM_PROXY_PORT + node.id] = ports["controller"]
            name = f"{self.place.node(node)}-admin"
            yield self._service(name, selector, outside, kind="NodePort")
        for rack in self.spec.topology.racks:
            inside = (TOXIPROXY_API_PORT, *(proxy.listen_port for proxy in self.proxies_of(rack)))
            proxied = {port: port for port in inside}
            yield self._service(self.place.toxiproxy(rack), self._proxy_labels(rack), proxied, kind="NodePort")

    def node_ports(self, node: Node) -> dict[str, int]:
        """Return the port of each listener of a node, by a name of the listener."""
        ports = {}
        if node.broker:
            ports = {f"client-{rack}": self.spec.topology.client_port(rack) for rack in self.spec.topology.racks}
            ports |= {"replication": node.inner_port, "admin": ADMIN_PORT}
            if self.spec.jmx:
                ports["jmx"] = JMX_PORT
        if node.controller:
            ports["controller"] = node.controller_port
        return ports

    def _service(
        self, name: str, selector: Mapping[str, str], ports: Mapping[int, int], kind: str = "ClusterIP"
    ) -> Object:
        return self._object("Service", name) | {
            "spec": {
                "type": kind,
                "selector": {RUN: self.place.run_id, **selector},
                "ports": [{"name": f"p{port}", "port": port, "targetPort": target} for port, target in ports.items()],
            }
        }

    def claim(self, node: Node) -> Object:
        spec: Object = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": str(VOLUME_BYTES)}},
        }
        if self.plan.storage_class:
            spec["storageClassName"] = self.plan.storage_class
        return self._object("PersistentVolumeClaim", self.place.node(node)) | {"spec": spec}

    # --- Toxiproxy -----------------------------------------------------------------------------------------------

    def proxies_of(self, rack: str) -> list[Proxy]:
        """Return the proxies of connections that come from a rack."""
        return [proxy for proxy in self.spec.topology.proxies() if proxy.source_rack == rack]

    def proxy_table(self, rack: str, addresses: Mapping[int, str]) -> Object:
        """Return the config map with a rack's proxies, which Toxiproxy reads at each start.

        ``addresses`` has the address of each node's service.
        """
        wildcard = "0.0.0.0"  # noqa: S104 -- inside the pod
        table = [
            {
                "name": proxy.name,
                "listen": f"{wildcard}:{proxy.listen_port}",
                "upstream": f"{addresses[proxy.node]}:{proxy.upstream.rpartition(':')[2]}",
                "enabled": True,
            }
            for proxy in self.proxies_of(rack)
        ]
        return self._object("ConfigMap", self.place.toxiproxy(rack)) | {"data": {"proxies.json": json.dumps(table)}}

    def toxiproxy(self, rack: str) -> Object:
        name = self.place.toxiproxy(rack)
        container = {
            "name": TOXIPROXY,
            "image": self.toxiproxy_image,
            "imagePullPolicy": "IfNotPresent",
            "args": ["-host=0.0.0.0", "-proxy-metrics", "-config=/config/proxies.json"],
            "volumeMounts": [{"name": "config", "mountPath": "/config"}],
            "resources": {"requests": {"cpu": "50m", "memory": str(16 << 20)}},
            "readinessProbe": {"tcpSocket": {"port": TOXIPROXY_API_PORT}, "periodSeconds": 1},
        }
        return self._object("Pod", name, self._proxy_labels(rack)) | {
            "spec": {
                **self._pod(rack),
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
                "volumes": [{"name": "config", "configMap": {"name": name}}],
            }
        }

    def _proxy_labels(self, rack: str) -> dict[str, str]:
        return {"app.kubernetes.io/name": "toxiproxy", RACK: rack}

    # --- nodes ---------------------------------------------------------------------------------------------------

    def node(
        self, node: Node, environment: Mapping[str, str], own: Mapping[int, str], proxies: Mapping[str, str]
    ) -> Object:
        """Return the pod of a node; ``own`` has the address of each node's service, ``proxies`` of each Toxiproxy's."""
        name = self.place.node(node)
        topology = self.spec.topology
        neighbours = [n for n in topology.nodes if n.rack == node.rack and n.id != node.id]
        aliases = [{"ip": own[n.id], "hostnames": [n.name]} for n in neighbours]
        if foreign := topology.foreign_names(node.rack):
            aliases.append({"ip": proxies[node.rack], "hostnames": foreign})
        container = {
            "name": KAFKA,
            "image": self.kafka_image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", _SUPERVISOR],
            "env": [{"name": key, "value": value} for key, value in environment.items()],
            "ports": [{"name": key, "containerPort": port} for key, port in self.node_ports(node).items()],
            # a folder in the volume, because Kafka refuses the `lost+found` of a new file system
            "volumeMounts": [
                {"name": "data", "mountPath": LOG_DIR, "subPath": "kafka"},
                {"name": "supervisor", "mountPath": SUPERVISOR_DIR},
            ],
            "resources": {
                "requests": {"cpu": "100m", "memory": str(min(_MEMORY_REQUEST, self.spec.memory))},
                "limits": {"memory": str(self.spec.memory)},
            },
        }
        return self._object("Pod", name, {NODE: str(node.id), RACK: node.rack, SERVED: "yes"}) | {
            "spec": {
                **self._pod(node.rack),
                "hostname": node.name,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": _SHUT_DOWN_S,
                "securityContext": {"fsGroup": _KAFKA_GROUP, "fsGroupChangePolicy": "OnRootMismatch"},
                "hostAliases": aliases,
                "containers": [container],
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": name}},
                    {"name": "supervisor", "emptyDir": {}},
                ],
            }
        }

    def _pod(self, rack: str) -> Object:
        """Return what all pods have in their specification."""
        selector = dict(self.plan.node_selector)
        if self.plan.zones:
            selector[ZONE] = self.plan.zones[rack]
        return {
            "nodeSelector": selector,
            "topologySpreadConstraints": [spread_over_machines(self.place.run_id)],
            # the variables of a service KAFKA_… would be read as properties of the broker
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
        }

    def _object(self, kind: str, name: str, labels: Mapping[str, str] | None = None) -> Object:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": self.place.root, "uid": self.owner}
        metadata: Object = {
            "name": name,
            "namespace": self.place.namespace,
            "labels": {**MANAGED, RUN: self.place.run_id, **(labels or {})},
        }
        if self.owner:
            metadata["ownerReferences"] = [owner]
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def spread_over_machines(run_id: str) -> Object:
    """Return the constraint of a run's pods to be on as many machines as there are."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {RUN: run_id}},
    }


def root_of(place: Place, labels: Mapping[str, str]) -> Object:
    """Return the config map to which all other objects of a run belong; ``labels`` as in ``Manifests``."""
    metadata = _run_metadata(place, labels, place.root) | {"namespace": place.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}


def _run_metadata(place: Place, labels: Mapping[str, str], name: str) -> Object:
    # values of labels are short words, so paths and owners are annotations
    return {
        "name": name,
        "labels": {**MANAGED, RUN: place.run_id},
        "annotations": {key: labels[key] for key in (OWNER, HOST, HOME, KEEP)},
    }


def next_pod(template: Object, existing: Sequence[str]) -> Object:
    """Return the pod of a node that starts again, with a name that no pod has: ``k1``, ``k1-2``, ``k1-3``."""
    name = template["metadata"]["name"]
    used = {1 if pod == name else int(pod.rpartition("-")[2]) for pod in existing}
    number = max(used, default=0) + 1
    return template | {"metadata": template["metadata"] | {"name": name if number == 1 else f"{name}-{number}"}}
