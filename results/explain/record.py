"""History of one record (scheduled, sent, refused, sent again, acknowledged, logged, delivered).

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
from aftershock.results.evidence.stored import trusted_in
from aftershock.results.explain.chapter import labels
from aftershock.results.explain.events import Moment, event, forces
from aftershock.results.explain.slow import Attempted, Tale, events_of, own, tale

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
    moments, story, names = list[Moment](), None, labels(evidence)
    if produced:
        values: dict[str, Any] = {field.name: produced.get(field.name) for field in fields(Attempted)}
        record = Attempted(**values | {"client": f"{produced['workload']}/{produced['arm']}"})
        moments += _sending(evidence, record, produced)
        story = tale(evidence, forces(evidence), record)
    for row in delivered:
        key = f"{row['workload']}/{row['arm']}"
        rack = f" in rack {row['client_rack']}" if row.get("client_rack") else ""
        read_from = "" if row.get("broker_id") is None else f", from broker {row['broker_id']}"
        member = f", member {row['member']}" if row.get("member") else ""
        text = f"delivered{rack} as {_place(row)}{read_from}{member}"
        moments.append(Moment(row["done_us"], text, names.get(key, key)))
    moments.sort(key=lambda moment: moment.at_us)
    return RecordHistory(name, tuple(moments), tuple(_notes(evidence, produced, logged, delivered)), story)


def _sending(evidence: Evidence, record: Attempted, row: Row) -> Iterator[Moment]:
    who = labels(evidence).get(record.client, record.client)
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
            who = labels(evidence)[client.key]
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
        producers.append(f"{producer_id} ({labels(evidence).get(client, client)}) {progress}")
    listing = ", ".join(producers) or "none"
    return f"There is no record {name}. Name a record as PRODUCER:SEQ; the run's producers are {listing}."
