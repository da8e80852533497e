"""History of one record, the parts of a record's latency, and the slowest records with the faults that overlapped them.

::

    intended   sent        refused      metadata      sent again          acknowledged
       |-lag----|--in the client or broker--|--metadata--|--back-off--|-----in flight-----|

The parts of a record's latency (from schedule lag to time in flight) add up to the latency. Clients report a retry when
they send the record again, and a refusal when they receive the leader hint. No client reports when the first attempt
leaves its batch, so waiting in the batch and everything else that a client doesn't report is called ``in the client or
broker``. The retries of a record are the last ``attempts - 1`` retries of the record's batch, or of its partition if
events name no batch.

The Parquet files are read by pyarrow with filters on producer and sequence number, so that only rows of one record are
read completely. If the run has no such record, the history lists the producers of the run and their last sequence
numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.phases import merged
from aftershock.results.evidence.stored import trusted_in
from aftershock.results.explain.events import Force, Moment, event, forces, link_name, listed, parameters_text
from aftershock.results.explain.leaders import Place, Reign, leaders_between, reigns
from aftershock.results.model.facts import SlowRecord

Event = Mapping[str, Any]

LAG, UNKNOWN, IN_FLIGHT = "schedule lag", "in the client or broker", "in flight"
METADATA, BACK_OFF, THROTTLED = "waiting for metadata", "back-off", "throttled"
NEVER_SENT = "never sent"
TO_ACK, TO_READER = "until acknowledged", "from acknowledgement to delivery"

RETRIES = {"batch_retried", "commit_retried"}
REFUSALS = {"hint_accepted", "hint_refused"}


@dataclass(frozen=True)
class Part:
    """Part of a record's latency, such as schedule lag or back-off."""

    name: str
    us: int


@dataclass(frozen=True, kw_only=True)
class Attempted(SlowRecord):
    """Attempted operation of a client (a record that was produced or consumed, or a commit)."""

    op: str
    client: str

    @property
    def latency_us(self) -> int | None:
        """Time from intended to completed in microseconds, None for an operation without a result."""
        return None if self.done_us is None else self.done_us - self.intended_us

    @property
    def name(self) -> str:
        """Name of the record, ``producer:seq``; for a commit the name of the partition."""
        known = self.producer_id is not None and self.seq is not None
        return f"{self.producer_id}:{self.seq}" if known else f"{self.topic}/{self.partition}"


def budget(record: Attempted, events: Sequence[Event]) -> tuple[Part, ...]:
    """Return the parts of a produce or commit latency; ``events`` are the client's events, in order."""
    if record.sent_us is None:
        return () if record.done_us is None else (Part(NEVER_SENT, record.done_us - record.intended_us),)
    lag = Part(LAG, record.sent_us - record.intended_us)
    if record.done_us is None:
        return (lag,)
    parts = [lag]
    # A refusal begins a wait: metadata ends its first part, a retry its last.
    cursor_us, name = record.sent_us, UNKNOWN
    for line in own(record, events):
        kind, at_us = line["event"], line["t_us"]
        if kind in RETRIES:
            parts.append(Part(UNKNOWN if name == IN_FLIGHT else name, at_us - cursor_us))
            cursor_us, name = at_us, IN_FLIGHT
        elif kind in REFUSALS and name != BACK_OFF:
            parts.append(Part(name, at_us - cursor_us))
            cursor_us, name = at_us, BACK_OFF
        elif kind == "metadata_refreshed" and name == BACK_OFF:
            parts.append(Part(METADATA, at_us - cursor_us))
            cursor_us = at_us
    parts.append(Part(name, record.done_us - cursor_us))

    # Parts of equal name are summed; the time for which the broker throttled the client is taken out of the unknown.
    sums: dict[str, int] = {}
    for part in parts:
        sums[part.name] = sums.get(part.name, 0) + part.us
    throttled = [
        (line["t_us"], line["t_us"] + int(1000 * line.get("throttle_ms", 0)))
        for line in events
        if line["event"] == "throttled" and line.get("node_id") == record.broker_id
    ]
    within = merged([(max(start, record.sent_us), min(end, record.done_us)) for start, end in throttled])
    throttled_us = min(sum(end - start for start, end in within), sums.get(UNKNOWN, 0))
    if throttled_us:
        sums[UNKNOWN] -= throttled_us
        sums[THROTTLED] = throttled_us
    return tuple(Part(name, us) for name, us in sums.items() if us or name == LAG)


def delivery(record: Attempted, sent: Attempted | None) -> tuple[Part, ...]:
    """Split a delivery's latency at the acknowledgement of the record; ``sent`` is the producer's row."""
    if record.latency_us is None:
        return ()
    if sent is None or sent.latency_us is None:
        return (Part(UNKNOWN, record.latency_us),)
    return (Part(TO_ACK, sent.latency_us), Part(TO_READER, record.latency_us - sent.latency_us))


