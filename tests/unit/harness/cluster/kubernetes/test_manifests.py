"""Manifests of a launched cluster: addresses, names, racks, and what keeps a broker's process within reach."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aftershock.faults.sections.cluster import Cluster, Kubernetes
from aftershock.harness.cluster.kubernetes.manifests import Manifests, Place, next_pod, place_of
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.safety.ownership import NODE, OWNER, RUN, labels_of

RUN_ID = "20261130-194912-demo-ab12"
PLAN = Kubernetes(zones={"a": "eu-1", "b": "eu-2"}, node_selector={"disk": "ssd"}, storage_class="fast")
SPEC = ClusterSpec.of(Cluster(racks={"a": 2, "b": 1}, kubernetes=PLAN))
PLACE = place_of(RUN_ID, "kind-test", PLAN)
OWN = {1: "10.96.0.1", 2: "10.96.0.2", 3: "10.96.0.3"}
PROXIES = {"a": "10.96.1.1", "b": "10.96.1.2"}


def manifests(spec: ClusterSpec = SPEC, place: Place = PLACE) -> Manifests:
    labels = labels_of(RUN_ID, Path("/runs/x"), keep=False)
    return Manifests(place, spec, spec.kubernetes or Kubernetes(), "kafka:1", "toxiproxy:1", labels, owner="uid-1")


def pod(number: int, environment: dict[str, str] | None = None) -> dict[str, Any]:
    node = next(node for node in SPEC.topology.nodes if node.id == number)
    return manifests().node(node, environment or {}, OWN, PROXIES)


def test_a_node_of_another_rack_is_the_toxiproxy_of_the_own_rack() -> None:
    """And a node of the own rack is its service, whose address stays when its pod is another one."""
    aliases = {name: item["ip"] for item in pod(1)["spec"]["hostAliases"] for name in item["hostnames"]}
    assert {"k2": "10.96.0.2", "k3": "10.96.1.1"} == aliases
    aliases = {name: item["ip"] for item in pod(3)["spec"]["hostAliases"] for name in item["hostnames"]}
    assert {"k1": "10.96.1.2", "k2": "10.96.1.2"} == aliases


def test_every_link_between_racks_and_from_clients_has_one_proxy() -> None:
    """The Toxiproxies together have every proxy that comes from a rack, each at the upstream's service."""
    tables = {
        rack: json.loads(manifests().proxy_table(rack, OWN)["data"]["proxies.json"]) for rack in SPEC.topology.racks
    }
    planned = {proxy.name for proxy in SPEC.topology.proxies() if proxy.source_rack}
    assert planned == {proxy["name"] for table in tables.values() for proxy in table}
    for rack, table in tables.items():
        listening = [proxy["listen"] for proxy in table]
        assert len(set(listening)) == len(listening), f"two proxies of rack {rack} listen at one port"
        for proxy in table:
            node = int(proxy["name"].rpartition("-k")[2])
            assert proxy["upstream"].startswith(f"{OWN[node]}:")


def test_a_service_has_each_port_that_a_proxy_dials() -> None:
    """A port that is missing in a service would be refused, whatever the broker does."""
    services = {item["metadata"]["name"]: {p["port"] for p in item["spec"]["ports"]} for item in manifests().services()}
    for proxy in SPEC.topology.proxies():
        if proxy.source_rack:
            assert int(proxy.upstream.rpartition(":")[2]) in services[f"k{proxy.node}"]
            assert proxy.listen_port in services[f"toxiproxy-{proxy.source_rack}"]


def test_the_broker_is_not_process_1_and_is_not_restarted_by_the_kubelet() -> None:
    spec = pod(1)["spec"]
    assert ["sh", "-c"] == spec["containers"][0]["command"][:2]
    assert "Never" == spec["restartPolicy"]
    assert spec["enableServiceLinks"] is False


def test_racks_are_put_into_their_zones_on_request() -> None:
    assert {"disk": "ssd", "topology.kubernetes.io/zone": "eu-2"} == pod(3)["spec"]["nodeSelector"]
    assert {} == manifests(replace(SPEC, kubernetes=Kubernetes())).toxiproxy("a")["spec"]["nodeSelector"]


def test_everything_belongs_to_the_run() -> None:
    """By label, for the removal; by owner, for the garbage collector if only the config map is removed."""
    one = manifests()
    items = [*one.services(), one.proxy_table("a", OWN), one.toxiproxy("a"), pod(1), one.claim(SPEC.topology.nodes[0])]
    for item in items:
        assert RUN_ID == item["metadata"]["labels"][RUN]
        assert ["uid-1"] == [owner["uid"] for owner in item["metadata"]["ownerReferences"]]
        assert PLACE.namespace == item["metadata"]["namespace"]
    assert "1" == pod(1)["metadata"]["labels"][NODE]
    assert ":" in one.root()["metadata"]["annotations"][OWNER]  # which no label's value may have


def test_the_environment_is_what_the_image_reads() -> None:
    told = {item["name"]: item["value"] for item in pod(1, {"KAFKA_NODE_ID": "1"})["spec"]["containers"][0]["env"]}
    assert {"KAFKA_NODE_ID": "1"} == told


def test_runs_that_share_a_namespace_have_other_names() -> None:
    place = place_of(RUN_ID, "kind-test", Kubernetes(namespace="kafka-test"))
    assert not place.own_namespace
    assert {"aab12-k1", "aab12-k1-admin", "aab12-toxiproxy-a"} <= {
        item["metadata"]["name"] for item in manifests(place=place).services()
    }


@pytest.mark.parametrize("plan", ["x", "a-plan-whose-name-is-32-characters"[:32]])
def test_the_name_of_a_namespace_is_valid(plan: str) -> None:
    """At most 63 characters (RFC 1123), with the run's own token."""
    name = place_of(f"20261130-194912-{plan}-ab12", "c", Kubernetes()).namespace
    assert len(name) <= 63
    assert name.startswith("aftershock-20261130")
    assert name.endswith("-ab12")


@pytest.mark.parametrize(
    ("existing", "expected"), [([], "k1"), (["k1"], "k1-2"), (["k1", "k1-3"], "k1-4"), (["k1-2"], "k1-3")]
)
def test_a_node_that_starts_again_has_a_pod_with_a_new_name(existing: list[str], expected: str) -> None:
    template = pod(1)
    assert expected == next_pod(template, existing)["metadata"]["name"]
    assert "k1" == template["metadata"]["name"]
    assert template["spec"] == next_pod(template, existing)["spec"]


def test_a_spec_with_kubernetes_survives_its_descriptor() -> None:
    assert SPEC == ClusterSpec.from_json(json.loads(json.dumps(SPEC.to_json())))
    assert SPEC.as_plan().kubernetes == PLAN
