"""Where a record's latency went, as far as its client tells. Pure.

::

    intended   sent        refused      metadata      sent again          acknowledged
       |-lag----|--in the client or broker--|--metadata--|--back-off--|-----in flight-----|

Rules. The parts add up to the latency. A retry is told when it is sent, a refusal by its hint; a first attempt waits
in its batch before it is in flight, and nobody tells when it leaves: that part is called ``in the client or broker``,
as is all that a client tells nothing of, such as an attempt whose refusal is not told. Retries of other batches of its
partition are not the record's own: of those of its batch, or where no batch is named of all seen, the last
``attempts - 1`` are.

The slowest records, each with its latency budget and the fault that overlapped it, or that no fault did.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import merged
from aftershock.results.explain.events import Force, asked, link_name, listed
from aftershock.results.measure.facts import Slow

Event = Mapping[str, Any]

LAG, UNKNOWN, IN_FLIGHT = "schedule lag", "in the client or broker", "in flight"
METADATA, BACK_OFF, THROTTLED = "waiting for metadata", "back-off", "throttled"
NEVER_SENT = "never sent"
TO_ACK, TO_READER = "until acknowledged", "from there to the reader"

RETRIES = {"batch_retried", "commit_retried"}
REFUSALS = {"hint_accepted", "hint_refused"}


@dataclass(frozen=True)
class Part:
    """One part of a latency, in the order of time."""

    name: str
    us: int


@dataclass(frozen=True, kw_only=True)
class Attempted(Slow):
    """A record, or a commit, from the moment it was wanted, slow or not, with whose it was."""

    op: str
    client: str

    @property
    def latency_us(self) -> int | None:
        """From wanted to done; None if it was never done."""
        return None if self.done_us is None else self.done_us - self.intended_us

    @property
    def name(self) -> str:
        """``producer:seq``; of a commit its place."""
        known = self.producer_id is not None and self.seq is not None
        return f"{self.producer_id}:{self.seq}" if known else f"{self.topic}/{self.partition}"


def budget(one: Attempted, events: Sequence[Event]) -> tuple[Part, ...]:
    """The parts of a sending; ``events`` are those of its client and side, in order of time, of any partition."""
    if one.sent_us is None:
        return () if one.done_us is None else (Part(NEVER_SENT, one.done_us - one.intended_us),)
    lag = Part(LAG, one.sent_us - one.intended_us)
    if one.done_us is None:
        return (lag,)
    told = own(one, events)
    return tuple(_merged([lag, *_legs(one.sent_us, one.done_us, told)], _waits(one, events)))


def delivery(one: Attempted, sent: Attempted | None) -> tuple[Part, ...]:
    """Of a delivery, whose latency begins when the record was wanted: ``sent`` is how it was produced, if known."""
    if one.latency_us is None:
        return ()
    if sent is None or sent.latency_us is None:
        return (Part(UNKNOWN, one.latency_us),)
    return (Part(TO_ACK, sent.latency_us), Part(TO_READER, one.latency_us - sent.latency_us))


def own(one: Attempted, events: Sequence[Event]) -> list[Event]:
    """The events that are the record's own: its retries, refusals of its partition, metadata meanwhile."""
    if one.sent_us is None:
        return []
    until_us = float("inf") if one.done_us is None else one.done_us
    meanwhile = [event for event in events if one.sent_us <= event["t_us"] <= until_us]
    here = [event for event in meanwhile if _of_place(event, one)]
    retries = _of_batch(one, [event for event in here if event["event"] in RETRIES])
    if one.attempts is not None:
        retries = retries[len(retries) - min(len(retries), one.attempts - 1) :]
    if not retries:
        return []
    from_us = _previous_us(here, retries[0], one.sent_us)
    return [event for event in meanwhile if event in retries or (event["t_us"] >= from_us and _refusing(event, one))]


def _of_batch(one: Attempted, retries: Sequence[Event]) -> list[Event]:
    """Those of the batch that may hold the record: of those known by their first record, the last not later."""
    tokens: set[int] = {event["token"] for event in retries if "token" in event}
    first = max((token for token in tokens if one.seq is not None and token <= one.seq), default=None)
    return [event for event in retries if event.get("token") == first]


def _previous_us(here: Sequence[Event], first: Event, sent_us: int) -> int:
    """When the batch before its own was last sent again: what was refused until then was not this record."""
    before: list[int] = [event["t_us"] for event in here if event["event"] in RETRIES and event["t_us"] < first["t_us"]]
    return max([sent_us, *before])


def behind(one: Attempted, events: Sequence[Event]) -> int:
    """How often other batches of its partition were sent again while it waited."""
    until_us = float("inf") if one.done_us is None else one.done_us
    waited = [event for event in events if (one.sent_us or 0) <= event["t_us"] <= until_us and _of_place(event, one)]
    mine = own(one, events)
    return sum(event["event"] in RETRIES and event not in mine for event in waited)


def _refusing(event: Event, one: Attempted) -> bool:
    if event["event"] in REFUSALS:
        return _of_place(event, one)
    return bool(event["event"] == "metadata_refreshed")


def _of_place(event: Event, one: Attempted) -> bool:
    return event.get("topic") == one.topic and event.get("partition") == one.partition


def _legs(sent_us: int, done_us: int, events: Sequence[Event]) -> Iterator[Part]:
    """From event to event. A refusal begins a wait, of which metadata ends the first part and a retry the last."""
    cursor_us, name = sent_us, UNKNOWN
    for event in events:
        kind, at_us = event["event"], event["t_us"]
        if kind in RETRIES:
            yield Part(UNKNOWN if name == IN_FLIGHT else name, at_us - cursor_us)
            cursor_us, name = at_us, IN_FLIGHT
        elif kind in REFUSALS and name != BACK_OFF:
            yield Part(name, at_us - cursor_us)
            cursor_us, name = at_us, BACK_OFF
        elif kind == "metadata_refreshed" and name == BACK_OFF:
            yield Part(METADATA, at_us - cursor_us)
            cursor_us = at_us
    yield Part(name, done_us - cursor_us)


def _waits(one: Attempted, events: Sequence[Event]) -> int:
    """How long its broker had asked the client to wait, while the record did."""
    spans = [
        (event["t_us"], event["t_us"] + int(1000 * event.get("throttle_ms", 0)))
        for event in events
        if event["event"] == "throttled" and event.get("node_id") == one.broker_id
    ]
    inside = [(max(start, one.sent_us or 0), min(end, one.done_us or 0)) for start, end in spans]
    return sum(end - start for start, end in merged(inside))


def _merged(parts: Sequence[Part], throttled_us: int) -> list[Part]:
    """Like parts as one, in the order of their first; what was throttled is taken out of what is not known."""
    sums: dict[str, int] = {}
    for part in parts:
        sums[part.name] = sums.get(part.name, 0) + part.us
    taken_us = min(throttled_us, sums.get(UNKNOWN, 0))
    if taken_us:
        sums[UNKNOWN] -= taken_us
        sums[THROTTLED] = taken_us
    return [Part(name, us) for name, us in sums.items() if us or name == LAG]


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
