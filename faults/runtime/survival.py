"""Predict whether a cluster survives a fault: its metadata quorum, and ``min.insync.replicas`` of every partition.

The prediction is for ``inject --dry-run``. It is computed only from the fault's `Impact`, its targets, and the current
state. It concerns the cluster alone, not whether clients reach the remaining brokers. For a kind with impact
``unknown`` the worst case is predicted: that its nodes and links serve no requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aftershock.faults.kinds.fault import Impact
from aftershock.faults.runtime.record import Targets
from aftershock.faults.targets.values import BrokerId, PartitionState

_LISTED_PARTITIONS_MAX = 4
_SURVIVES = "quorum and min.insync.replicas survive"


@dataclass(frozen=True)
class ClusterState:
    """Current state of the cluster. ``in_sync_min``: ``min.insync.replicas`` by topic; 1 for a topic without it."""

    racks: Mapping[BrokerId, str]
    voters: frozenset[BrokerId]
    partitions: Sequence[PartitionState]
    in_sync_min: Mapping[str, int]


@dataclass(frozen=True)
class _Loss:
    """Lost nodes, and lost links (by proxy name)."""

    cluster: ClusterState
    nodes: frozenset[BrokerId]
    links: frozenset[str]

    def is_reachable(self, channel: str, source: BrokerId, target: BrokerId) -> bool:
        racks = self.cluster.racks
        return racks.get(source) == racks.get(target) or f"{channel}_{racks.get(source)}-k{target}" not in self.links

    def connects_voters(self, left: BrokerId, right: BrokerId) -> bool:
        return self.is_reachable("controller", left, right) and self.is_reachable("controller", right, left)

    def reaches_quorum(self, node: BrokerId) -> bool:
        """Return True if the node reaches any other voter or, if it is a voter itself, any voter reaches it."""
        voters = self.cluster.voters - self.nodes - {node}
        out = any(self.is_reachable("controller", node, voter) for voter in voters)
        back = node in self.cluster.voters and any(self.is_reachable("controller", voter, node) for voter in voters)
        return out or back or not voters


def survival(impact: Impact, targets: Targets, cluster: ClusterState) -> list[str]:
    """Return a sentence for each failure, the quorum first; a single sentence if nothing fails."""
    if impact in ("moments", "leaders"):
        return ["quorum and min.insync.replicas survive: no node and no link is taken away"]
    links = frozenset(targets.links)
    groups = [{node} for node in targets.brokers] if impact == "one node" else [set(targets.brokers)]
    failures: dict[str, None] = {}
    for nodes in groups:
        lost = _Loss(cluster, frozenset(map(BrokerId, nodes)), links)
        cut_off = {node for node in cluster.racks if links and node not in lost.nodes and not lost.reaches_quorum(node)}
        failures |= dict.fromkeys(_failures(_Loss(cluster, lost.nodes | cut_off, links)))
    if impact == "unknown" and (targets.brokers or targets.links):
        return [f"at worst, if its targets serve no requests: {text}" for text in failures] or [_SURVIVES]
    return list(failures) or [_SURVIVES]


def _failures(loss: _Loss) -> Iterator[str]:
    voters = loss.cluster.voters
    remaining = voters - loss.nodes
    majority = max(
        (sum(voter == peer or loss.connects_voters(voter, peer) for peer in remaining) for voter in remaining),
        default=0,
    )
    if 2 * majority <= len(voters):
        yield f"the metadata quorum would have {majority} of {len(voters)} voters: no controller"
    by_effect: dict[str, list[str]] = {}
    for state in loss.cluster.partitions:
        if effect := _effect_on(state, loss):
            by_effect.setdefault(effect, []).append(f"{state.topic}/{state.partition}")
    for effect, partitions in by_effect.items():
        more = len(partitions) - _LISTED_PARTITIONS_MAX
        listed = ", ".join(partitions[:_LISTED_PARTITIONS_MAX]) + (f" and {more} more" if more > 0 else "")
        yield f"{listed} would have {effect}"


def _effect_on(state: PartitionState, loss: _Loss) -> str | None:
    """Return the remaining leader or ISR of a partition if it is too small, else None."""
    alive = [replica for replica in state.isr if replica not in loss.nodes]
    if not alive:
        return "no leader: none of its in-sync replicas is left"
    leaders = alive if state.leader is None or state.leader not in alive else [state.leader]
    # in-sync replicas that reach the leader, the leader included
    in_sync = max(
        sum(replica == leader or loss.is_reachable("replication", replica, leader) for replica in alive)
        for leader in leaders
    )
    needed = loss.cluster.in_sync_min.get(state.topic, 1)
    return f"{in_sync} of the {needed} in-sync replicas it needs: acks=all stops" if in_sync < needed else None
