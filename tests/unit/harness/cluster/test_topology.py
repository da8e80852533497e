"""Topology and node configuration: names and ports never collide, racks are connected through proxies only, and every
node's configuration is complete and consistent.
"""

import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.errors import ClusterError
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.harness.cluster.topology import FAST, PRODUCTION, ClusterSpec, Topology, cluster_id_of, topology


def properties_of(environment: dict[str, str]) -> dict[str, str]:
    """Return the properties that KafkaDockerWrapper reads (`___` is `-`, `__` is `_`, `_` is `.`)."""
    apart = {"KAFKA_HEAP_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS", "CLUSTER_ID"}
    marks = {"___": "-", "__": "_", "_": "."}
    names = {name: name.removeprefix("KAFKA_").lower() for name in environment if name not in apart}
    return {re.sub("_+", lambda m: marks[m[0]], name): environment[variable] for variable, name in names.items()}


def environments(plan: ClusterPlan) -> dict[int, dict[str, str]]:
    spec = ClusterSpec.of(plan)
    advertised = {"CLIENT_A": "127.0.0.1:1", "ADMIN": "127.0.0.1:2"}
    return {node.id: spec.environment(node, "id", advertised) for node in spec.topology.nodes}


def test_plan_settings_reach_the_broker_unchanged() -> None:
    """A property with dots and underscores survives the environment."""
    config = {"num.io.threads": "3", "listener.name.client_a.max.connections": "9"}
    (environment,) = environments(ClusterPlan(racks={"a": 1}, config=config)).values()
    assert config.items() <= properties_of(environment).items()


def test_nodes_agree_on_the_quorum() -> None:
    """All nodes name the same voters, each at its own port, by the name that crosses the proxies."""
    nodes = environments(ClusterPlan(controllers=3))
    assert {"11@k11:9311,12@k12:9312,13@k13:9313"} == {
        properties_of(environment)["controller.quorum.voters"] for environment in nodes.values()
    }


def test_isolated_controllers_advertise_nothing() -> None:
    """Kafka's image refuses a controller with advertised listeners."""
    controller = properties_of(environments(ClusterPlan(controllers=1))[11])
    assert "controller" == controller["process.roles"]
    assert "advertised.listeners" not in controller
    assert "broker.rack" not in controller


@pytest.mark.parametrize("profile", [FAST, PRODUCTION])
def test_automatic_leader_rebalance_is_off(profile: object) -> None:
    """In every profile, on isolated controllers too: the controller runs the election."""
    nodes = environments(ClusterPlan(profile=profile.name, controllers=3))  # type: ignore[attr-defined]  # a Profile
    assert {"false"} == {properties_of(e)["auto.leader.rebalance.enable"] for e in nodes.values()}


def test_a_plan_may_turn_the_rebalance_on() -> None:
    """A property in the plan's cluster section overrides ours."""
    nodes = environments(ClusterPlan(controllers=1, config={"auto.leader.rebalance.enable": "true"}))
    assert {"true"} == {properties_of(e)["auto.leader.rebalance.enable"] for e in nodes.values()}


@pytest.mark.parametrize(
    ("image", "kafka"), [("ours/kafka:4.1.2-fixed", "4.1.2"), ("ours/kafka:fixed", "ours/kafka:fixed")]
)
def test_an_image_of_the_user_takes_the_place_of_a_version(image: str, kafka: str) -> None:
    """It survives storage and a plan; a version from the command line contradicts it."""
    plan = ClusterPlan(image=image)
    spec = ClusterSpec.of(plan)
    assert (image, kafka) == (spec.image, spec.kafka)
    assert spec == ClusterSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert spec == ClusterSpec.of(spec.as_plan())
    assert spec.to_json() != ClusterSpec.of(ClusterPlan()).to_json()
    with pytest.raises(ClusterError, match="omit --kafka"):
        ClusterSpec.of(plan, "4.3.1")


def test_an_empty_value_restores_kafkas_default() -> None:
    """An empty value removes a property of ours from all nodes or from one node."""
    ours, config = "replica.selector.class", {"replica.selector.class": ""}
    of_all, of_one = environments(ClusterPlan(config=config)), environments(ClusterPlan(brokers={2: config}))
    assert {1, 2, 3} == {node for node, each in of_all.items() if ours not in properties_of(each)}
    assert {2} == {node for node, each in of_one.items() if ours not in properties_of(each)}


def test_production_keeps_kafkas_timings() -> None:
    """The `production` profile has none of the `fast` timings."""
    broker = properties_of(environments(ClusterPlan(profile="production"))[1])
    assert not set(FAST.broker) & set(broker)


def test_cluster_ids_are_valid_and_differ_between_runs() -> None:
    """22 characters of URL-safe base64 without a leading dash."""
    ids = {cluster_id_of(f"run-{number}") for number in range(200)}
    assert 200 == len(ids)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", cluster_id) for cluster_id in ids)


def test_a_wire_proxy_is_part_of_the_specification() -> None:
    """A cluster without a wire proxy can't serve a plan that needs one; the option is in the plan and the JSON of the
    cluster.
    """
    plain, proxied = ClusterSpec.of(ClusterPlan()), ClusterSpec.of(ClusterPlan(wire_proxy=True))
    assert plain.to_json() != proxied.to_json()
    assert proxied == ClusterSpec.from_json(proxied.to_json())
    assert proxied.as_plan().wire_proxy
    assert not ClusterSpec.from_json(plain.to_json()).wire_proxy


