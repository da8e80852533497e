"""Times in which a plan's faults certainly stop or delay all requests of a client, and how many nodes are down at once.

Only what follows from the plan alone counts: faults on the links of a client to all brokers, nodes that are down, and
partitions with fewer replicas than ``min.insync.replicas``. The actual effect of a fault is usually larger.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.link.latency import Latency
from aftershock.faults.kinds.link.packets import PacketDelay
from aftershock.faults.kinds.process.base import SESSION_TIMEOUT_MS
from aftershock.faults.plan.expand import ScheduledFault, end_ms
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.sections.workloads import Produce, Topic
from aftershock.faults.targets import links, roles

MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True)
class Outage:
    """Time in which a fault answers no request of a client, or each of them ``delay_ms`` late (None: not at all)."""

    fault: str
    start_ms: int
    end_ms: int
    delay_ms: int | None = None

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True)
class Down:
    """Nodes that are down at once from the start of ``fault`` on, by all faults ``in_force`` then."""

    fault: ScheduledFault
    in_force: tuple[ScheduledFault, ...]
    brokers: int
    voters: int
    all_nodes: bool

    @property
    def until_ms(self) -> int:
        return min(end_ms(scheduled.fault) for scheduled in self.in_force)

    @property
    def lasts(self) -> bool:
        """True if each of the faults has a duration; a restart ends when the node is back."""
        return all(scheduled.fault.for_ is not None for scheduled in self.in_force)

    @property
    def names(self) -> str:
        return " and ".join(f"`{scheduled.id}`" for scheduled in self.in_force)


def down_nodes(draft: Draft) -> list[Down]:
    """Return the nodes that are down after the start of each fault that takes one down.

    Two faults on roles never hit one node: a role is resolved to a node that is running.
    """
    cluster = draft.cluster
    if cluster is None:
        return []
    brokers, nodes = set(cluster.broker_racks), set(cluster.node_racks)
    voters = nodes - brokers or brokers
    faults = [scheduled for scheduled in draft.faults.expansion.schedule if _takes_nodes_down(scheduled.fault)]
    found = []
    for scheduled in faults:
        at_ms = scheduled.fault.at
        named: set[int] = set()
        by_role = [0, 0]
        in_force = [other for other in faults if other.fault.at <= at_ms < end_ms(other.fault)]
        for other in in_force:
            own = other.fault.nodes(draft)
            named |= own
            if not own:
                is_controller = other.fault.kind == "kill_controller" or any(
                    isinstance(roles.parse(role), roles.Controller) for role in other.fault.roles().values()
                )
                by_role[0] += not is_controller or voters == brokers
                by_role[1] += is_controller or voters == brokers
        down = Down(
            scheduled,
            tuple(in_force),
            min(len(named & brokers) + by_role[0], len(brokers)),
            min(len(named & voters) + by_role[1], len(voters)),
            all_nodes=named >= nodes,
        )
        found.append(down)
    return found


def _takes_nodes_down(fault: Fault) -> bool:
    """Return True for a fault that stops, kills or pauses nodes, also one after the other."""
    return (fault.impact() in ("nodes", "one node") and fault.drops_traffic) or fault.kind == "kill_controller"


def in_sync_min(draft: Draft, topic: Topic) -> int:
    """Return the ``min.insync.replicas`` of a topic; 1 if the plan has no valid number."""
    text = topic.config.get(MIN_ISR) or (draft.cluster.config.get(MIN_ISR) if draft.cluster else None) or "1"
    return int(text) if text.isdecimal() else 1


def session_timeout_ms(draft: Draft) -> int:
    """Return the ``broker.session.timeout.ms`` of the plan's cluster; that of Kafka for an attached cluster."""
    if draft.cluster is None:
        return SESSION_TIMEOUT_MS["production"]
    own = draft.cluster.config.get("broker.session.timeout.ms", "")
    return int(own) if own.isdecimal() else SESSION_TIMEOUT_MS[draft.cluster.profile]


def client_outages(draft: Draft, rack: str, *, consumer: bool = False) -> Iterator[Outage]:
    """Yield the outages of all clients in a rack, by faults on their links to all brokers, or without any broker.

    For a consumer, only the way from the broker delays a record: its next request waits for records at the broker.
    """
    if draft.cluster is None:
        return
    brokers = len(draft.cluster.broker_racks)
    for scheduled in draft.faults.expansion.schedule:
        fault = scheduled.fault
        if fault.for_ is None:
            continue
        for text in fault.links().values():
            link = links.parse(text)
            if not isinstance(link, links.ToBroker) or link.channel != "client" or link.source not in ("*", rack):
                continue
            if link.role is not None and brokers > 1:
                continue
            if fault.impact() == "links":
                yield Outage(scheduled.id, fault.at, end_ms(fault))
            elif isinstance(fault, Latency | PacketDelay) and (link.both or not consumer):
                ways = 2 if link.both and not consumer else 1
                yield Outage(scheduled.id, fault.at, end_ms(fault), ways * _least_delay_ms(fault))
    for down in down_nodes(draft):
        if down.brokers == brokers and down.lasts:
            yield Outage(down.fault.id, down.fault.fault.at, down.until_ms)


def _least_delay_ms(fault: Latency | PacketDelay) -> int:
    delays = [fault.delay]
    if isinstance(fault, Latency):
        delays += [fault.ramp_to] if fault.ramp_to is not None else []
        delays += [fault.spikes.delay] if fault.spikes else []
    return max(0, min(delays) - fault.jitter)


def unwritable(draft: Draft, produce: Produce) -> Iterator[Outage]:
    """Yield the outages in which no topic of a producer with ``acks: all`` has enough replicas in sync."""
    if draft.cluster is None or produce.acks != "all":
        return
    brokers = len(draft.cluster.broker_racks)
    declared = {topic.name: topic for topic in draft.topics.values()}
    topics = [declared[name] for name in produce.topic_names(declared) if name in declared]
    if not topics or any(topic.replication != brokers for topic in topics):
        return
    for down in down_nodes(draft):
        if down.lasts and all(brokers - down.brokers < in_sync_min(draft, topic) for topic in topics):
            yield Outage(down.fault.id, down.fault.fault.at, down.until_ms)
