"""Faults that fight: overlaps that can't both be what the plan means. And faults too short for Kafka to notice.

Overlaps as such are welcome; several latencies on one link add up. Of a plan only node ids are compared: two faults on
``leader of orders/0`` hit two different brokers, because the first one moves the leader. Where faults are in force
their targets are known, and those are compared.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import Any

from aftershock.faults.draft import Draft
from aftershock.faults.fault import Among, Fault, Stake
from aftershock.faults.kinds import KINDS
from aftershock.faults.kinds.kill import Kill
from aftershock.faults.kinds.pause import Pause
from aftershock.faults.links import shared
from aftershock.faults.problem import Problem, within
from aftershock.faults.units import format_duration

_ONE_OF: Mapping[Among, str] = {"brokers": "node", "topics": "topic", "clients": "client", "links": "link"}
SESSION_TIMEOUT_MS = {"fast": 3_000, "production": 9_000}
"""``broker.session.timeout.ms`` of each profile: how long the controller waits before it fences a silent broker."""


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
        if _overlap(first, second) and (what := _fought_over(draft, first, second)):
            yield earlier, later, what


def clash(kind: str, targets: Mapping[str, Any], other_kind: str, other_targets: Mapping[str, Any]) -> str | None:
    """What a fault would fight over with one in force, by their targets as the journal has them; None if nothing."""
    if kind not in KINDS or other_kind not in KINDS:
        return None
    for stake in _shared_stakes(KINDS[kind], KINDS[other_kind]):
        both = sorted(set(targets.get(stake.among, ())) & set(other_targets.get(stake.among, ())))
        if both:
            return f"{_ONE_OF[stake.among]} {both[0]}"
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


def surprises(draft: Draft) -> Iterator[Problem]:
    """What the faults themselves have to say about the plan they are in."""
    for index, fault in draft.faults.items():
        yield from within(fault.surprises(draft), ("faults", index))


def _shared_stakes(first: type[Fault], second: type[Fault]) -> list[Stake]:
    return [stake for stake in first.stakes if stake in second.stakes]


def _fought_over(draft: Draft, first: Fault, second: Fault) -> str | None:
    """What both must have to themselves and both are sure to hit."""
    for stake in _shared_stakes(type(first), type(second)):
        if stake.among == "links":
            both = _common_links(draft, first, second) if stake.by_plan else []
        else:
            both = sorted(_named(first, stake.among) & _named(second, stake.among))
        if both:
            return both[0] if stake.among == "links" else f"{_ONE_OF[stake.among]} {both[0]}"
    return None


def _common_links(draft: Draft, first: Fault, second: Fault) -> list[str]:
    if draft.cluster is None:
        return []
    homes = draft.cluster.broker_racks
    pairs = product(first.links().values(), second.links().values())
    return [f"links of `{theirs}`" for ours, theirs in pairs if shared(ours, theirs, homes)]


def _named(fault: Fault, among: Among) -> set[str]:
    """The targets that the plan itself names: a role may be played by anybody."""
    named = {"brokers": fault.roles, "topics": fault.topics, "clients": fault.clients, "links": fault.links}[among]()
    return {text for text in named.values() if among != "brokers" or text.isdecimal()}


def _overlap(first: Fault, second: Fault) -> bool:
    return first.at < end_ms(second) and second.at < end_ms(first)


def end_ms(fault: Fault) -> int:
    """When its effect is over by plan; a move without ``for`` is over when it is done."""
    return fault.at + (fault.allowance_ms if fault.for_ is None else fault.for_)
