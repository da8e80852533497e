"""The group protocol of KIP-848, as the coordinator sees it: it assigns, and members report what they own.

1. Whoever joins, leaves or subscribes anew raises the group's epoch. The target deals the partitions of each topic to
   its subscribers in turn.
2. A member is told to give up what isn't its own any more, first; a partition goes to its new owner once the old one's
   heartbeat has not named it.
3. The member's epoch becomes the group's when it owns nothing that it is to give up. An epoch that it wasn't told last,
   or the time before (that answer may have been lost), is fenced.
"""

import re
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from aftershock.tests.scripted.call import Answer, Call
from aftershock.tests.scripted.groups import UNKNOWN_MEMBER_ID, Group

FENCED_MEMBER_EPOCH = 110
STALE_MEMBER_EPOCH = 113
FENCED_INSTANCE_ID = 82
UNRELEASED_INSTANCE_ID = 111
NOT_COORDINATOR = 16
INTERVAL_MS = 30
TEMPORARY_LEAVE = -2
Place = tuple[UUID, int]


@dataclass
class Owner:
    """A member. ``given`` is what it was last told to own, ``owned`` what it last said it does."""

    epoch: int = 0
    epoch_before: int = 0
    topics: list[str] = field(default_factory=list)
    pattern: str = ""
    instance_id: str | None = None
    has_left: bool = False
    owned: set[Place] = field(default_factory=set)
    given: set[Place] = field(default_factory=set)


@dataclass
class ConsumerGroup(Group):
    """Owners by member id, in the order in which they came. The classic protocol's members don't exist here."""

    epoch: int = 0
    owners: dict[str, Owner] = field(default_factory=dict)

    def refusal(self, member_id: str, generation: int, instance_id: str | None = None) -> int:  # noqa: ARG002  # as in the other protocol
        """The error code of a commit; one without an epoch is for groups without members."""
        if generation < 0 and not self.owners:
            return 0
        if member_id not in self.owners:
            return UNKNOWN_MEMBER_ID
        return 0 if generation == self.owners[member_id].epoch else STALE_MEMBER_EPOCH

    def rebalance(self) -> None:
        """The next target gives everything to the member after."""
        self.epoch += 1
        self.owners = dict([*list(self.owners.items())[1:], *list(self.owners.items())[:1]])

    def join(self, member_id: str, instance_id: str | None) -> int:  # type: ignore[override]  # the other protocol's is never called
        """Rule 4; the error code for a static member that may not join."""
        known = next((name for name, one in self.owners.items() if instance_id and one.instance_id == instance_id), "")
        if known and not self.owners[known].has_left:
            return UNRELEASED_INSTANCE_ID
        if not known:
            self.epoch += 1
            self.owners[member_id] = Owner(instance_id=instance_id)
            return 0
        owner = self.owners[known]
        owner.has_left, owner.epoch, owner.epoch_before, owner.owned, owner.given = False, 0, 0, set(), set()
        self.owners = {member_id if name == known else name: one for name, one in self.owners.items()}
        return 0

    def leave(self, member_id: str) -> int:
        self.epoch += 1
        return 0 if self.owners.pop(member_id, None) else UNKNOWN_MEMBER_ID

    def assign(self, owner: Owner, target: set[Place]) -> None:
        """Rules 2 and 3."""
        others = [other for other in self.owners.values() if other is not owner]
        taken = {place for other in others for place in other.given | other.owned}
        owner.given = owner.owned & target
        if owner.owned <= target and owner.epoch != self.epoch:
            owner.epoch_before, owner.epoch = owner.epoch, self.epoch
        if owner.owned <= target:
            owner.given |= target - taken


async def consumer_group_heartbeat(call: Call) -> Answer:
    body = call.body
    if call.cluster.coordinator(body.group_id) != call.node.node_id:
        return {"error_code": NOT_COORDINATOR}
    group = _consumer_group(call, body.group_id)
    if body.member_epoch == TEMPORARY_LEAVE and body.member_id in group.owners:
        group.owners[body.member_id].has_left = True
        return {"member_id": body.member_id, "member_epoch": TEMPORARY_LEAVE}
    if body.member_epoch < 0:
        return {"error_code": group.leave(body.member_id), "member_id": body.member_id, "member_epoch": -1}
    if body.member_epoch == 0 and (error := group.join(body.member_id, body.instance_id)):
        return {"error_code": error}
    owner = group.owners.get(body.member_id)
    if body.instance_id and any(
        one.instance_id == body.instance_id and one is not owner for one in group.owners.values()
    ):
        return {"error_code": FENCED_INSTANCE_ID}
    if owner is None or body.member_epoch not in {owner.epoch, owner.epoch_before}:
        return {"error_code": FENCED_MEMBER_EPOCH if owner else UNKNOWN_MEMBER_ID}
    return {"member_id": body.member_id, "heartbeat_interval": INTERVAL_MS} | _told(call, group, owner)


def _consumer_group(call: Call, group_id: str) -> ConsumerGroup:
    """The group; one of which only offsets are known so far becomes one of this protocol."""
    known = call.groups.get(group_id, Group())
    if not isinstance(known, ConsumerGroup):
        known = call.groups[group_id] = ConsumerGroup(committed=known.committed)
    return known


def _told(call: Call, group: ConsumerGroup, owner: Owner) -> Answer:
    body, before = call.body, set(owner.given)
    if body.subscribed_topic_names is not None and list(body.subscribed_topic_names) != owner.topics:
        owner.topics = list(body.subscribed_topic_names)
    owner.pattern = getattr(body, "subscribed_topic_regex", None) or owner.pattern
    if owner.pattern:
        owner.topics = sorted(name for name in call.cluster.topics if re.fullmatch(owner.pattern, name))
    if body.topic_partitions is not None:
        owner.owned = {(topic.topic_id, number) for topic in body.topic_partitions for number in topic.partitions}
    group.assign(owner, _target(call, group, owner))
    changed = owner.given != before or body.topic_partitions is not None
    return {"member_epoch": owner.epoch} | ({"assignment": _assignment(owner.given)} if changed else {})


def _target(call: Call, group: ConsumerGroup, owner: Owner) -> set[Place]:
    """Of each topic, the partitions dealt in turn to those who subscribe to it."""
    target: set[Place] = set()
    for name in owner.topics:
        topic = call.cluster.topic(name)
        sharing = [each for each in group.owners.values() if name in each.topics]
        turn = next(at for at, each in enumerate(sharing) if each is owner)
        if topic is not None:
            target |= {(topic.topic_id, number) for number in range(turn, len(topic.partitions), len(sharing))}
    return target


def _assignment(places: set[Place]) -> dict[str, Any]:
    topics = {topic_id for topic_id, _ in places}
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "partitions": sorted(number for each, number in places if each == topic_id)}
            for topic_id in sorted(topics)
        ]
    }