def own(record: Attempted, events: Sequence[Event]) -> list[Event]:
    """Return the events that affected a record (retries, refusals of its partition, and metadata refreshes)."""
    if record.sent_us is None:
        return []
    meanwhile = _while_sent(record, events)
    on_partition = [event for event in meanwhile if _of_partition(event, record)]
    all_retries = [event for event in on_partition if event["event"] in RETRIES]
    # The record's batch is the batch whose first record is the last one not after the record.
    tokens: set[int] = {event["token"] for event in all_retries if "token" in event}
    first = max((token for token in tokens if record.seq is not None and token <= record.seq), default=None)
    retries = [event for event in all_retries if event.get("token") == first]
    if record.attempts is not None:
        retries = retries[len(retries) - min(len(retries), record.attempts - 1) :]
    if not retries:
        return []
    # A refusal before another batch's last retry is not a refusal of this record.
    earlier_us: list[int] = [event["t_us"] for event in all_retries if event["t_us"] < retries[0]["t_us"]]
    from_us = max([record.sent_us, *earlier_us])
    return [
        event
        for event in meanwhile
        if event in retries
        or (
            event["t_us"] >= from_us
            and (
                event["event"] == "metadata_refreshed" or (event["event"] in REFUSALS and _of_partition(event, record))
            )
        )
    ]


def behind(record: Attempted, events: Sequence[Event]) -> int:
    """Count retries of other batches on the record's partition while the record waited."""
    own_events = own(record, events)
    return sum(
        event["event"] in RETRIES and _of_partition(event, record) and event not in own_events
        for event in _while_sent(record, events)
    )


def _while_sent(record: Attempted, events: Sequence[Event]) -> list[Event]:
    until_us = float("inf") if record.done_us is None else record.done_us
    return [event for event in events if (record.sent_us or 0) <= event["t_us"] <= until_us]


def _of_partition(event: Event, record: Attempted) -> bool:
    return event.get("topic") == record.topic and event.get("partition") == record.partition


SLOWEST_MAX = 10
RESENT = "segments"
"""Unit of the witness of lost packets, which counts TCP's retransmissions."""


@dataclass(frozen=True)
class Tale:
    """Slow record: ``parts`` add up to the record's latency, ``notes`` name faults that overlapped the record."""

    record: Attempted
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


def slowest(evidence: Evidence, analysis: Mapping[str, Any], forces: Sequence[Force]) -> tuple[Tale, ...] | None:
    """Return the ten slowest records, failed ones first; None if an older version of Aftershock judged the run."""
    if "slowest" not in analysis:
        return None
    names = {field.name for field in fields(Attempted)}
    records = [
        Attempted(
            **{"op": group["op"], "client": group["client"]}
            | {name: value for name, value in row.items() if name in names}
        )
        for group in analysis["slowest"]
        for row in group["records"]
    ]

    def slowness(record: Attempted) -> tuple[bool, int]:
        return record.status == "ok", -(record.latency_us if record.latency_us is not None else 1 << 62)

    sent = {record.name: record for record in records if record.op == "produce"}
    distinct: dict[Attempted, None] = {}
    for record in sorted(records, key=slowness):
        produced = sent.get(record.name)
        # A delivery that waited mostly for its record to be produced is replaced by that produce row.
        if (
            record.op in ("consume", "pipe")
            and produced
            and record.latency_us is not None
            and produced.latency_us is not None
        ):
            distinct[produced if 2 * produced.latency_us >= record.latency_us else record] = None
        else:
            distinct[record] = None
    worst, leaders = sorted([*distinct][:SLOWEST_MAX], key=slowness), reigns(evidence)
    return tuple(tale(evidence, forces, leaders, record, sent.get(record.name)) for record in worst)


def tale(
    evidence: Evidence,
    forces: Sequence[Force],
    leaders: Mapping[Place, Sequence[Reign]],
    record: Attempted,
    sent: Attempted | None = None,
) -> Tale:
    """Explain the latency of a record; for a delivery, ``sent`` is the record as its producer saw it."""
    events = events_of(evidence, record.client, record.op)
    parts = delivery(record, sent) if record.op in ("consume", "pipe") else budget(record, events)
    ahead = behind(record, events)
    notes = [overlapped(record, forces), on_path(record, evidence, forces)]
    if ahead:
        notes.append(f"other batches of the record's partition were retried {ahead} times while the record waited")
    of_place = leaders.get((record.topic or "", -1 if record.partition is None else record.partition), ())
    end_us = _after_all(forces) if record.done_us is None else record.done_us
    if led := leaders_between(of_place, record.intended_us, end_us):
        notes.append(f"{record.topic}/{record.partition} while the record waited: {led}")
    return Tale(record, parts, tuple(note for note in notes if note))


