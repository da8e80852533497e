"""Attached clusters that lack APIs: what the plan needs is refused by name, and what it does not need is not."""

import re
from pathlib import Path

import pytest

from aftershock.errors import ClusterError, PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.attach.attached import AttachedCluster, AttachmentDescriptor, describe_cluster
from aftershock.harness.run.job import Permissions, prepare
from aftershock.harness.run.preflight import Need, refuse_missing_apis, required_apis
from aftershock.harness.run.progress import Progress
from aftershock.harness.run.run import perform
from aftershock.harness.world.world import world_of
from aftershock.tests.scripted.messages import SERVED
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.workloads.kafka.client.coordinator import FIND_COORDINATOR
from aftershock.workloads.kafka.client.requests import METADATA, OFFSET_COMMIT, PRODUCE, ApiVersionRange
from aftershock.workloads.kafka.consumer.commit_request_manager import OFFSET_FETCH
from aftershock.workloads.kafka.consumer.consumer_protocol import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from aftershock.workloads.kafka.consumer.fetcher import FETCH
from aftershock.workloads.kafka.consumer.offset_fetcher import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from aftershock.workloads.kafka.wire.codec import Versions
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.security import PLAINTEXT

METADATA_ONLY = {name: None for name, _, _ in SERVED.values()} | {"ApiVersions": (0, 3), "Metadata": (5, 5)}
PLAN = """
name: attached
cluster: {{attach: {{bootstrap: "{bootstrap}", create: [fresh], brokers: [1]}}}}
topics: [{{name: orders, partitions: 1, replication: 2}}, {{name: fresh, partitions: 1, replication: 1}}]
workloads: [{{name: orders, produce: {{topic: orders, rate: 1/s}}, consume: {{topic: orders{group}}}, arms: {arms}}}]
faults: {faults}
"""
AT = Address("broker.example", 9092)
RANGES: dict[str, ApiVersionRange] = {
    "Metadata": METADATA,
    "Produce": PRODUCE,
    "Fetch": FETCH,
    "ListOffsets": LIST_OFFSETS,
    "OffsetForLeaderEpoch": OFFSET_FOR_LEADER_EPOCH,
    "FindCoordinator": FIND_COORDINATOR,
    "OffsetFetch": OFFSET_FETCH,
    "OffsetCommit": OFFSET_COMMIT,
    "JoinGroup": JOIN_GROUP,
    "SyncGroup": SYNC_GROUP,
    "Heartbeat": HEARTBEAT,
    "LeaveGroup": LEAVE_GROUP,
}


def text(bootstrap: str = "broker.example:9092", group: str = "", arms: str = "{ours: {}}", faults: str = "[]") -> str:
    return PLAN.format(bootstrap=bootstrap, group=group, arms=arms, faults=faults)


def needs(**parts: str) -> dict[str, int]:
    checked = load_plan(text(**parts))
    assert checked.plan.cluster.attach
    highest: dict[str, int] = {}
    for need in required_apis(compile_checked(checked, 0), checked.plan.cluster.attach):
        highest[need.api] = max(need.oldest, highest.get(need.api, 0))
    return highest


def test_metadata_v5_is_enough_to_describe_a_cluster(tmp_path: Path) -> None:
    """Brokers, addresses, racks and cluster id come from a broker that speaks only ApiVersions and Metadata v5."""
    with ScriptedBroker(2, racks=["a", None], versions=METADATA_ONLY) as broker:
        description = describe_cluster(broker.bootstrap, PLAINTEXT)
        assert "scripted" == description.cluster_id
        assert [(1, broker.addresses[1], "a"), (2, broker.addresses[2], None)] == [
            (one.id, one.address, one.rack) for one in description.brokers
        ]
        broker.create("orders", partitions=1)
        checked = load_plan(text(broker.bootstrap))
        assert checked.plan.cluster.attach
        timeline = compile_checked(checked, 0)
        cluster = AttachedCluster(AttachmentDescriptor.of("run", checked.plan.cluster.attach, timeline), tmp_path)
        cluster.check()
        assert {1: "a", 2: "none"} == world_of(cluster).racks()
        assert {*broker.addresses.values()} == {*cluster.api_versions()}
        cluster.close()
        assert {"ApiVersions", "Metadata"} == {request.api for request in broker.journal()}


def test_a_broker_without_a_usable_metadata_is_named() -> None:
    with ScriptedBroker(versions={"Metadata": (0, 3)}) as broker:
        says = f"the broker at {broker.addresses[1]}: the broker offers only versions 0 to 3 of Metadata"
        with pytest.raises(ClusterError, match=re.escape(says)):
            describe_cluster(broker.bootstrap, PLAINTEXT)


