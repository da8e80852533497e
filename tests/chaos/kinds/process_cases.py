"""Cases of faults on broker processes: killed, stopped, frozen, restarted, upgraded."""

import asyncio

from confluent_kafka.admin import AdminClient
from kio.schema.api_versions.v3.request import ApiVersionsRequest

from aftershock.faults.targets.values import BrokerId
from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.probe import PARTITIONS, TOPIC
from aftershock.tests.chaos.kinds.stand import Stand
from aftershock.workloads.kafka.wire.connection import Address, Connection


async def balanced(stand: Stand) -> None:
    """Elect preferred leaders, so that every broker leads its share."""
    await stand.world.elect_preferred([(TOPIC, partition) for partition in range(PARTITIONS)])


def requests_waited_for_fencing(seen: Observation) -> None:
    """Assert that partitions of the victim waited until the controller had fenced it (3 s)."""
    assert seen.slowest_ms("during") > 1_500


def requests_waited_for_a_collection(seen: Observation) -> None:
    """Assert that requests waited for stops of 0.7 to 1.3 s, and that the broker stayed in office."""
    assert 500 < seen.slowest_ms("during") < 1_500
    assert [] == seen.failures("during")


def clients_go_on(seen: Observation) -> None:
    """Assert that no record failed, whether the broker could hand its leaderships over or not."""
    assert seen.records("during")
    assert [] == seen.failures("during")


_written: list[int] = []


async def written(stand: Stand) -> int:
    """Return the number of records that the topic's partitions have."""
    return sum(high_watermark for _, high_watermark in (await stand.world.log_ends(TOPIC)).values())


async def counted(stand: Stand) -> None:
    """Count the records before the fault."""
    _written.append(await written(stand))


def records_vanished(seen: Observation) -> None:
    """Assert that the log has fewer new records than were acknowledged, and takes records again."""
    new = asyncio.run(written(seen.stand)) - _written.pop()
    assert new < len([ack for ack in seen.acks if ack.error is None])
    assert seen.records("after")


def other_leaders(seen: Observation) -> None:
    """Assert that the last victim leads no partition in metadata, and that no record failed."""
    victim = seen.targets["brokers"][-1]
    client = AdminClient({"bootstrap.servers": seen.stand.cluster.bootstrap("a")})
    leaders = {partition.leader for partition in client.list_topics(TOPIC, 10).topics[TOPIC].partitions.values()}
    assert victim not in leaders
    assert [] == seen.failures("during")


def versions_restored(seen: Observation) -> None:
    """Assert that clients continued through upgrade and downgrade, and that every node has its old version."""
    assert [] == seen.failures("during")
    assert {"4.1.2"} == _versions(seen)


def finalised(seen: Observation) -> None:
    """Assert that clients continued, and that all brokers have the new version and metadata level."""
    assert [] == seen.failures("during")
    assert {"4.3.1"} == _versions(seen)
    host, _, port = seen.stand.cluster.bootstrap("a").partition(",")[0].partition(":")
    request = ApiVersionsRequest(client_software_name="case", client_software_version="1")
    with Connection(Address(host, int(port)), 5.0) as connection:
        levels = {each.name: each.max_version_level for each in connection.ask(request).finalized_features}
    assert 30 == levels["metadata.version"]  # 4.3-IV0; 4.1.2 formatted it with 27


def _versions(seen: Observation) -> set[str]:
    return {seen.stand.cluster.nodes[BrokerId(node)].version() for node in seen.targets["brokers"]}


CASES = {
    "kill": [
        Case("{kind: kill, broker: leader of probe/0, for: 5s}", requests_waited_for_fencing, before=balanced),
        Case(
            "{kind: kill, broker: leader of probe/0, for: 5s, host: stays}",
            requests_waited_for_fencing,
            "hosts",
            balanced,
        ),
        Case("{kind: kill, broker: leader of probe/0, for: 5s}", requests_waited_for_fencing, "hosts", balanced),
        Case(
            "{kind: kill, broker: leader of probe/0, for: 5s, host: silent}",
            requests_waited_for_fencing,
            "hosts",
            balanced,
        ),
    ],
    "stop": [Case("{kind: stop, broker: leader of probe/0, for: 4s}", other_leaders, before=balanced)],
    "pause": [Case("{kind: pause, broker: leader of probe/0, for: 5s}", requests_waited_for_fencing, before=balanced)],
    "gc_pause": [
        Case(
            "{kind: gc_pause, broker: leader of probe/0, for: 8s, stop: 1s, jitter: 300ms, every: 2s}",
            requests_waited_for_a_collection,
            "gc",
            balanced,
        ),
        # longer than the session of a broker with the profile `fast`
        Case(
            "{kind: gc_pause, broker: leader of probe/0, for: 6s, stop: 5s, every: 10s}",
            requests_waited_for_fencing,
            "gc",
            balanced,
        ),
    ],
    "power_loss": [
        Case(
            "{kind: power_loss, broker: leader of probe/0, for: 5s}", requests_waited_for_fencing, "devices", balanced
        ),
        Case("{kind: power_loss, everywhere: true, for: 1s}", records_vanished, "devices", counted),
    ],
    "delete_pod": [
        Case("{kind: delete_pod, broker: leader of probe/0, for: 5s}", other_leaders, "pods", balanced),
        Case("{kind: delete_pod, broker: leader of probe/0, for: 5s, grace: 0s}", clients_go_on, "pods", balanced),
    ],
    "drain": [Case("{kind: drain, broker: leader of probe/0, for: 8s}", other_leaders, "pods", balanced)],
    "restart": [Case("{kind: restart, broker: leader of probe/0}", other_leaders, before=balanced)],
    "rolling_restart": [
        Case("{kind: rolling_restart}", other_leaders, before=balanced),
        Case("{kind: rolling_restart, pause: 1s}", other_leaders, on="isolated", before=balanced),
    ],
    "crash_loop": [
        Case(
            "{kind: crash_loop, broker: leader of probe/0, for: 14s, every: 2s}",
            requests_waited_for_fencing,
            before=balanced,
        )
    ],
    "rolling_upgrade": [
        Case("{kind: rolling_upgrade, to: 4.3.1, for: 60s}", versions_restored, on="older"),
        Case("{kind: rolling_upgrade, to: 4.3.1, finalize: true}", finalised, on="older"),
    ],
}
