"""The slowest records, each with its latency budget and the fault that overlapped it, or that no fault did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from aftershock.results.evidence import Client, Evidence
from aftershock.results.explain.budget import Attempted, Part, behind, budget, delivery
from aftershock.results.explain.forces import Force
from aftershock.results.explain.words import asked, link_name, listed

SLOWEST_MAX = 10
_FIELDS = {one.name for one in fields(Attempted)}


@dataclass(frozen=True)
class Tale:
    """One slow record: ``parts`` add up to its latency, ``notes`` say what overlapped it and what its link bore."""

    record: Attempted
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


def slowest(evidence: Evidence, analysis: Mapping[str, Any], forces: Sequence[Force]) -> tuple[Tale, ...] | None:
    """The ten slowest of all clients, failed ones first; None where an older version judged the run."""
    if "slowest" not in analysis:
        return None
    found = [_attempted(group, row) for group in analysis["slowest"] for row in group["records"]]
    sent = {one.name: one for one in found if one.op == "produce"}
    worth = dict.fromkeys(_blamed(one, sent.get(one.name)) for one in sorted(found, key=_slowness))
    worst = sorted([*worth][:SLOWEST_MAX], key=_slowness)
    return tuple(tale(evidence, forces, one, sent.get(one.name)) for one in worst)


def _blamed(one: Attempted, sent: Attempted | None) -> Attempted:
    """A delivery that waited for its record's sending for most of its time is told as that sending, once."""
    if one.op != "consume" or sent is None or one.latency_us is None or sent.latency_us is None:
        return one
    return sent if 2 * sent.latency_us >= one.latency_us else one


def tale(evidence: Evidence, forces: Sequence[Force], one: Attempted, sent: Attempted | None = None) -> Tale:
    """What is known of why this record took as long as it did; of a delivery, ``sent`` is how it was produced."""
    told = events_of(evidence, one.client, one.op)
    parts = delivery(one, sent) if one.op == "consume" else budget(one, told)
    ahead = behind(one, told)
    waited = f"batches of its partition were sent again {ahead} times while it waited" if ahead else None
    notes = (overlapped(one, forces), on_path(one, evidence, forces), waited)
    return Tale(one, parts, tuple(note for note in notes if note))


def events_of(evidence: Evidence, client: str, op: str) -> list[Mapping[str, Any]]:
    """What one side of a client told, in order of time."""
    told = (
        event
        for event in evidence.events
        if event.get("op") == op and f"{event.get('workload')}/{event.get('arm')}" == client
    )
    return sorted(told, key=lambda event: event["t_us"])


def overlapped(one: Attempted, forces: Sequence[Force]) -> str:
    """``kill-1 overlapped it``, or ``no fault did`` with the one that was over last."""
    end_us = one.done_us or _never(forces)
    met = [force.fault for force in forces if force.overlaps(one.intended_us, end_us)]
    if met:
        return f"{listed(met)} overlapped it"
    over = [(force.window_us[1], force.fault) for force in forces if force.window_us]
    before = [(ended_us, fault) for ended_us, fault in over if ended_us <= one.intended_us]
    if not before:
        return "no fault overlapped it"
    ended_us, fault = max(before)
    return f"no fault overlapped it; {fault} had been over for {(one.intended_us - ended_us) / 1e6:.1f} s"


def on_path(one: Attempted, evidence: Evidence, forces: Sequence[Force]) -> str | None:
    """The faults in force on the client's link to the record's broker; to any broker where that isn't known."""
    steps = {step["id"]: step for step in evidence.steps}
    end_us, rack = one.done_us or _never(forces), _rack(evidence.clients, one)
    said = []
    for force in forces:
        crossed = [link for link in force.targets.get("links", ()) if _is_its(link, rack, one.broker_id)]
        lasted_us = force.in_force_us(one.intended_us, end_us)
        if crossed and lasted_us:
            what = " ".join(filter(None, (force.kind, asked(steps.get(force.fault, {})))))
            said.append(f"{what} on {listed([*map(link_name, crossed)])} for {lasted_us / 1e6:.3g} s of it")
    return f"on its path: {'; '.join(said)}" if said else None


def _is_its(link: str, rack: str | None, broker_id: int | None) -> bool:
    plane, _, node = link.rpartition("-")
    return plane == f"client_{rack}" and (broker_id is None or node == f"k{broker_id}")


def _rack(clients: Sequence[Client], one: Attempted) -> str | None:
    """Where the client stood; a committer stands where its workload consumes."""
    stood = {client.key: client for client in clients}.get(one.client)
    return None if stood is None else stood.produce_rack if one.op == "produce" else stood.consume_rack


def _never(forces: Sequence[Force]) -> int:
    """A moment after everything, for a record that was never done."""
    return max((force.window_us[1] for force in forces if force.window_us), default=0) + 1


def _slowness(one: Attempted) -> tuple[bool, int]:
    return one.status == "ok", -(one.latency_us if one.latency_us is not None else 1 << 62)


def _attempted(group: Mapping[str, Any], row: Mapping[str, Any]) -> Attempted:
    told = {name: value for name, value in row.items() if name in _FIELDS}
    return Attempted(**{"op": group["op"], "client": group["client"]} | told)
