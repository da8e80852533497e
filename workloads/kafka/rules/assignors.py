"""Partition assignors of the classic group protocol, with which the leader of a group divides the partitions.

Rules of all assignors (``AbstractPartitionAssignor`` of Kafka 4.3):

1. ``range`` and ``roundrobin`` order the members by ``group.instance.id``; members without one follow, ordered by
   member id. A static member therefore keeps its place when it restarts with another member id (KIP-345). The sticky
   assignors order by member id.
2. Only topics whose metadata the leader has are assigned, each partition to one subscriber of its topic.
3. A member supports the rebalance protocol COOPERATIVE (KIP-429) if all its assignors support it, otherwise EAGER. Only
   ``cooperative-sticky`` supports both protocols, so each list of assignors has a protocol in common.

Rules of the single assignors:

4. ``range``: each topic on its own; the first subscribers get a contiguous range that is one partition longer if the
   number of partitions is no multiple of the number of subscribers.
5. ``roundrobin``: the partitions of all topics in order, each to the next member in turn that subscribes to its topic.
6. ``sticky`` (``AbstractStickyAssignor``): the assignment is balanced, and moves few partitions. Of two members that
   claim a partition, the one with the later generation owns it; with the same generation neither does. If all members
   subscribe to the same topics, the numbers of partitions differ by one at most, and no partition moves without need.
   Otherwise no partition may be with a member that has at least two partitions more than another subscriber of its
   topic. Which members keep one partition more than others depends on the order of the members, as in Kafka on that of
   a hash map.
7. ``cooperative-sticky``: as ``sticky``, but a partition whose owner changes is assigned to no member until the owner
   has revoked it and joined again.

``tests/unit/workloads/kafka/rules/test_assignors_oracle.py`` holds that Kafka's classes assign alike, except that

* Kafka takes racks into account (KIP-881), which has no effect where every partition has a replica in every rack;
* with different subscriptions Kafka's sticky assignors may move a partition to the owner of an outdated generation that
  no longer subscribes to its topic, or fail (NullPointerException); here such an owner does not count;
* with different subscriptions ``cooperative-sticky`` of Kafka gives a partition that several members claim to one of
  them at once; here rule 7 holds, since another of them may still read it;
* Kafka's sticky assignors fail if a member owned a partition that its topic no longer has; here it is left out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition


class RebalanceProtocol(IntEnum):
    EAGER = 0
    """Each member revokes all partitions before it joins again."""
    COOPERATIVE = 1
    """A member keeps its partitions, and revokes those that the new assignment lacks."""


class Subscription(NamedTuple):
    """Subscription of a group member, with the partitions that the member owned in ``generation``."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = UNKNOWN
    instance_id: str | None = None
    rack: str | None = None


PartitionCounts = Mapping[str, int]
"""Number of partitions by topic."""
Members = Mapping[str, Subscription]
"""Subscriptions by member id."""
GroupAssignment = dict[str, list[TopicPartition]]
"""Assigned partitions by member id; every member has an entry."""
Assignor = Callable[[PartitionCounts, Members], GroupAssignment]


