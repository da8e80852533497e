"""Whether a cluster would survive a fault: its metadata quorum, and ``min.insync.replicas`` of every partition.

For ``inject --dry-run``. Pure: from what the fault takes (``Takes``), whom it hits, and the state of now. It is about
the cluster alone: whether clients reach what is left is another question. Of a kind that does not say what it takes the
worst is told: that its nodes and links serve nobody.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aftershock.faults.kinds.fault import Takes
from aftershock.faults.runtime.record import Targets
from aftershock.faults.targets.values import BrokerId, PartitionState

_NAMED_MAX = 4


@dataclass(frozen=True)
class Standing:
    """The cluster as it is now. ``in_sync_min``: ``min.insync.replicas`` by topic, 1 where there is none."""

    racks: Mapping[BrokerId, str]
    voters: frozenset[BrokerId]
    partitions: Sequence[PartitionState]
    in_sync_min: Mapping[str, int]


@dataclass(frozen=True)
class _Loss:
    """What is gone: nodes, and links by their proxies' names."""

    standing: Standing
    nodes: frozenset[BrokerId]
    links: frozenset[str]

    def carries(self, channel: str, source: BrokerId, target: BrokerId) -> bool:
        racks = self.standing.racks
        return racks.get(source) == racks.get(target) or f"{channel}_{racks.get(source)}-k{target}" not in self.links

    def in_touch(self, one: BrokerId, other: BrokerId) -> bool:
        """Whether two voters hear each other."""
        return self.carries("controller", one, other) and self.carries("controller", other, one)

    def rules(self, node: BrokerId) -> bool:
        """Whether a node that runs hears from any other voter, or any of them from it."""
        voters = self.standing.voters - self.nodes - {node}
        out = any(self.carries("controller", node, voter) for voter in voters)
        back = node in self.standing.voters and any(self.carries("controller", voter, node) for voter in voters)
        return out or back or not voters


def survival(takes: Takes, targets: Targets, standing: Standing) -> list[str]:
    """Sentences, the quorum's first; where all goes on, one that says so."""
    if takes in ("moments", "leaders"):
        return ["quorum and min.insync.replicas survive: no node and no link is taken away"]
    told = list(dict.fromkeys(text for loss in _losses(takes, targets, standing) for text in _broken(loss)))
    if takes == "unknown" and (targets.brokers or targets.links):
        told = [f"at worst, if what it hits serves nobody: {text}" for text in told]
    return told or ["quorum and min.insync.replicas survive"]


def _losses(takes: Takes, targets: Targets, standing: Standing) -> Iterator[_Loss]:
    links = frozenset(targets.links)
    turns = [{node} for node in targets.brokers] if takes == "one node" else [set(targets.brokers)]
    for nodes in turns:
        gone = _Loss(standing, frozenset(map(BrokerId, nodes)), links)
        cut_off = {node for node in standing.racks if links and node not in gone.nodes and not gone.rules(node)}
        yield _Loss(standing, gone.nodes | cut_off, links)


def _broken(loss: _Loss) -> Iterator[str]:
    voters = loss.standing.voters
    left = voters - loss.nodes
    agreeing = max((sum(one == other or loss.in_touch(one, other) for other in left) for one in left), default=0)
    if 2 * agreeing <= len(voters):
        yield f"the metadata quorum would have {agreeing} of {len(voters)} voters: no controller"
    short: dict[str, list[str]] = {}
    for state in loss.standing.partitions:
        if fate := _fate(state, loss):
            short.setdefault(fate, []).append(f"{state.topic}/{state.partition}")
    for fate, partitions in short.items():
        yield f"{_some(partitions)} would have {fate}"


def _fate(state: PartitionState, loss: _Loss) -> str | None:
    """What is left of the ISR, if that is too little."""
    alive = [replica for replica in state.isr if replica not in loss.nodes]
    if not alive:
        return "no leader: none of its in-sync replicas is left"
    leaders = alive if state.leader is None or state.leader not in alive else [state.leader]
    in_sync = max(_fetching(alive, leader, loss) for leader in leaders)
    needed = loss.standing.in_sync_min.get(state.topic, 1)
    return f"{in_sync} of the {needed} in-sync replicas it needs: acks=all stops" if in_sync < needed else None


def _fetching(alive: Sequence[BrokerId], leader: BrokerId, loss: _Loss) -> int:
    """How many of them reach that leader, itself one of them."""
    return sum(each == leader or loss.carries("replication", each, leader) for each in alive)


def _some(partitions: Sequence[str]) -> str:
    more = len(partitions) - _NAMED_MAX
    return ", ".join(partitions[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
