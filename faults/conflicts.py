"""Faults that fight: overlaps that can't both be what the plan means. And faults too short for Kafka to notice.

Overlaps as such are welcome; several latencies on one link add up. Of a plan only node ids are compared: two faults on
``leader of orders/0`` hit two different brokers, because the first one moves the leader. Where faults are in force
their targets are known, and those are compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from aftershock.faults.draft import Draft
from aftershock.faults.fault import Fault
from aftershock.faults.kinds import KINDS, Cut, Elect, Kill, Pause, Reassign, Refuse
from aftershock.faults.kinds.victim import NodeFault
from aftershock.faults.links import shared
from aftershock.faults.problem import Problem
from aftershock.faults.units import format_duration

SESSION_TIMEOUT_MS = {"fast": 3_000, "production": 9_000}
"""``broker.session.timeout.ms`` of each profile: how long the controller waits before it fences a silent broker."""
_GROUNDS: Sequence[tuple[tuple[type[Fault], ...], str, str]] = (
    ((NodeFault,), "brokers", "node"),
    ((Reassign, Elect), "topics", "topic"),
    ((Cut, Refuse), "links", "link"),
)
"""Kinds that can't share a target, where the target stands, and what it is called."""


def conflicts(draft: Draft) -> Iterator[Problem]:
    """Each pair that fights, at the later of the two in the plan."""
    for earlier, later, what in fighting(draft):
        first, second = draft.faults[earlier], draft.faults[later]
        sentence = (
            f"this {second.kind} fights with `{draft.fault_ids[earlier]}`, which lasts till "
            f"{format_duration(end_ms(first))} on {what}"
        )
        yield Problem(("faults", later), sentence + ": let one end before the other begins")


def fighting(draft: Draft) -> Iterator[tuple[int, int, str]]:
    """Each pair that fights, as their indices in the plan's order, and what they fight over."""
    for (earlier, first), (later, second) in combinations(sorted(draft.faults.items()), 2):
        what = _same_node(first, second) or _same_topic(first, second) or _same_door(draft, first, second)
        if what and _overlap(first, second):
            yield earlier, later, what


def clash(kind: str, targets: Mapping[str, Any], other_kind: str, other_targets: Mapping[str, Any]) -> str | None:
    """What a fault would fight over with one in force, by their targets as the journal has them; None if nothing."""
    kinds = KINDS.get(kind, Fault), KINDS.get(other_kind, Fault)
    for among, where, called in _GROUNDS:
        shared_ones = sorted(set(targets[where]) & set(other_targets[where]))
        if shared_ones and all(issubclass(each, among) for each in kinds):
            return f"{called} {shared_ones[0]}"
    return None


def grey_failures(draft: Draft) -> Iterator[Problem]:
    """Kills and pauses that end before the controller would notice them."""
    if draft.cluster is None:
        return
    timeout_ms = SESSION_TIMEOUT_MS[draft.cluster.profile]
    for index, fault in draft.faults.items():
        if isinstance(fault, Kill | Pause) and fault.for_ is not None and fault.for_ < timeout_ms:
            sentence = (
                f"a {fault.kind} of {format_duration(fault.for_)} is a grey failure: the controller fences a silent "
                f"broker after {format_duration(timeout_ms)}, so no leader may move; lengthen it if one should"
            )
            yield Problem(("faults", index, "for"), sentence)


def _same_node(first: Fault, second: Fault) -> str | None:
    if not (isinstance(first, NodeFault) and isinstance(second, NodeFault)):
        return None
    return f"node {first.broker}" if first.broker == second.broker and first.broker.isdecimal() else None


def _same_topic(first: Fault, second: Fault) -> str | None:
    moves = isinstance(first, Reassign | Elect) and isinstance(second, Reassign | Elect)
    topic = getattr(first, "topic", None)
    return f"topic {topic}" if moves and topic == getattr(second, "topic", None) else None


def _same_door(draft: Draft, first: Fault, second: Fault) -> str | None:
    """A proxy can't be disabled twice: the first heal would end both faults."""
    if draft.cluster is None or not (isinstance(first, Refuse) and isinstance(second, Refuse)):
        return None
    return f"links of `{second.link}`" if shared(first.link, second.link, draft.cluster.broker_racks) else None


def _overlap(first: Fault, second: Fault) -> bool:
    return first.at < end_ms(second) and second.at < end_ms(first)


def end_ms(fault: Fault) -> int:
    """When its effect is over by plan; a move without ``for`` is over when it is done."""
    return fault.at + (fault.allowance_ms if fault.for_ is None else fault.for_)