def in_order(members: Members) -> list[str]:
    """Return the member ids in the order of rule 1."""

    def key(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (instance_id is None, member_id if instance_id is None else instance_id)

    return sorted(members, key=key)


def partitions_of(counts: PartitionCounts, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of the topics with metadata, ordered by topic and number."""
    return [TopicPartition(topic, number) for topic in sorted(set(topics)) for number in range(counts.get(topic, 0))]


def assign_ranges(counts: PartitionCounts, members: Members) -> GroupAssignment:
    assignment: GroupAssignment = {member_id: [] for member_id in members}
    for topic, count in sorted(counts.items()):
        subscribers = [member_id for member_id in in_order(members) if topic in members[member_id].topics]
        if not subscribers:
            continue
        shorter, longer_ranges = divmod(count, len(subscribers))
        begin = 0
        for place, member_id in enumerate(subscribers):
            end = begin + shorter + (place < longer_ranges)
            assignment[member_id] += (TopicPartition(topic, number) for number in range(begin, end))
            begin = end
    return assignment


def assign_round_robin(counts: PartitionCounts, members: Members) -> GroupAssignment:
    assignment: GroupAssignment = {member_id: [] for member_id in members}
    turns = in_order(members)
    for tp in partitions_of(counts, (topic for member in members.values() for topic in member.topics)):
        place = next(place for place, member_id in enumerate(turns) if tp.topic in members[member_id].topics)
        assignment[turns[place]].append(tp)
        turns = turns[place + 1 :] + turns[: place + 1]
    return assignment


def assign_sticky(counts: PartitionCounts, members: Members) -> GroupAssignment:
    return _assign_sticky(counts, members, _Ownership(counts, members))


def assign_cooperatively(counts: PartitionCounts, members: Members) -> GroupAssignment:
    ownership = _Ownership(counts, members)
    assignment = _assign_sticky(counts, members, ownership)
    return {
        member_id: [tp for tp in partitions if ownership.may_take(tp, member_id)]
        for member_id, partitions in assignment.items()
    }


class _Ownership:
    """Owners of the partitions according to the members' claims (rule 6).

    ``is_constrained`` is True if all members subscribe to the same topics. In this case Kafka leaves a partition
    without owner also if two members claim it and a member with a later generation follows them.
    """

    def __init__(self, counts: PartitionCounts, members: Members) -> None:
        self.is_constrained = len({frozenset(member.topics) for member in members.values()}) == 1
        self.owner: dict[TopicPartition, str] = {}
        self._contested: set[TopicPartition] = set()
        generations: dict[TopicPartition, int] = {}
        for member_id, member in members.items():
            for tp in member.owned:
                if tp.partition >= counts.get(tp.topic, 0):
                    continue
                known = generations.get(tp)
                if known is not None and member.generation <= known:
                    if member.generation == known and self.owner.get(tp) != member_id:
                        self._contested.add(tp)
                        self.owner.pop(tp, None)
                    continue
                self.owner[tp], generations[tp] = member_id, member.generation
        if self.is_constrained:
            for tp in self._contested:
                self.owner.pop(tp, None)
        self._contested -= self.owner.keys()

    def may_take(self, tp: TopicPartition, member_id: str) -> bool:
        """Return True if no member has to revoke the partition before the member may have it (rule 7)."""
        return tp not in self._contested and self.owner.get(tp, member_id) == member_id


def _assign_sticky(counts: PartitionCounts, members: Members, ownership: _Ownership) -> GroupAssignment:
    owned: GroupAssignment = {member_id: [] for member_id in members}
    for tp, member_id in sorted(ownership.owner.items(), key=lambda item: (item[0].partition, item[0].topic)):
        if tp.topic in members[member_id].topics:
            owned[member_id].append(tp)
    if ownership.is_constrained:
        return _fill_quotas(partitions_of(counts, next(iter(members.values())).topics), owned)
    return _balance(counts, members, owned, ownership.owner)


def _fill_quotas(partitions: Sequence[TopicPartition], owned: GroupAssignment) -> GroupAssignment:
    """Let each member keep its partitions up to its quota, and deal the others in turn to members below theirs."""
    quota, larger_quotas = divmod(len(partitions), len(owned))
    assignment: GroupAssignment = {}
    for member_id, kept in owned.items():
        has_larger_quota = len(kept) > quota and larger_quotas > 0
        larger_quotas -= has_larger_quota
        assignment[member_id] = kept[: quota + has_larger_quota]
    assigned = {tp for kept in assignment.values() for tp in kept}
    unassigned = iter([tp for tp in partitions if tp not in assigned])
    turns = [kept for _, kept in sorted(assignment.items())]
    at_quota = [kept for kept in turns if len(kept) == quota]
    while turns := [kept for kept in turns if len(kept) < quota]:
        for kept in turns:
            kept.append(next(unassigned))
            if len(kept) == quota:
                at_quota.append(kept)
    for kept, tp in zip(at_quota, unassigned, strict=False):
        kept.append(tp)
    return assignment


def _balance(
    counts: PartitionCounts, members: Members, owned: GroupAssignment, claims: Mapping[TopicPartition, str]
) -> GroupAssignment:
    """Assign the partitions without owner, then move partitions until no move improves the balance.

    Kafka: ``GeneralAssignmentBuilder``. ``claims`` are the owners of ``owned``, and those that no longer subscribe.
    """
    subscribers = {
        topic: sorted(member_id for member_id, member in members.items() if topic in member.topics)
        for topic in {topic for member in members.values() for topic in member.topics}
    }
    sizes = {member_id: len(kept) for member_id, kept in owned.items()}
    owner = {tp: member_id for member_id, kept in owned.items() for tp in kept}
    must_revoke = any(tp.topic in subscribers.keys() - members[claimer].topics for tp, claimer in claims.items())
    latest = max(member.generation for member in members.values())
    outdated_owner: dict[TopicPartition, str] = {}
    for member_id, member in sorted(members.items(), key=lambda item: -item[1].generation):
        for tp in member.owned:
            if member.generation < latest and tp.topic in member.topics:
                outdated_owner.setdefault(tp, member_id)
    original: dict[TopicPartition, str] = {}  # owner of each moved partition before its first move

    def smallest(tp: TopicPartition) -> str:
        return min(subscribers[tp.topic], key=sizes.__getitem__)

    def move(tp: TopicPartition, member_id: str) -> None:
        # where a partition of this topic came the opposite way, it goes back instead
        source = original.get(tp, owner[tp])
        back = (other for other in original if other.topic == tp.topic and owner[other] == source)
        tp = next((other for other in back if original[other] == member_id), tp)
        before = original.pop(tp, owner[tp])
        if before != member_id:
            original[tp] = before
        sizes[owner[tp]] -= 1
        sizes[member_id] += 1
        owner[tp] = member_id

    partitions = sorted(partitions_of(counts, subscribers), key=lambda tp: len(subscribers[tp.topic]))
    new = [tp for tp in partitions if tp not in owner]
    for tp in new:
        owner[tp] = smallest(tp)
        sizes[owner[tp]] += 1
    # new partitions first, so that as few as possible of the owned partitions move
    for movable in (partitions,) if must_revoke else (new, partitions):
        is_moved = True
        while is_moved:
            is_moved = False
            for tp in movable:
                candidates = (outdated_owner.get(tp, owner[tp]), smallest(tp))
                to = next((member_id for member_id in candidates if sizes[owner[tp]] >= sizes[member_id] + 2), None)
                if to is not None:
                    move(tp, to)
                    is_moved = True
    return {member_id: [tp for tp in partitions if owner[tp] == member_id] for member_id in members}


COOPERATIVE_STICKY = "cooperative-sticky"
ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {
        "range": assign_ranges,
        "roundrobin": assign_round_robin,
        "sticky": assign_sticky,
        COOPERATIVE_STICKY: assign_cooperatively,
    }
)


def rebalance_protocol(assignors: Iterable[str]) -> RebalanceProtocol:
    """Return the most advanced protocol that all ``assignors`` support (``ConsumerCoordinator``'s constructor)."""
    supports_cooperative = all(name == COOPERATIVE_STICKY for name in assignors)
    return RebalanceProtocol.COOPERATIVE if supports_cooperative else RebalanceProtocol.EAGER
