"""Conflicts between faults that need the same target exclusively; warnings about faults with a surprising effect.

In a plan, only targets given as node ids are compared, because two faults on ``leader of orders/0`` may hit two
different brokers if the first fault moves the leader. For faults that are in force in a run, the actual targets in the
journal are compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from aftershock.faults.kinds.client.base import ClientFault
from aftershock.faults.kinds.client.processes import Zombie, session_timeouts
from aftershock.faults.kinds.fault import ExclusiveResource, Fault, TargetKind
from aftershock.faults.kinds.process.base import SESSION_TIMEOUT_MS, combined_node_warnings
from aftershock.faults.kinds.process.kill import Kill, LoseRack
from aftershock.faults.kinds.process.stop import Pause
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.expand import end_ms
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.sections.document import Problem, prefix_problems
from aftershock.faults.sections.units import format_duration
from aftershock.faults.targets import clients
from aftershock.faults.targets.links import share_link
from aftershock.faults.targets.roles import Controller, parse

REBALANCED_MS = 3_000  # for the rebalance itself, as `plan check` allows for the expulsion itself
_SINGULAR: Mapping[TargetKind, str] = {"brokers": "node", "topics": "topic", "clients": "client", "links": "link"}


def conflicts(draft: Draft) -> Iterator[Problem]:
    """Yield each pair of conflicting faults of a plan once, at the fault that is later in the plan."""
    schedule = draft.faults.expansion.schedule
    seen = set()
    for earlier, later, resource in conflicting_pairs([scheduled.fault for scheduled in schedule], draft):
        first, second = schedule[earlier], schedule[later]
        if (first.loc, second.loc) not in seen:
            sentence = (
                f"this {second.fault.kind} conflicts with `{first.id}`, which lasts until "
                f"{format_duration(end_ms(first.fault))} on {resource}: let the earlier fault end before the later "
                "fault begins"
            )
            yield Problem(second.loc, sentence)
        seen.add((first.loc, second.loc))


def conflicting_pairs(faults: Sequence[Fault], draft: Draft) -> Iterator[tuple[int, int, str]]:
    """Yield each pair of conflicting faults as two indices and the resource that both faults need."""
    for (earlier, first), (later, second) in combinations(enumerate(faults), 2):
        overlap = first.at < end_ms(second) and second.at < end_ms(first)
        if overlap and (resource := _common_resource(draft, first, second)):
            yield earlier, later, resource


def conflict_in_force(
    kind: str, targets: Mapping[str, Any], other_kind: str, other_targets: Mapping[str, Any]
) -> str | None:
    """Return the resource that a fault and a fault in force both need exclusively, or None.

    ``targets`` and ``other_targets`` are the actual targets of the two faults, as recorded in the journal.
    """
    if kind not in KINDS or other_kind not in KINDS:
        return None
    for need in _shared_needs(KINDS[kind], KINDS[other_kind]):
        common = sorted(set(targets.get(need.among, ())) & set(other_targets.get(need.among, ())))
        if common:
            return f"{_SINGULAR[need.among]} {common[0]}"
    return None


def fault_warnings(draft: Draft) -> Iterator[Problem]:
    """Yield the warnings of fault kinds about their faults, and those about grey failures, controllers and sessions."""
    yield from _grey_failures(draft)
    for located in draft.faults.readable:
        yield from prefix_problems(located.fault.surprises(draft), located.loc)
        for place, role in located.fault.roles().items():
            if isinstance(parse(role), Controller):
                yield from prefix_problems(combined_node_warnings(draft, place), located.loc)
    yield from _zombie_warnings(draft)


def _grey_failures(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for each kill and pause of a broker that ends before the controller notices it."""
    if draft.cluster is None:
        return
    timeout_ms = SESSION_TIMEOUT_MS[draft.cluster.profile]
    for located in draft.faults.readable:
        fault = located.fault
        if isinstance(fault, Kill | LoseRack | Pause) and fault.for_ is not None and fault.for_ < timeout_ms:
            lasts, timeout = format_duration(fault.for_), format_duration(timeout_ms)
            sentence = (
                f"a {fault.kind} of {lasts} is a grey failure, because the controller fences a silent broker only "
                f"after {timeout}; lengthen `for` if leaders should move"
            )
            yield Problem((*located.loc, "for"), sentence)


def _zombie_warnings(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for each zombie whose session may begin late, with the end of a rebalance of its group.

    The coordinator starts the session of each member anew when a rebalance ends, and a rebalance may end as late
    as the session of a member that another fault stopped before.
    """
    faults = [scheduled.fault for scheduled in draft.faults.expansion.schedule]
    located = {scheduled.fault.id: scheduled.loc for scheduled in draft.faults.expansion.schedule}
    for zombie in (fault for fault in faults if isinstance(fault, Zombie) and fault.for_ is not None):
        selector = clients.parse(zombie.client)
        session_ms = max((ms for _, ms in session_timeouts(selector, draft)), default=0)
        needed_ms = 2 * session_ms + REBALANCED_MS
        others = [
            fault
            for fault in faults
            if isinstance(fault, ClientFault)
            and fault.id != zombie.id
            and fault.op != "produce"
            and clients.parse(fault.client).label == selector.label
            and fault.at < end_ms(zombie)
            and end_ms(fault) + session_ms > zombie.at
        ]
        if others and (zombie.for_ or 0) < needed_ms:
            sentence = (
                f"`{others[0].id}` changes the same group; if its rebalance is under way when the zombie stops, the "
                f"session of {format_duration(session_ms)} begins when the rebalance ends, and the group may not expel "
                f"the zombie: lengthen `for` to {format_duration(needed_ms)}, or let "
                f"{format_duration(session_ms)} pass between the faults"
            )
            yield Problem((*located[zombie.id], "for"), sentence)


def _shared_needs(first: type[Fault], second: type[Fault]) -> list[ExclusiveResource]:
    return [need for need in first.exclusive_resources if need in second.exclusive_resources]


def _common_resource(draft: Draft, first: Fault, second: Fault) -> str | None:
    """Return the resource that two faults need exclusively and certainly both use, or None."""
    for need in _shared_needs(type(first), type(second)):
        if need.among == "links":
            if not need.by_plan or draft.cluster is None:
                continue
            racks = draft.cluster.broker_racks
            for link, other_link in product(first.links().values(), second.links().values()):
                if share_link(link, other_link, racks):
                    return f"links of `{other_link}`"
        else:
            common = sorted(_named_targets(draft, first, need.among) & _named_targets(draft, second, need.among))
            if common:
                return f"{_SINGULAR[need.among]} {common[0]}"
    return None


def _named_targets(draft: Draft, fault: Fault, among: TargetKind) -> set[str]:
    """Return the targets of a fault that are known from the plan, because the plan names node ids."""
    if among == "brokers":
        return {str(node) for node in fault.nodes(draft)}
    if among == "clients":
        selectors = [clients.parse(text) for text in fault.clients().values()]
        workloads = draft.workloads.values()
        certain = [selector for selector in selectors if selector.certain]
        return {worker for selector in certain for worker in clients.planned_workers(selector, workloads)}
    return set((fault.topics() if among == "topics" else fault.links()).values())