def events_of(evidence: Evidence, client: str, op: str) -> list[Mapping[str, Any]]:
    events = (
        event
        for event in evidence.events
        if event.get("op") == op and f"{event.get('workload')}/{event.get('arm')}" == client
    )
    return sorted(events, key=lambda event: event["t_us"])


def overlapped(record: Attempted, forces: Sequence[Force]) -> str:
    """Name the faults that overlapped a record (``kill-1 overlapped the record``), else the last fault before."""
    end_us = record.done_us or _after_all(forces)
    overlapping = [force.fault for force in forces if force.overlaps(record.intended_us, end_us)]
    if overlapping:
        return f"{listed(overlapping)} overlapped the record"
    windows = [(force.window_us[1], force.fault) for force in forces if force.window_us]
    before = [(ended_us, fault) for ended_us, fault in windows if ended_us <= record.intended_us]
    if not before:
        return "no fault overlapped the record"
    ended_us, fault = max(before)
    return f"no fault overlapped the record; {fault} had ended {(record.intended_us - ended_us) / 1e6:.1f} s before"


def on_path(record: Attempted, evidence: Evidence, forces: Sequence[Force]) -> str | None:
    """Describe faults on links from the client to the record's broker, or to all brokers if the broker is unknown.

    A committing client counts as in the rack where the workload consumes.
    """
    steps = {step["id"]: step for step in evidence.steps}
    client = next((client for client in evidence.clients if client.key == record.client), None)
    rack = client and (client.produce_rack if record.op == "produce" else client.consume_rack)
    texts = []
    for force in forces:
        crossed = []
        for link in force.targets.get("links", ()):
            plane, _, node = link.rpartition("-")
            if plane == f"client_{rack}" and (record.broker_id is None or node == f"k{record.broker_id}"):
                crossed.append(link_name(link))
        lasted_us = force.in_force_us(record.intended_us, record.done_us or _after_all(forces))
        if crossed and lasted_us:
            what = " ".join(filter(None, (force.kind, parameters_text(steps.get(force.fault, {})))))
            witnesses = [line["witness"] for line in force.lines if line.get("witness")]
            again = next((each["observed"] for each in witnesses if each.get("unit") == RESENT), 0)
            text = f"{what} on {listed(crossed)} for {lasted_us / 1e6:.3g} s of the record's latency"
            texts.append(f"{text} (TCP sent {again:.0f} segments again during the fault)" if again else text)
    return f"on the record's path: {'; '.join(texts)}" if texts else None


def _after_all(forces: Sequence[Force]) -> int:
    """Return a time after all faults, which stands for the end of a record without a result."""
    return max((force.window_us[1] for force in forces if force.window_us), default=0) + 1


Row = Mapping[str, Any]


@dataclass(frozen=True)
class RecordHistory:
    """History of a record; if the run has no such record, ``missing`` is a sentence that lists the existing records."""

    name: str
    moments: tuple[Moment, ...] = ()
    notes: tuple[str, ...] = ()
    tale: Tale | None = None
    missing: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def record_history(home: Path, producer_id: int, seq: int) -> RecordHistory:
    """Return the history of record ``producer_id:seq`` in the run directory ``home``, which need not be judged."""
    evidence = read(home, {"outcomes": {}, "log": {}}, trusted_in(home))
    name = f"{producer_id}:{seq}"
    tables: list[list[Row]] = []
    for table in ("outcomes", "log"):
        parts = [str(part) for part in evidence.parquet[table]]
        is_record = (ds.field("producer_id") == producer_id) & (ds.field("seq") == seq)
        tables.append(ds.dataset(parts, format="parquet").to_table(filter=is_record).to_pylist() if parts else [])
    outcomes, logged = tables
    produced = next((row for row in outcomes if row["op"] == "produce"), None)
    if not outcomes and not logged:
        return RecordHistory(name, missing=_available_records(evidence, name))
    delivered = [row for row in outcomes if row["op"] == "consume"]
    written = {client.pipe.writes for client in evidence.clients if client.pipe}
    outputs = [row for row in outcomes if row["op"] == "pipe"]
    logged = [row for row in logged if row["topic"] not in written]
    moments, story, names = list[Moment](), None, evidence.labels
    if produced:
        values: dict[str, Any] = {field.name: produced.get(field.name) for field in fields(Attempted)}
        record = Attempted(**values | {"client": f"{produced['workload']}/{produced['arm']}"})
        moments += sending(evidence, record, produced)
        story = tale(evidence, forces(evidence), reigns(evidence), record)
    for row in delivered:
        key = f"{row['workload']}/{row['arm']}"
        rack = f" in rack {row['client_rack']}" if row.get("client_rack") else ""
        read_from = "" if row.get("broker_id") is None else f", from broker {row['broker_id']}"
        member = f", member {row['member']}" if row.get("member") else ""
        text = f"delivered{rack} as {_place(row)}{read_from}{member}"
        moments.append(Moment(row["done_us"], text, names.get(key, key)))
    for row in outputs:
        key = f"{row['workload']}/{row['arm']}"
        moments.append(Moment(row["done_us"], f"its output can be read as {_place(row)}", names.get(key, key)))
    moments.sort(key=lambda moment: moment.at_us)
    notes = *_notes(evidence, produced, logged, delivered), *_of_pipes(evidence, logged, outputs)
    return RecordHistory(name, tuple(moments), notes, story)


