"""Latency budget of a record, and the slowest records with the faults that overlapped them. Pure.

::

    intended   sent        refused      metadata      sent again          acknowledged
       |-lag----|--in the client or broker--|--metadata--|--back-off--|-----in flight-----|

Rules. The parts add up to the latency. Clients report a retry when they send it, a refusal by its leader hint. A first
attempt waits in its batch before it is in flight, and no client reports when it leaves: that part is called ``in the
client or broker``, as is everything that a client doesn't report, such as an attempt without a reported refusal.
Retries of other batches of the partition are not the record's own: its own are the last ``attempts - 1`` retries of its
batch, or of all observed retries if the events name no batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import merged
from aftershock.results.explain.events import Force, link_name, listed, parameters_text
from aftershock.results.measure.facts import SlowRecord

Event = Mapping[str, Any]

LAG, UNKNOWN, IN_FLIGHT = "schedule lag", "in the client or broker", "in flight"
METADATA, BACK_OFF, THROTTLED = "waiting for metadata", "back-off", "throttled"
NEVER_SENT = "never sent"
TO_ACK, TO_READER = "until acknowledged", "from there to the reader"

RETRIES = {"batch_retried", "commit_retried"}
REFUSALS = {"hint_accepted", "hint_refused"}


@dataclass(frozen=True)
class Part:
    """Part of a latency; parts are in order of time."""

    name: str
    us: int


@dataclass(frozen=True, kw_only=True)
class Attempted(SlowRecord):
    """Record or commit from its intended time, with its operation and client."""

    op: str
    client: str

    @property
    def latency_us(self) -> int | None:
        """Time from intended to done, None if it was never done."""
        return None if self.done_us is None else self.done_us - self.intended_us

    @property
    def name(self) -> str:
        """``producer:seq``; for a commit its partition."""
        known = self.producer_id is not None and self.seq is not None
        return f"{self.producer_id}:{self.seq}" if known else f"{self.topic}/{self.partition}"


def budget(record: Attempted, events: Sequence[Event]) -> tuple[Part, ...]:
    """Return the parts of a produce or commit; ``events``: those of its client and side, in order, of any partition."""
    if record.sent_us is None:
        return () if record.done_us is None else (Part(NEVER_SENT, record.done_us - record.intended_us),)
    lag = Part(LAG, record.sent_us - record.intended_us)
    if record.done_us is None:
        return (lag,)
    legs = _legs(record.sent_us, record.done_us, own(record, events))
    return tuple(_merged([lag, *legs], _waits(record, events)))


def delivery(record: Attempted, sent: Attempted | None) -> tuple[Part, ...]:
    """Return the parts of a delivery, from the record's intended time; ``sent``: its produce row, if known."""
    if record.latency_us is None:
        return ()
    if sent is None or sent.latency_us is None:
        return (Part(UNKNOWN, record.latency_us),)
    return (Part(TO_ACK, sent.latency_us), Part(TO_READER, record.latency_us - sent.latency_us))


def own(record: Attempted, events: Sequence[Event]) -> list[Event]:
    """Return the record's own events: its retries, refusals of its partition, and metadata refreshes."""
    if record.sent_us is None:
        return []
    until_us = float("inf") if record.done_us is None else record.done_us
    meanwhile = [event for event in events if record.sent_us <= event["t_us"] <= until_us]
    on_partition = [event for event in meanwhile if _of_place(event, record)]
    retries = _of_batch(record, [event for event in on_partition if event["event"] in RETRIES])
    if record.attempts is not None:
        retries = retries[len(retries) - min(len(retries), record.attempts - 1) :]
    if not retries:
        return []
    from_us = _previous_us(on_partition, retries[0], record.sent_us)
    return [event for event in meanwhile if event in retries or (event["t_us"] >= from_us and _refusing(event, record))]


def _of_batch(record: Attempted, retries: Sequence[Event]) -> list[Event]:
    """Return the retries of the record's batch: the batch whose first record is the last one not after it."""
    tokens: set[int] = {event["token"] for event in retries if "token" in event}
    first = max((token for token in tokens if record.seq is not None and token <= record.seq), default=None)
    return [event for event in retries if event.get("token") == first]


def _previous_us(on_partition: Sequence[Event], first: Event, sent_us: int) -> int:
    """Return when another batch was last retried before its own: earlier refusals are not this record's."""
    before: list[int] = [
        event["t_us"] for event in on_partition if event["event"] in RETRIES and event["t_us"] < first["t_us"]
    ]
    return max([sent_us, *before])


def behind(record: Attempted, events: Sequence[Event]) -> int:
    """Return how often other batches of its partition were retried while it waited."""
    until_us = float("inf") if record.done_us is None else record.done_us
    waited = [
        event for event in events if (record.sent_us or 0) <= event["t_us"] <= until_us and _of_place(event, record)
    ]
    own_events = own(record, events)
    return sum(event["event"] in RETRIES and event not in own_events for event in waited)


def _refusing(event: Event, record: Attempted) -> bool:
    if event["event"] in REFUSALS:
        return _of_place(event, record)
    return bool(event["event"] == "metadata_refreshed")


def _of_place(event: Event, record: Attempted) -> bool:
    return event.get("topic") == record.topic and event.get("partition") == record.partition


def _legs(sent_us: int, done_us: int, events: Sequence[Event]) -> Iterator[Part]:
    """Yield the parts between events. A refusal begins a wait: metadata ends its first part, a retry its last."""
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


def _waits(record: Attempted, events: Sequence[Event]) -> int:
    """Return how long the broker throttled the client while the record waited."""
    spans = [
        (event["t_us"], event["t_us"] + int(1000 * event.get("throttle_ms", 0)))
        for event in events
        if event["event"] == "throttled" and event.get("node_id") == record.broker_id
    ]
    inside = [(max(start, record.sent_us or 0), min(end, record.done_us or 0)) for start, end in spans]
    return sum(end - start for start, end in merged(inside))


