"""Refusals before a launch on Kubernetes, the choice of images, and the role that a run needs."""

import re
from collections.abc import Mapping
from typing import Any, cast

import pytest

from aftershock.errors import AftershockError, ClusterError, ImageError
from aftershock.faults.sections.cluster import Cluster, Kubernetes
from aftershock.harness.cluster.images import build
from aftershock.harness.cluster.kubernetes.api import Api, RefusedError
from aftershock.harness.cluster.kubernetes.manifests import Place
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle import launch_kubernetes as module
from aftershock.harness.lifecycle.launch_kubernetes import NAMESPACE_NEEDS, NEEDS, images_for, preflight, role

ZONE = "topology.kubernetes.io/zone"


def node(zone: str = "z1", *, ready: str = "True", images: tuple[str, ...] = (), **spec: Any) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": ready}], "images": [{"names": list(images)}]}
    return {"metadata": {"labels": {ZONE: zone}}, "spec": spec, "status": status}


def storage(name: str, *, default: bool) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": {module._DEFAULT_CLASS: str(default).lower()}}}


class Cloud:
    """A Kubernetes cluster with one node and a default storage class, of which ``changes`` differ."""

    url = "https://cloud"

    def __init__(self, **changes: Any) -> None:
        self.context = changes.get("context", "kind-test")
        self.kinds: Mapping[str, Any] = {
            "Node": [node()],
            "StorageClass": [storage("standard", default=True)],
        } | changes
        self.refused = changes.get("refused", ())
        self.namespaces = changes.get("namespaces", ("kafka-test",))

    def version(self) -> str:
        return "v1.34.4"

    def objects(self, kind: str, _namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        found = self.kinds[kind]
        if isinstance(found, Exception):
            raise found
        return [] if selector == "disk=ssd" else list(found)

    def find(self, _kind: str, _namespace: None, name: str) -> object:
        return object() if name in self.namespaces else None

    def refused_verbs(self, _namespace: str | None, needs: tuple[tuple[str, str, str], ...]) -> list[str]:
        return [f"{verb} {resource}" for verb, _, resource in needs if f"{verb} {resource}" in self.refused]


def checked(plan: Kubernetes, allowed: tuple[str, ...] = (), **changes: Any) -> list[str]:
    said = list[str]()
    preflight(plan, allowed, cast("Api", Cloud(**changes)), said.append)
    return said


def test_a_usable_cluster_is_named() -> None:
    assert ["Kubernetes v1.34.4 at https://cloud, context kind-test"] == checked(Kubernetes())


@pytest.mark.parametrize(
    ("plan", "changes", "says"),
    [
        (
            {},
            {"context": "eks-prod"},
            "looks like a production cluster; if the run may use it, add --allow-namespace auto",
        ),
        ({}, {"Node": []}, "no node of the Kubernetes cluster kind-test is ready"),
        ({}, {"Node": [node(ready="Unknown")]}, "is ready and takes pods"),
        ({}, {"Node": [node(unschedulable=True)]}, "is ready and takes pods"),
        ({"node_selector": {"disk": "ssd"}}, {}, "no node with the labels disk=ssd of the"),
        ({"zones": {"a": "z1", "b": "z2"}}, {}, "no node is in the zone z2 of rack b"),
        ({}, {"StorageClass": []}, "has no default storage class for the brokers' volumes"),
        ({"storage_class": "gp3"}, {}, "has no storage class gp3; its classes are: standard"),
        ({"namespace": "kafka"}, {}, "has no namespace kafka; create it first: kubectl create namespace kafka"),
        (
            {},
            {"refused": ("create namespaces", "create pods/exec")},
            "in a new namespace: create namespaces, create pods/e",
        ),
        ({"namespace": "kafka-test"}, {"refused": ("list pods",)}, "aftershock kubernetes rbac --namespace kafka-test"),
    ],
)
def test_what_is_missing_is_said_before_anything_exists(
    plan: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(AftershockError) as refused:
        checked(Kubernetes(**plan), **changes)
    assert says in str(refused.value)


@pytest.mark.parametrize("context", ["kind-test", "preproduction2x", "delivery", "minikube"])
def test_other_contexts_need_no_permission(context: str) -> None:
    assert checked(Kubernetes(), context=context)


def test_a_production_cluster_is_used_with_permission() -> None:
    assert checked(Kubernetes(), allowed=("auto",), context="gke_prod_eu")


def test_what_the_user_may_not_read_is_left_to_the_launch() -> None:
    """A user with a role in one namespace may list neither nodes nor storage classes."""
    forbidden = RefusedError("nodes is forbidden", 403)
    assert checked(Kubernetes(namespace="kafka-test"), Node=forbidden, StorageClass=forbidden)


SPEC = ClusterSpec.of(Cluster(kubernetes=Kubernetes()))
BUILT, PROXY = build.kafka(SPEC.kafka).name, build.toxiproxy().name


@pytest.mark.parametrize(
    ("here", "kafka", "toxiproxy"),
    [
        ((), f"apache/kafka:{SPEC.kafka}", "ghcr.io/shopify/toxiproxy:2.12.0"),
        ((f"docker.io/{BUILT}", f"docker.io/{PROXY}"), BUILT, PROXY),
        ((f"docker.io/{BUILT}", f"docker.io/apache/kafka:{SPEC.kafka}"), f"apache/kafka:{SPEC.kafka}", None),
    ],
)
def test_images_that_the_nodes_have_are_used(here: tuple[str, ...], kafka: str, toxiproxy: str | None) -> None:
    chosen = images_for(cast("Api", Cloud(Node=[node(images=here)])), SPEC)
    assert kafka == chosen.kafka
    assert toxiproxy in (None, chosen.toxiproxy)


def test_a_user_who_may_not_list_nodes_gets_the_official_images() -> None:
    assert (
        images_for(cast("Api", Cloud(Node=RefusedError("forbidden", 403))), SPEC).kafka == f"apache/kafka:{SPEC.kafka}"
    )


def test_an_image_that_no_registry_has_must_be_on_the_nodes() -> None:
    spec = ClusterSpec.of(Cluster(kubernetes=Kubernetes(), config={"replica.selector.class": "aftershock.Selector"}))
    with pytest.raises(ImageError, match="no Kubernetes node has the image aftershock/java-client"):
        images_for(cast("Api", Cloud()), spec)


@pytest.mark.parametrize("namespace", [None, "kafka-test"])
def test_the_role_permits_exactly_what_a_run_does(namespace: str | None) -> None:
    given, binding = role(namespace)
    permitted = {
        (verb, resource) for rule in given["rules"] for verb in rule["verbs"] for resource in rule["resources"]
    }
    needed = {(verb, resource) for verb, _, resource in (*NEEDS, *(() if namespace else NAMESPACE_NEEDS))}
    extra = set() if namespace else {("list", "nodes"), ("list", "storageclasses")}
    assert needed | extra == permitted
    assert ("Role" if namespace else "ClusterRole") == given["kind"] == binding["roleRef"]["kind"]
    assert namespace == given["metadata"].get("namespace") == binding["metadata"].get("namespace")


class Waiting(Cloud):
    def __init__(self, pod: dict[str, Any]) -> None:
        super().__init__()
        self._pod = pod

    def objects(self, _kind: str, _namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        assert "run-1" in selector
        return [self._pod]


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "k1"}, "spec": {"containers": [{"image": "kafka:x"}]}, "status": status}


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insuff"}
                ]
            },
            "no node takes the pod k1: 0/1 nodes are available",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "kafka", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}
                ]
            },
            "ErrImagePull: no; the images are kafka:x",
        ),
    ],
)
def test_a_pod_that_does_not_start_is_an_error_in_the_clusters_words(
    status: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNSCHEDULABLE_S", 0.0)
    place = Place("run-1", "c", "n", own_namespace=True)
    with pytest.raises(ClusterError) as refused:
        module._await_pods(cast("Api", Waiting(pod(**status))), place, ["k1"])
    assert says in str(refused.value)


def test_an_exceeded_quota_is_said() -> None:
    class Full(Cloud):
        def create(self, _: object) -> None:
            raise RefusedError(
                'can\'t create the Pod k1: pods "k1" is forbidden: exceeded quota: compute; `aftershock x', 403
            )

    with pytest.raises(
        ClusterError, match=r"exceeded quota: compute; raise the quota of the namespace, or lower `racks`"
    ):
        module._create(cast("Api", Full()), {})


@pytest.mark.parametrize("there", [True, False])
def test_the_image_of_clients_must_be_on_a_node(*, there: bool) -> None:
    """No registry has it; a user who may not list nodes is told by the kubelet."""
    own = build.worker().name
    cloud = cast("Api", Cloud(Node=[node(images=(f"docker.io/{own}" if there else "docker.io/other:1",))]))
    if there:
        assert images_for(cloud, SPEC, workers=True)
    else:
        with pytest.raises(ImageError, match=rf"no Kubernetes node has the image {re.escape(own)} for the clients"):
            images_for(cloud, SPEC, workers=True)
    unknown = cast("Api", Cloud(Node=RefusedError("forbidden", 403)))
    assert images_for(unknown, SPEC, workers=True)