def _of_pipes(evidence: Evidence, logged: Sequence[Row], outputs: Sequence[Row]) -> Iterator[str]:
    for client in evidence.clients:
        if client.pipe and any(row["topic"] == client.pipe.reads for row in logged):
            times = sum((row["workload"], row["arm"]) == (client.workload, client.arm) for row in outputs)
            yield f"{evidence.labels[client.key]}: {times or 'no'} output{'' if times == 1 else 's'} of the service"


def sending(evidence: Evidence, record: Attempted, row: Row) -> Iterator[Moment]:
    """Yield the moments of a record that a client sent, from due to its result, with every retry that is known.

    ``row`` has the fields of ``record`` and, if known, the racks ``client_rack`` and ``broker_rack``.
    """
    who = evidence.labels.get(record.client, record.client)
    yield Moment(record.intended_us, "due by the schedule", who)
    if record.sent_us is not None:
        rack = f" from rack {row['client_rack']}" if row.get("client_rack") else ""
        yield Moment(record.sent_us, f"handed to the client{rack}", who)
    for line in own(record, events_of(evidence, record.client, record.op)):
        yield Moment(line["t_us"], event(line), who)
    if record.done_us is not None:
        attempts = f", after {record.attempts} attempts" if (record.attempts or 0) > 1 else ""
        if record.status == "ok":
            rack = f" in rack {row['broker_rack']}" if row.get("broker_rack") else ""
            by = "" if record.broker_id is None else f" by broker {record.broker_id}{rack}"
            epoch = "" if record.leader_epoch is None else f" at epoch {record.leader_epoch}"
            result = f"acknowledged{by} as {_place(row)}{epoch}"
        else:
            result = f"{record.status}: {record.error or 'the client gave no error name'}"
        yield Moment(record.done_us, f"{result}{attempts}", who)


def _notes(evidence: Evidence, produced: Row | None, logged: Sequence[Row], delivered: Sequence[Row]) -> Iterator[str]:
    if produced is None:
        yield "no client reports that it sent this record: the record is a phantom"
    elif produced["done_us"] is None:
        yield "the client never got a result, so the record is in doubt: the log shows whether the record was written"
    if not evidence.parquet["log"]:
        yield "the logs of the partitions were not read at the end of the run"
    else:
        places = ", ".join(map(_place, logged))
        found = f"the record is in the log at the end of the run: {places}"
        yield found if logged else "the record is not in the log at the end of the run"
    topic = next((row["topic"] for row in (produced, *logged, *delivered) if row and row["topic"]), None)
    for client in evidence.clients:
        times = sum((row["workload"], row["arm"]) == (client.workload, client.arm) for row in delivered)
        if topic in client.consumes_from and times != 1:
            who = evidence.labels[client.key]
            yield f"{who}: never delivered" if not times else f"{who}: delivered {times} times"


def _place(row: Row) -> str:
    offset = "an unknown offset" if row.get("offset") is None else f"offset {row['offset']}"
    return f"{row['topic']}/{row['partition']} {offset}"


def _available_records(evidence: Evidence, name: str) -> str:
    parts = [str(part) for part in evidence.parquet["outcomes"]]
    if not parts:
        return f"There is no record {name}: the run recorded no outcomes of records."
    rows = ds.dataset(parts, format="parquet")
    producers = []
    for producer_id, client in sorted(evidence.producers.items()):
        sent = (ds.field("producer_id") == producer_id) & (ds.field("op") == "produce")
        batches = (batch for batch in rows.to_batches(columns=["seq"], filter=sent) if batch.num_rows)
        last = max((pc.max(batch["seq"]).as_py() for batch in batches), default=None)
        progress = "sent nothing" if last is None else f"sent 0 to {last}"
        producers.append(f"{producer_id} ({evidence.labels.get(client, client)}) {progress}")
    listing = ", ".join(producers) or "none"
    return f"There is no record {name}. Name a record as PRODUCER:SEQ; the run's producers are {listing}."