def _merged(parts: Sequence[Part], throttled_us: int) -> list[Part]:
    """Sum parts of equal name, in order of first appearance; throttled time is taken out of the unknown part."""
    sums: dict[str, int] = {}
    for part in parts:
        sums[part.name] = sums.get(part.name, 0) + part.us
    taken_us = min(throttled_us, sums.get(UNKNOWN, 0))
    if taken_us:
        sums[UNKNOWN] -= taken_us
        sums[THROTTLED] = taken_us
    return [Part(name, us) for name, us in sums.items() if us or name == LAG]


SLOWEST_MAX = 10
_FIELDS = {field.name for field in fields(Attempted)}


@dataclass(frozen=True)
class Tale:
    """Slow record: ``parts`` add up to its latency, ``notes`` name the faults that overlapped it or its link."""

    record: Attempted
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


def slowest(evidence: Evidence, analysis: Mapping[str, Any], forces: Sequence[Force]) -> tuple[Tale, ...] | None:
    """Return the ten slowest of all clients, failed ones first; None if an older version judged the run."""
    if "slowest" not in analysis:
        return None
    records = [_attempted(group, row) for group in analysis["slowest"] for row in group["records"]]
    sent = {record.name: record for record in records if record.op == "produce"}
    distinct = dict.fromkeys(_blamed(record, sent.get(record.name)) for record in sorted(records, key=_slowness))
    worst = sorted([*distinct][:SLOWEST_MAX], key=_slowness)
    return tuple(tale(evidence, forces, record, sent.get(record.name)) for record in worst)


def _blamed(record: Attempted, sent: Attempted | None) -> Attempted:
    """Replace a delivery that waited mostly for its record to be produced by that produce row."""
    if record.op != "consume" or sent is None or record.latency_us is None or sent.latency_us is None:
        return record
    return sent if 2 * sent.latency_us >= record.latency_us else record


def tale(evidence: Evidence, forces: Sequence[Force], record: Attempted, sent: Attempted | None = None) -> Tale:
    """Explain the latency of a record; for a delivery, ``sent`` is its produce row."""
    events = events_of(evidence, record.client, record.op)
    parts = delivery(record, sent) if record.op == "consume" else budget(record, events)
    ahead = behind(record, events)
    waited = f"other batches of its partition were retried {ahead} times while it waited" if ahead else None
    notes = (overlapped(record, forces), on_path(record, evidence, forces), waited)
    return Tale(record, parts, tuple(note for note in notes if note))


def events_of(evidence: Evidence, client: str, op: str) -> list[Mapping[str, Any]]:
    """Return the events of one side of a client, in order of time."""
    events = (
        event
        for event in evidence.events
        if event.get("op") == op and f"{event.get('workload')}/{event.get('arm')}" == client
    )
    return sorted(events, key=lambda event: event["t_us"])


def overlapped(record: Attempted, forces: Sequence[Force]) -> str:
    """Return ``kill-1 overlapped it``, or ``no fault overlapped it`` with the fault that ended last."""
    end_us = record.done_us or _never(forces)
    overlapping = [force.fault for force in forces if force.overlaps(record.intended_us, end_us)]
    if overlapping:
        return f"{listed(overlapping)} overlapped it"
    over = [(force.window_us[1], force.fault) for force in forces if force.window_us]
    before = [(ended_us, fault) for ended_us, fault in over if ended_us <= record.intended_us]
    if not before:
        return "no fault overlapped it"
    ended_us, fault = max(before)
    return f"no fault overlapped it; {fault} had ended {(record.intended_us - ended_us) / 1e6:.1f} s before"


def on_path(record: Attempted, evidence: Evidence, forces: Sequence[Force]) -> str | None:
    """Return the faults in force on the client's link to the record's broker, or to any broker if it is unknown."""
    steps = {step["id"]: step for step in evidence.steps}
    end_us, rack = record.done_us or _never(forces), _rack(evidence.clients, record)
    texts = []
    for force in forces:
        crossed = [link for link in force.targets.get("links", ()) if _is_its(link, rack, record.broker_id)]
        lasted_us = force.in_force_us(record.intended_us, end_us)
        if crossed and lasted_us:
            what = " ".join(filter(None, (force.kind, parameters_text(steps.get(force.fault, {})))))
            texts.append(f"{what} on {listed([*map(link_name, crossed)])} for {lasted_us / 1e6:.3g} s of its latency")
    return f"on its path: {'; '.join(texts)}" if texts else None


def _is_its(link: str, rack: str | None, broker_id: int | None) -> bool:
    plane, _, node = link.rpartition("-")
    return plane == f"client_{rack}" and (broker_id is None or node == f"k{broker_id}")


def _rack(clients: Sequence[Client], record: Attempted) -> str | None:
    """Return the client's rack; a committer is in the rack where its workload consumes."""
    stood = {client.key: client for client in clients}.get(record.client)
    return None if stood is None else stood.produce_rack if record.op == "produce" else stood.consume_rack


def _never(forces: Sequence[Force]) -> int:
    """Return a time after all faults, the end of a record that was never done."""
    return max((force.window_us[1] for force in forces if force.window_us), default=0) + 1


def _slowness(record: Attempted) -> tuple[bool, int]:
    return record.status == "ok", -(record.latency_us if record.latency_us is not None else 1 << 62)


def _attempted(group: Mapping[str, Any], row: Mapping[str, Any]) -> Attempted:
    values = {name: value for name, value in row.items() if name in _FIELDS}
    return Attempted(**{"op": group["op"], "client": group["client"]} | values)
