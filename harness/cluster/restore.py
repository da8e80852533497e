"""A used cluster back to new, and the proof of it.

::

    nodes ─▶ links ─▶ brokers ─▶ settings ─▶ moves ─▶ topics ─▶ groups ─▶ replicas ─▶ leaders
      ▲                                                                                  │
      └───────────────── again, until one whole round has found nothing ─────────────────┘

Rules:

* Each step looks, mends what it finds, and says what it found: the last round is the proof that all was mended.
* What can't be mended is an error at once; what takes its time is looked at until the deadline.
* Kafka is asked broker by broker: one that was frozen until now answers from old metadata, and must not hide anything.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from aftershock.errors import AdminError, ClusterError
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.node import KafkaNode
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.kafka.groups import delete_group, groups
from aftershock.harness.kafka.settings import change, quotas, settings

Say = Callable[[str], None]


def restore(cluster: Cluster, say: Say, deadline_s: float = 60.0) -> None:
    """Heal what is broken, delete every topic and group, and wait until the cluster is as it was launched.

    Args:
        cluster: a cluster that nobody uses.
        say: gets a line for each thing that was still broken.
        deadline_s: how long it may take.

    Raises:
        ClusterError: it is not as new in time, or a node is gone for good; says what is wrong.
        FaultError: Toxiproxy does not answer, or does not have the proxies it was given.
    """
    if missing := still_lacking(lambda: _round(cluster, say), deadline_s):
        raise ClusterError(f"the cluster {cluster.run_id} is not as new after {deadline_s:.0f} s: {missing}")


def _round(cluster: Cluster, say: Say) -> str:
    """What the first step that found something found; "" when there was nothing."""
    try:
        for step in _FAULTS:
            if found := step(cluster):
                say(f"mended what a lease left: {found}")
                return found
        return next(filter(None, (step(cluster) for step in _TRACES)), "")
    except AdminError as error:
        # a broker that has just been started does not answer yet
        return str(error)


def _versions(cluster: Cluster) -> str:
    """Every node is of the version that the cluster was launched with."""
    others = {node.node.name: node.version() for node in cluster.nodes.values()}
    if changed := sorted(name for name, version in others.items() if version != cluster.spec.kafka):
        now = ", ".join(f"{name} is {others[name]}" for name in changed)
        raise ClusterError(f"the cluster {cluster.run_id} is of another version than it was launched with: {now}")
    return ""


def _nodes(cluster: Cluster) -> str:
    """Every node's process runs."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        return ", ".join(filter(None, pool.map(_revived, cluster.nodes.values())))


def _revived(node: KafkaNode) -> str:
    state = node.state()
    if state == "running":
        return ""
    node.resume() if state == "paused" else node.restart()
    return f"{node.node.name} was {state}"


def _links(cluster: Cluster) -> str:
    """Toxiproxy has the topology's proxies, all enabled, and no toxics."""
    toxiproxy = cluster.toxiproxy
    crossed = toxiproxy.upstreams().items() ^ {
        (proxy.name, proxy.upstream) for proxy in cluster.spec.topology.proxies()
    }
    if crossed:
        names = ", ".join(sorted({name for name, _ in crossed}))
        raise ClusterError(f"Toxiproxy at {toxiproxy.url} does not have the proxies it was given: {names}")
    poisoned = [name for name, toxics in toxiproxy.toxics().items() if toxics]
    broken = sorted({*poisoned, *toxiproxy.disabled()})
    if broken:
        toxiproxy.reset()
        return f"links {', '.join(broken)} were broken"
    return ""


def _rules(cluster: Cluster) -> str:
    """The wire proxy, where there is one, has no rules."""
    wire_proxy = cluster.wire_proxy
    if wire_proxy is None:
        return ""
    left = sorted(wire_proxy.rules())
    for name in left:
        wire_proxy.remove_rule(name)
    return f"rules {', '.join(left)} of the wire proxy were in force" if left else ""


def _settings(cluster: Cluster) -> str:
    """No broker has a dynamic setting of its own, and no client a quota; those of topics go with the topics."""
    admin, put_back = cluster.admin, set[str]()
    for broker in map(str, _broker_ids(cluster)):
        if own := [key for key, setting in settings(admin, "broker", broker).items() if setting.dynamic is not None]:
            change(admin, "broker", broker, dict.fromkeys(own))
            put_back |= {*own}
    for client, limits in quotas(admin).items():
        change(admin, "client", client, dict.fromkeys(limits))
        put_back |= {*limits}
    return f"{', '.join(sorted(put_back))} put back" if put_back else ""


def _moves(cluster: Cluster) -> str:
    """No replica is being moved."""
    moving = cluster.admin.reassigning()
    if moving:
        cluster.admin.reassign(dict.fromkeys(moving))
        return f"{len(moving)} partitions were being reassigned"
    return ""


def _brokers(cluster: Cluster) -> str:
    """Every broker is registered and unfenced."""
    ready = {member.id for member in cluster.admin.members() if not member.fenced}
    missing = [f"k{broker}" for broker in _broker_ids(cluster) if broker not in ready]
    return f"{', '.join(missing)} not registered or fenced" if missing else ""


def _topics(cluster: Cluster) -> str:
    """There are no topics but Kafka's own."""
    found = {topic for broker in _broker_ids(cluster) for topic in cluster.admin.topics(broker)}
    if found:
        cluster.admin.delete_topics(sorted(found))
        return f"{len(found)} topics being deleted"
    return ""


def _groups(cluster: Cluster) -> str:
    """There are no groups."""
    found = [(broker, *group) for broker in _broker_ids(cluster) for group in groups(cluster.admin, broker).items()]
    obstacles = [delete_group(cluster.admin, *group) for group in found]
    return next(filter(None, obstacles), f"{len(found)} groups being deleted" if found else "")


def _replicas(cluster: Cluster) -> str:
    """Every ISR is full."""
    behind = {f"{p.topic}/{p.partition}" for p in _all_views(cluster) if set(p.isr) != set(p.replicas)}
    return f"not all replicas in sync of {', '.join(sorted(behind)[:3])}" if behind else ""


def _leaders(cluster: Cluster) -> str:
    """Every partition is led by its first replica."""
    others = {(p.topic, p.partition) for p in _all_views(cluster) if p.leader != p.replicas[0]}
    if others:
        cluster.admin.elect_preferred(sorted(others))
        return f"{len(others)} partitions not led by their preferred replica"
    return ""


def _all_views(cluster: Cluster) -> Sequence[PartitionState]:
    """Every partition, once as each broker sees it."""
    return [state for broker in _broker_ids(cluster) for state in cluster.admin.partitions(seen_by=broker)]


def _broker_ids(cluster: Cluster) -> list[BrokerId]:
    return [BrokerId(node.id) for node in cluster.spec.topology.brokers]


_FAULTS = (_versions, _nodes, _links, _rules)
"""What a lease must not leave behind; that it did is worth a line."""
_TRACES = (_brokers, _settings, _moves, _topics, _groups, _replicas, _leaders)
"""What use leaves behind."""
