"""Assignments of replicas to partitions that a reassignment (KIP-455) requests."""

from collections import Counter
from collections.abc import Iterable, Mapping

from aftershock.errors import FaultError
from aftershock.faults.targets.values import BrokerId, PartitionState, TopicPartition

Replicas = tuple[BrokerId, ...]
Assignment = dict[TopicPartition, Replicas]


def partition_of(state: PartitionState) -> TopicPartition:
    return state.topic, state.partition


def rotate(states: Iterable[PartitionState], turns: int) -> Assignment:
    """Rotate the replica list of each partition to the left; with one turn, the second replica becomes the first."""
    shifts = {state: turns % len(state.replicas) for state in states}
    return {partition_of(s): s.replicas[shift:] + s.replicas[:shift] for s, shift in shifts.items()}


def move_replicas(states: Iterable[PartitionState], source: BrokerId, target: BrokerId) -> Assignment:
    """Move each replica on broker ``source`` to ``target``, unless ``target`` already has a replica of it."""
    return swap_brokers((state for state in states if target not in state.replicas), source, target)


def swap_brokers(states: Iterable[PartitionState], source: BrokerId, target: BrokerId) -> Assignment:
    """Exchange two brokers in all replica lists, also in lists with only one of the two brokers."""
    partner = {source: target, target: source}
    return {partition_of(s): tuple(partner.get(replica, replica) for replica in s.replicas) for s in states}


def replace_broker(states: Iterable[PartitionState], source: BrokerId, target: BrokerId) -> Assignment:
    """Move all replicas from ``source`` to ``target``; raise FaultError if ``target`` already has such a replica."""
    held = [state for state in states if source in state.replicas]
    if both := [state for state in held if target in state.replicas]:
        first = f"{both[0].topic}/{both[0].partition}"
        raise FaultError(
            f"broker {target} can't replace broker {source}: both have replicas of {len(both)} partitions, {first} "
            "first; use a broker without replicas of these partitions"
        )
    return move_replicas(held, source, target)


def change_replication(states: Iterable[PartitionState], factor: int, racks: Mapping[BrokerId, str]) -> Assignment:
    """Change the number of replicas of each partition, spread over racks, then over the brokers in ``racks``."""
    held: Counter[BrokerId] = Counter()
    assignment: Assignment = {}
    for state in states:
        replicas = state.replicas
        while len(replicas) > factor:  # remove the last replica that shares its rack with another, or else the last
            by_rack = Counter(racks.get(replica) for replica in replicas)
            spare = [replica for replica in replicas[1:] if by_rack[racks.get(replica)] > 1] or list(replicas[1:])
            replicas = tuple(replica for replica in replicas if replica != spare[-1])
        while len(replicas) < factor:
            candidates = [broker for broker in sorted(racks) if broker not in replicas]
            if not candidates:
                raise FaultError(f"`replication` exceeds the cluster's {len(racks)} brokers; lower `replication`")
            by_rack = Counter(racks.get(replica) for replica in replicas)
            added = min(candidates, key=lambda broker: (by_rack[racks[broker]], held[broker]))
            replicas = (*replicas, added)
        held.update(replicas)
        assignment[partition_of(state)] = replicas
    return assignment
