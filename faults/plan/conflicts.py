"""Faults that fight: overlaps that can't both be what the plan means. And faults too short for Kafka to notice.

Overlaps as such are welcome; several latencies on one link add up. Of a plan only node ids are compared: two faults on
``leader of orders/0`` hit two different brokers, because the first one moves the leader. Where faults are in force
their targets are known, and those are compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from aftershock.faults.kinds.fault import Among, Fault, Stake
from aftershock.faults.kinds.process.controller import SESSION_TIMEOUT_MS, confounded
from aftershock.faults.kinds.process.kill import Kill
from aftershock.faults.kinds.process.pause import Pause
from aftershock.faults.kinds.rack.lose_rack import LoseRack
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.document import Problem, within
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.plan.units import format_duration
from aftershock.faults.targets import clients
from aftershock.faults.targets.links import shared
from aftershock.faults.targets.roles import Controller, parse
from aftershock.faults.timeline.expand import end_ms

_ONE_OF: Mapping[Among, str] = {"brokers": "node", "topics": "topic", "clients": "client", "links": "link"}


def conflicts(draft: Draft) -> Iterator[Problem]:
    """Each pair that fights, at the later of the two in the plan; the first of those that stand at the same places."""
    placed = draft.faults.expansion.placed
    seen = set()
    for earlier, later, what in fighting([each.fault for each in placed], draft):
        first, second = placed[earlier], placed[later]
        if (first.loc, second.loc) not in seen:
            sentence = f"this {second.fault.kind} fights with `{first.id}`, which lasts till "
            sentence += f"{format_duration(end_ms(first.fault))} on {what}: let one end before the other begins"
            yield Problem(second.loc, sentence)
        seen.add((first.loc, second.loc))


def fighting(faults: Sequence[Fault], draft: Draft) -> Iterator[tuple[int, int, str]]:
    """Each pair that fights, as their indices, and what they fight over."""
    for (earlier, first), (later, second) in combinations(enumerate(faults), 2):
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
    for said in draft.faults.said:
        fault = said.fault
        if isinstance(fault, Kill | LoseRack | Pause) and fault.for_ is not None and fault.for_ < timeout_ms:
            sentence = (
                f"a {fault.kind} of {format_duration(fault.for_)} is a grey failure: the controller fences a silent "
                f"broker after {format_duration(timeout_ms)}, so no leader may move; lengthen it if one should"
            )
            yield Problem((*said.loc, "for"), sentence)


def surprises(draft: Draft) -> Iterator[Problem]:
    """What the faults themselves have to say about the plan they are in, and about the controller as a target."""
    for said in draft.faults.said:
        yield from within(said.fault.surprises(draft), said.loc)
        for place, role in said.fault.roles().items():
            if isinstance(parse(role), Controller):
                yield from within(confounded(draft, place), said.loc)


def _shared_stakes(first: type[Fault], second: type[Fault]) -> list[Stake]:
    return [stake for stake in first.stakes if stake in second.stakes]


def _fought_over(draft: Draft, first: Fault, second: Fault) -> str | None:
    """What both must have to themselves and both are sure to hit."""
    for stake in _shared_stakes(type(first), type(second)):
        if stake.among == "links":
            both = _common_links(draft, first, second) if stake.by_plan else []
        else:
            both = sorted(_named(draft, first, stake.among) & _named(draft, second, stake.among))
        if both:
            return both[0] if stake.among == "links" else f"{_ONE_OF[stake.among]} {both[0]}"
    return None


def _common_links(draft: Draft, first: Fault, second: Fault) -> list[str]:
    if draft.cluster is None:
        return []
    homes = draft.cluster.broker_racks
    pairs = product(first.links().values(), second.links().values())
    return [f"links of `{theirs}`" for ours, theirs in pairs if shared(ours, theirs, homes)]


def _named(draft: Draft, fault: Fault, among: Among) -> set[str]:
    """The targets that the plan itself names."""
    if among == "brokers":
        return {str(node) for node in fault.nodes(draft)}
    if among == "clients":
        workloads = draft.workloads.values()
        return {
            worker for text in fault.clients().values() for worker in clients.planned(clients.parse(text), workloads)
        }
    return set((fault.topics() if among == "topics" else fault.links()).values())


def _overlap(first: Fault, second: Fault) -> bool:
    return first.at < end_ms(second) and second.at < end_ms(first)
