"""New replica lists from old ones: rotated, two brokers swapped, one put in another's place, more or fewer of them.

Pure. The first replica is the preferred leader, so it is kept where nothing asks for another.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from aftershock.errors import FaultError
from aftershock.faults.values import BrokerId, PartitionState, TopicPartition

Replicas = tuple[BrokerId, ...]
Assignment = dict[TopicPartition, Replicas]


def where(state: PartitionState) -> TopicPartition:
    """Which partition it is."""
    return state.topic, state.partition


def rotated(states: Iterable[PartitionState], turns: int) -> Assignment:
    """Each list turned left."""
    return {where(s): s.replicas[turns % len(s.replicas) :] + s.replicas[: turns % len(s.replicas)] for s in states}


def moved(states: Iterable[PartitionState], source: BrokerId, target: BrokerId) -> Assignment:
    """``target`` in ``source``'s place; unchanged where the one is absent or the other is there already."""
    return {where(s): s.replicas if target in s.replicas else _put(s.replicas, {source: target}) for s in states}


def swapped(states: Iterable[PartitionState], one: BrokerId, other: BrokerId) -> Assignment:
    """Each in the place of the other, also where only one of them is."""
    return {where(s): _put(s.replicas, {one: other, other: one}) for s in states}


def replaced(states: Iterable[PartitionState], source: BrokerId, target: BrokerId) -> Assignment:
    """All that ``source`` holds goes to ``target``. FaultError if that holds some of it already."""
    held = [state for state in states if source in state.replicas]
    both = [state for state in held if target in state.replicas]
    if both:
        raise FaultError(
            f"broker {target} has a replica of {len(both)} of the {len(held)} partitions that {source} holds, "
            f"{both[0].topic}/{both[0].partition} first, so it can't take its place: name a broker that holds nothing"
        )
    return moved(held, source, target)


def replicated(states: Iterable[PartitionState], factor: int, racks: Mapping[BrokerId, str]) -> Assignment:
    """Lists of that length, over as many racks as there are, and over the brokers of a rack evenly.

    ``racks``: of the brokers that may hold replicas.
    """
    held: Counter[BrokerId] = Counter()
    assignment: Assignment = {}
    for state in states:
        replicas = _shortened(state.replicas, factor, racks)
        while len(replicas) < factor:
            replicas = (*replicas, _next(replicas, held, racks))
        held.update(replicas)
        assignment[where(state)] = replicas
    return assignment


def _put(replicas: Replicas, places: Mapping[BrokerId, BrokerId]) -> Replicas:
    return tuple(places.get(replica, replica) for replica in replicas)


def _shortened(replicas: Replicas, factor: int, racks: Mapping[BrokerId, str]) -> Replicas:
    """Without its last ones, those first whose rack has another."""
    while len(replicas) > factor:
        crowded = Counter(racks.get(replica) for replica in replicas)
        spare = [replica for replica in replicas[1:] if crowded[racks.get(replica)] > 1] or list(replicas[1:])
        replicas = tuple(replica for replica in replicas if replica != spare[-1])
    return replicas


def _next(replicas: Replicas, held: Counter[BrokerId], racks: Mapping[BrokerId, str]) -> BrokerId:
    """Whom to add: of the rack that has fewest of them, who holds least."""
    left = [broker for broker in sorted(racks) if broker not in replicas]
    if not left:
        raise FaultError(f"there are {len(racks)} brokers, so a partition can't have more replicas: ask for fewer")
    crowded = Counter(racks.get(replica) for replica in replicas)
    return min(left, key=lambda broker: (crowded[racks[broker]], held[broker]))