def test_settings_of_one_broker_reach_no_other_node() -> None:
    """They override the cluster's settings; isolated controllers don't get them either."""
    own = {2: {"num.io.threads": "1"}}
    nodes = environments(ClusterPlan(config={"num.io.threads": "3"}, brokers=own, controllers=1))
    assert {1: "3", 2: "1", 3: "3", 11: "3"} == {
        node: properties_of(environment)["num.io.threads"] for node, environment in nodes.items()
    }


def test_settings_of_one_broker_are_part_of_the_specification() -> None:
    """They are written to the plan and the JSON of a cluster, and read back."""
    plain, uneven = ClusterSpec.of(ClusterPlan()), ClusterSpec.of(ClusterPlan(brokers={2: {"num.io.threads": "1"}}))
    assert plain.to_json() != uneven.to_json()
    assert uneven == ClusterSpec.from_json(json.loads(json.dumps(uneven.to_json())))
    assert uneven == ClusterSpec.of(uneven.as_plan())
    assert ClusterSpec.from_json(plain.to_json()).brokers == {}


@pytest.mark.parametrize("where", ["config", "brokers"])
def test_a_class_of_ours_is_on_the_class_path(where: str) -> None:
    """On every node, even if a single node uses it; otherwise nodes have Kafka's class path only."""
    own = {"replica.selector.class": "aftershock.HighestFollower"}
    plan = ClusterPlan(config=own) if where == "config" else ClusterPlan(brokers={2: own})
    assert ["/opt/aftershock"] * 3 == [environment["CLASSPATH"] for environment in environments(plan).values()]
    assert not any("CLASSPATH" in environment for environment in environments(ClusterPlan()).values())


RACKS = st.lists(st.integers(1, 3), min_size=1, max_size=5).filter(lambda counts: sum(counts) <= 9)


def build(counts: list[int], controllers: int) -> Topology:
    return topology(dict(zip("abcde", counts, strict=False)), controllers)


def test_three_racks_get_the_proxy_names_of_the_design() -> None:
    """With one broker in each rack: a client link to each broker from each rack, and inter-broker links between racks
    only.
    """
    names = {proxy.name for proxy in build([1, 1, 1], 0).proxies()}
    clients = {f"client_{rack}-k{node}" for rack in "abc" for node in (1, 2, 3)}
    between = {f"{kind}_{rack}-k{node}" for kind in ("replication", "controller") for rack, node in cross("abc")}
    ours = {f"{kind}-k{node}" for kind in ("admin", "quorum") for node in (1, 2, 3)}
    assert clients | between | ours == names


def cross(racks: str) -> list[tuple[str, int]]:
    return [(rack, node) for rack in racks for node, home in enumerate(racks, 1) if rack != home]


@given(RACKS, st.sampled_from([0, 1, 3, 5]))
def test_no_two_proxies_listen_on_one_address(counts: list[int], controllers: int) -> None:
    """For any number of racks and brokers, (address, port) is unique, and a port that listens on every address is used
    once.
    """
    listens = Counter((proxy.listen_rack, proxy.listen_port) for proxy in build(counts, controllers).proxies())
    everywhere = {port for rack, port in listens if rack is None}
    assert {1} == set(listens.values())
    assert not everywhere & {port for rack, port in listens if rack is not None}


@given(RACKS, st.sampled_from([0, 1, 3, 5]))
def test_toxiproxy_answers_for_exactly_the_nodes_of_other_racks(counts: list[int], controllers: int) -> None:
    """A node of the same rack is reached directly; the name of any other node resolves to Toxiproxy, where its proxy
    listens.
    """
    laid_out = build(counts, controllers)
    for rack in laid_out.racks:
        proxied = {f"k{proxy.node}" for proxy in laid_out.proxies() if proxy.listen_rack == rack}
        assert proxied == set(laid_out.foreign_names(rack))


@given(RACKS)
def test_combined_voters_are_odd_and_spread(counts: list[int]) -> None:
    """At most five nodes vote, an odd number, and no rack has two voters before every rack has one."""
    laid_out = build(counts, 0)
    voters = Counter(node.rack for node in laid_out.controllers)
    assert len(laid_out.controllers) % 2 == 1
    assert len(laid_out.controllers) <= 5
    if len(laid_out.controllers) >= len(laid_out.racks):
        assert set(laid_out.racks) == set(voters)


def test_isolated_controllers_store_no_topics() -> None:
    """Three isolated controllers: ids from 11, one in each rack, and the brokers don't vote."""
    laid_out = build([1, 1, 1], 3)
    assert [(11, "a"), (12, "b"), (13, "c")] == [(node.id, node.rack) for node in laid_out.controllers]
    assert [1, 2, 3] == [node.id for node in laid_out.brokers]


def test_the_heap_of_a_plan() -> None:
    """It replaces the profile's, the container has 1 GiB more, and clusters with other heaps are different."""
    plan = ClusterPlan.model_validate({"heap": "1024MiB"})
    plain, large = ClusterSpec.of(ClusterPlan()), ClusterSpec.of(plan)
    heaps = {environment["KAFKA_HEAP_OPTS"] for environment in environments(plan).values()}
    assert {"-Xms1073741824 -Xmx1073741824"} == heaps
    assert [5 << 28, 2 << 30] == [plain.memory, large.memory]
    assert plain.to_json() != large.to_json()
    assert large == ClusterSpec.from_json(large.to_json())
    assert large == ClusterSpec.of(large.as_plan())
