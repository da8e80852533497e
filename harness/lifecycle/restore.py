"""Restore of a used cluster to its state after launch, with checks that the restore succeeded.

Each step function checks and repairs one aspect of the cluster, and returns a sentence about the repair, "" if there
was nothing to repair. `restore` repeats all steps until each step returns "". Each broker is asked for its own
metadata, because a broker that was frozen has old metadata.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from aftershock.errors import AdminError, ClusterError, Log
from aftershock.faults.targets.values import PartitionState
from aftershock.harness.cluster.cluster import Cluster, not_ready
from aftershock.harness.cluster.node import KafkaNode
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.kafka.groups import delete_group, groups
from aftershock.harness.kafka.settings import change, quotas, settings


def restore(cluster: Cluster, log: Log, deadline_s: float = 60.0) -> None:
    """Heal a cluster that no client uses, delete its topics and groups, and wait until it is as after its launch.

    Raises ClusterError if ``deadline_s`` passed, a container is missing, or a state can't be repaired; FaultError if
    Toxiproxy does not answer.
    """

    def first_finding() -> str:
        try:
            for step in (_versions, _nodes, _links, _rules):  # a lease must not leave these behind
                if finding := step(cluster):
                    log(f"repaired after a lease: {finding}")
                    return finding
            traces = (not_ready, _settings, _moves, _topics, _groups, _replicas, _leaders)  # of normal use
            return next(filter(None, (step(cluster) for step in traces)), "")
        except AdminError as error:
            # a broker that was just started does not answer yet
            return str(error)

    if problem := still_lacking(first_finding, deadline_s):
        raise ClusterError(f"the cluster {cluster.run_id} is not restored after {deadline_s:.0f} s: {problem}")


def _versions(cluster: Cluster) -> str:
    versions = {node.node.name: node.version() for node in cluster.nodes.values()}
    if changed := sorted(name for name, version in versions.items() if version != cluster.spec.kafka):
        listing = ", ".join(f"{name} runs {versions[name]}" for name in changed)
        raise ClusterError(f"nodes of the cluster {cluster.run_id} do not run Kafka {cluster.spec.kafka}: {listing}")
    return ""


def _nodes(cluster: Cluster) -> str:
    def revive(node: KafkaNode) -> str:
        if (state := node.state()) == "running":
            return ""
        node.resume() if state == "paused" else node.restart()
        return f"{node.node.name} was {state}"

    with ThreadPoolExecutor(max_workers=8) as pool:
        return ", ".join(filter(None, pool.map(revive, cluster.nodes.values())))


def _links(cluster: Cluster) -> str:
    """Enable all Toxiproxy proxies and remove all toxics; raise ClusterError for a missing or extra proxy."""
    toxiproxy = cluster.toxiproxy
    differing = toxiproxy.upstreams().items() ^ {
        (proxy.name, proxy.upstream) for proxy in cluster.spec.topology.proxies()
    }
    if differing:
        names = ", ".join(sorted({name for name, _ in differing}))
        raise ClusterError(f"Toxiproxy at {toxiproxy.url} lacks proxies of the cluster, or has other proxies: {names}")
    with_toxics = [name for name, toxics in toxiproxy.toxics().items() if toxics]
    broken = sorted({*with_toxics, *toxiproxy.disabled()})
    if broken:
        toxiproxy.reset()
        return f"links {', '.join(broken)} were broken"
    return ""


def _rules(cluster: Cluster) -> str:
    wire_proxy = cluster.wire_proxy
    if wire_proxy is None:
        return ""
    rules = sorted(wire_proxy.rules())
    for name in rules:
        wire_proxy.remove_rule(name)
    return f"rules {', '.join(rules)} of the wire proxy were in force" if rules else ""


def _settings(cluster: Cluster) -> str:
    """Remove dynamic broker settings and client quotas; topic settings are deleted with the topics."""
    admin, changed_keys = cluster.admin, set[str]()
    for broker in map(str, cluster.spec.topology.broker_ids):
        current = settings(admin, "broker", broker)
        if dynamic_keys := [key for key, setting in current.items() if setting.dynamic is not None]:
            change(admin, "broker", broker, dict.fromkeys(dynamic_keys))
            changed_keys |= {*dynamic_keys}
    for client, limits in quotas(admin).items():
        change(admin, "client", client, dict.fromkeys(limits))
        changed_keys |= {*limits}
    return f"{', '.join(sorted(changed_keys))} reset" if changed_keys else ""


def _moves(cluster: Cluster) -> str:
    moving = cluster.admin.reassigning()
    if moving:
        cluster.admin.reassign(dict.fromkeys(moving))
        return f"{len(moving)} partitions were being reassigned"
    return ""


def _topics(cluster: Cluster) -> str:
    topics = {topic for broker in cluster.spec.topology.broker_ids for topic in cluster.admin.topics(broker)}
    if topics:
        cluster.admin.delete_topics(sorted(topics))
        return f"{len(topics)} topics being deleted"
    return ""


def _groups(cluster: Cluster) -> str:
    brokers = cluster.spec.topology.broker_ids
    existing = [(broker, *group) for broker in brokers for group in groups(cluster.admin, broker).items()]
    obstacles = [delete_group(cluster.admin, *group) for group in existing]
    return next(filter(None, obstacles), f"{len(existing)} groups being deleted" if existing else "")


def _replicas(cluster: Cluster) -> str:
    behind = {f"{p.topic}/{p.partition}" for p in _all_views(cluster) if set(p.isr) != set(p.replicas)}
    return f"partitions with replicas out of sync: {', '.join(sorted(behind)[:3])}" if behind else ""


def _leaders(cluster: Cluster) -> str:
    badly_led = {(p.topic, p.partition) for p in _all_views(cluster) if p.leader != p.replicas[0]}
    if badly_led:
        cluster.admin.elect_preferred(sorted(badly_led))
        return f"{len(badly_led)} partitions are not led by their preferred replica"
    return ""


def _all_views(cluster: Cluster) -> Sequence[PartitionState]:
    """Return the state of all partitions according to each broker's own metadata."""
    brokers = cluster.spec.topology.broker_ids
    return [state for broker in brokers for state in cluster.admin.partitions(seen_by=broker)]
