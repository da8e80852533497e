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


@dataclass(frozen=True)
class ClusterState:
    """Current state of the cluster. ``in_sync_min``: ``min.insync.replicas`` by topic; 1 for a topic without it."""

    racks: Mapping[BrokerId, str]
    voters: frozenset[BrokerId]
    partitions: Sequence[PartitionState]
    in_sync_min: Mapping[str, int]


def survival(impact: Impact, targets: Targets, cluster: ClusterState) -> list[str]:
    """Return a sentence for each failure, the quorum first; a single sentence if nothing fails."""
    if impact in ("moments", "leaders"):
        return ["quorum and min.insync.replicas survive: no node and no link is taken away"]
    groups = [{node} for node in targets.brokers] if impact == "one node" else [set(targets.brokers)]
    failures: dict[str, None] = {}
    for nodes in groups:
        failures |= dict.fromkeys(_failures(cluster, frozenset(map(BrokerId, nodes)), frozenset(targets.links)))
    survives = ["quorum and min.insync.replicas survive"]
    if impact == "unknown" and (targets.brokers or targets.links):
        return [f"at worst, if its targets serve no requests: {text}" for text in failures] or survives
    return list(failures) or survives


def _failures(cluster: ClusterState, nodes: frozenset[BrokerId], links: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for each failure after the loss of these nodes and links (by proxy name)."""
    racks = cluster.racks

    def is_reachable(channel: str, source: BrokerId, target: BrokerId) -> bool:
        return racks.get(source) == racks.get(target) or f"{channel}_{racks.get(source)}-k{target}" not in links

    # A node is lost as well if it reaches no other voter and, as a voter, is reached by none.
    lost = set(nodes)
    for node in racks if links else ():
        voters = cluster.voters - nodes - {node}
        out = any(is_reachable("controller", node, voter) for voter in voters)
        back = node in cluster.voters and any(is_reachable("controller", voter, node) for voter in voters)
        if voters and not out and not back:
            lost.add(node)
    remaining = cluster.voters - lost
    connected = {
        voter: [
            peer
            for peer in remaining
            if is_reachable("controller", voter, peer) and is_reachable("controller", peer, voter)
        ]
        for voter in remaining
    }
    majority = max(map(len, connected.values()), default=0)
    if 2 * majority <= len(cluster.voters):
        yield f"the metadata quorum would have {majority} of {len(cluster.voters)} voters: no controller"
    by_effect: dict[str, list[str]] = {}
    for state in cluster.partitions:
        alive = [replica for replica in state.isr if replica not in lost]
        leaders = [state.leader] if state.leader in alive else alive
        # in-sync replicas that reach the leader, the leader included
        reaching = [sum(is_reachable("replication", replica, leader) for replica in alive) for leader in leaders]
        needed = cluster.in_sync_min.get(state.topic, 1)
        effect = None
        if not alive:
            effect = "no leader: none of its in-sync replicas is left"
        elif max(reaching) < needed:
            effect = f"{max(reaching)} of the {needed} in-sync replicas it needs: acks=all stops"
        if effect:
            by_effect.setdefault(effect, []).append(f"{state.topic}/{state.partition}")
    for effect, partitions in by_effect.items():
        more = len(partitions) - _LISTED_PARTITIONS_MAX
        listed = ", ".join(partitions[:_LISTED_PARTITIONS_MAX]) + (f" and {more} more" if more > 0 else "")
        yield f"{listed} would have {effect}"