def test_a_run_on_a_metadata_only_cluster_is_refused_before_anything_changes(tmp_path: Path) -> None:
    """Each missing API with the part of the plan that needs it; no request but ApiVersions and Metadata is sent."""
    with ScriptedBroker(versions=METADATA_ONLY) as broker:
        broker.create("orders", partitions=1)
        plan = tmp_path / "plan.yaml"
        plan.write_text(text(broker.bootstrap, faults="[{kind: elect, topic: orders}]"))
        allowed = Permissions(addresses=(broker.bootstrap,))
        job = prepare(plan, (), 0, print, permissions=allowed)
        with pytest.raises(PlanError) as refused:
            perform(job, tmp_path / "runs", Progress())
        problems = "\n".join(refused.value.problems)
        for api, part in (
            ("CreateTopics", "the topic fresh under `attach.create`"),
            ("Produce", "the arm ours of the workload orders (client confluent)"),
            ("Fetch", "reading the topics and every replica"),
            ("ElectLeaders", "the fault elect-1"),
        ):
            assert f"plan.yaml: the broker at {broker.addresses[1]} offers no {api}, and {part} needs" in problems
        assert {"ApiVersions", "Metadata"} == {request.api for request in broker.journal()}


@pytest.mark.parametrize(
    ("faults", "apis"),
    [
        ("[{kind: reassign, topic: orders, rotate: 1}]", {"AlterPartitionReassignments", "ElectLeaders"}),
        ("[{kind: config, broker: 1, set: {num.io.threads: 4}, for: 2s}]", {"IncrementalAlterConfigs"}),
        ("[{kind: add_partitions, topic: orders, to: 2}]", {"CreatePartitions"}),
        ("[{kind: recreate_topic, topic: fresh}]", {"CreateTopics", "DeleteTopics"}),
        ("[{kind: delete_records, topic: fresh, share: 0.5}]", {"DeleteRecords"}),
        ("[{kind: config, broker: controller, set: {num.io.threads: 4}, for: 2s}]", {"DescribeQuorum"}),
        (
            "[{kind: config, client_id: orders-ours-produce, set: {producer_byte_rate: 1000}, for: 2s}]",
            {"AlterClientQuotas", "DescribeClientQuotas"},
        ),
    ],
)
def test_a_fault_needs_the_apis_that_it_calls(faults: str, apis: set[str]) -> None:
    assert apis <= {*needs(faults=faults)}
    assert not {*needs()} & (apis - {"CreateTopics", "DeleteTopics"})


def test_groups_need_the_apis_of_their_protocol() -> None:
    classic = needs(group=", group: readers")
    modern = needs(group=", group: readers, protocol: consumer")
    assert {"JoinGroup", "DescribeGroups", "LeaveGroup"} <= {*classic}
    assert {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"} == {*modern} - {*classic}
    assert not {"JoinGroup", "FindCoordinator", "ConsumerGroupHeartbeat"} & {*needs()}
    reference = needs(group=", group: readers", arms="{ours: {client: reference}}")  # whose default is `consumer`
    assert {"ConsumerGroupHeartbeat"} <= {*reference}


def test_the_reference_client_needs_what_it_sends() -> None:
    """The lowest version of each API is that of the client's own requests."""
    found = needs(group=", group: readers, protocol: classic", arms="{ours: {client: reference}}")
    assert {api: versions.least for api, versions in RANGES.items()} == {api: found[api] for api in RANGES}


def test_offered_versions_of_every_broker_count() -> None:
    """One broker that is older is named; a cluster with everything is accepted."""
    checked = load_plan(text())
    attach = checked.plan.cluster.attach
    assert attach
    timeline = compile_checked(checked, 0)
    everything = dict.fromkeys(range(100), (0, 20))
    refuse_missing_apis(timeline, attach, {AT: Versions(everything)})
    old = Address("old.example", 9092)
    offered = {AT: Versions(everything), old: Versions(everything | {0: (0, 2)})}
    says = "the broker at old.example:9092 offers only versions 0 to 2 of Produce, and the arm ours"
    with pytest.raises(PlanError, match=re.escape(says)) as refused:
        refuse_missing_apis(timeline, attach, offered)
    assert 1 == len(refused.value.problems)
    assert Need("Produce", 3, "the arm ours of the workload orders (client confluent)") in [
        *required_apis(timeline, attach)
    ]
