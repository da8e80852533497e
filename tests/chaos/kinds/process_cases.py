"""How kinds on processes are shown: killed, stopped, frozen, restarted, upgraded."""

from confluent_kafka.admin import AdminClient
from kio.schema.api_versions.v3.request import ApiVersionsRequest

from aftershock.faults.targets.values import BrokerId
from aftershock.tests.chaos.kinds.case import Case, Seen
from aftershock.tests.chaos.kinds.probe import PARTITIONS, TOPIC
from aftershock.tests.chaos.kinds.stand import Stand
from aftershock.workloads.kafka.wire.connection import Address, Connection


async def balanced(stand: Stand) -> None:
    """Every broker leads its share."""
    await stand.world.elect_preferred([(TOPIC, partition) for partition in range(PARTITIONS)])


def waited(seen: Seen) -> None:
    """What the victim led, or was in sync with, waited until the controller had fenced it (3 s)."""
    assert seen.slowest_ms("during") > 1_500


def other_leaders(seen: Seen) -> None:
    """A client is told that the last victim leads nothing any more; and no record failed."""
    victim = seen.targets["brokers"][-1]
    client = AdminClient({"bootstrap.servers": seen.stand.cluster.bootstrap("a")})
    leaders = {partition.leader for partition in client.list_topics(TOPIC, 10).topics[TOPIC].partitions.values()}
    assert victim not in leaders
    assert [] == seen.failures("during")


def old_again(seen: Seen) -> None:
    """Clients went on through both ways, and every node is what it was."""
    assert [] == seen.failures("during")
    assert {"4.1.2"} == _versions(seen)


def finalised(seen: Seen) -> None:
    """Clients went on; one that asks is told the new level, and the brokers are all of the new version."""
    assert [] == seen.failures("during")
    assert {"4.3.1"} == _versions(seen)
    host, _, port = seen.stand.cluster.bootstrap("a").partition(",")[0].partition(":")
    request = ApiVersionsRequest(client_software_name="case", client_software_version="1")
    with Connection(Address(host, int(port)), 5.0) as connection:
        levels = {each.name: each.max_version_level for each in connection.ask(request).finalized_features}
    assert 30 == levels["metadata.version"]  # 4.3-IV0; 4.1.2 formatted it with 27


def _versions(seen: Seen) -> set[str]:
    return {seen.stand.cluster.nodes[BrokerId(node)].version() for node in seen.targets["brokers"]}


CASES = {
    "kill": [Case("{kind: kill, broker: leader of probe/0, for: 5s}", waited, before=balanced)],
    "stop": [Case("{kind: stop, broker: leader of probe/0, for: 4s}", other_leaders, before=balanced)],
    "pause": [Case("{kind: pause, broker: leader of probe/0, for: 5s}", waited, before=balanced)],
    "restart": [Case("{kind: restart, broker: leader of probe/0}", other_leaders, before=balanced)],
    "rolling_restart": [
        Case("{kind: rolling_restart}", other_leaders, before=balanced),
        Case("{kind: rolling_restart, pause: 1s}", other_leaders, on="isolated", before=balanced),
    ],
    "crash_loop": [Case("{kind: crash_loop, broker: leader of probe/0, for: 14s, every: 2s}", waited, before=balanced)],
    "rolling_upgrade": [
        Case("{kind: rolling_upgrade, to: 4.3.1, for: 60s}", old_again, on="older"),
        Case("{kind: rolling_upgrade, to: 4.3.1, finalize: true}", finalised, on="older"),
    ],
}
