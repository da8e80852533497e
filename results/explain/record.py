"""One record followed through every attempt: wanted, sent, refused, sent again, acknowledged, logged, delivered.

Rules: read by pyarrow, with filters on producer and sequence, so that of the evidence only this record's rows are read
whole; a record that isn't there is answered with those that are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.explain.chapter import labels
from aftershock.results.explain.events import Moment, event, forces
from aftershock.results.explain.slow import Attempted, Tale, events_of, own, tale

Row = Mapping[str, Any]

_FIELDS = {one.name for one in fields(Attempted)}
_TABLES: Mapping[str, Mapping[str, str]] = {"outcomes": {}, "log": {}}


@dataclass(frozen=True)
class Followed:
    """A record's moments in order. ``missing`` says what there is instead of a record that isn't there."""

    name: str
    moments: tuple[Moment, ...] = ()
    notes: tuple[str, ...] = ()
    tale: Tale | None = None
    missing: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return asdict(self)


def followed(home: Path, producer_id: int, seq: int) -> Followed:
    """The record ``producer_id:seq`` of the run in ``home``; the run needn't have been judged."""
    evidence = read(home, _TABLES)
    name = f"{producer_id}:{seq}"
    mine = (ds.field("producer_id") == producer_id) & (ds.field("seq") == seq)
    outcomes, logged = (_rows(evidence, table, mine) for table in ("outcomes", "log"))
    produced = next((row for row in outcomes if row["op"] == "produce"), None)
    if produced is None and not outcomes and not logged:
        return Followed(name, missing=_instead(evidence, name))
    one = _attempted(produced) if produced else None
    delivered = [row for row in outcomes if row["op"] == "consume"]
    moments = [*_sending(evidence, one, produced), *_deliveries(evidence, delivered)]
    notes = tuple(_notes(evidence, produced, logged, delivered))
    found = tale(evidence, forces(evidence), one) if one else None
    return Followed(name, tuple(sorted(moments, key=lambda moment: moment.at_us)), notes, found)


def _rows(evidence: Evidence, table: str, which: ds.Expression) -> list[Row]:
    parts = [str(part) for part in evidence.parquet[table]]
    rows: list[Row] = ds.dataset(parts, format="parquet").to_table(filter=which).to_pylist() if parts else []
    return rows


def _attempted(row: Row) -> Attempted:
    told: dict[str, Any] = {name: row.get(name) for name in _FIELDS}
    return Attempted(**told | {"client": f"{row['workload']}/{row['arm']}"})


def _sending(evidence: Evidence, one: Attempted | None, row: Row | None) -> Iterator[Moment]:
    if one is None or row is None:
        return
    who = labels(evidence).get(one.client, one.client)
    yield Moment(one.intended_us, "wanted by the schedule", who)
    if one.sent_us is not None:
        rack = f" from rack {row['client_rack']}" if row.get("client_rack") else ""
        yield Moment(one.sent_us, f"handed to the client{rack}", who)
    for told in own(one, events_of(evidence, one.client, one.op)):
        yield Moment(told["t_us"], event(told), who)
    if one.done_us is not None:
        yield Moment(one.done_us, _ended(one, row), who)


def _ended(one: Attempted, row: Row) -> str:
    attempts = f", after {one.attempts} attempts" if (one.attempts or 0) > 1 else ""
    if one.status != "ok":
        return f"{one.status}: {one.error or 'no error named'}{attempts}"
    rack = f" in rack {row['broker_rack']}" if row.get("broker_rack") else ""
    by = "" if one.broker_id is None else f" by broker {one.broker_id}{rack}"
    epoch = "" if one.leader_epoch is None else f" at epoch {one.leader_epoch}"
    return f"acknowledged{by} as {_place(row)}{epoch}{attempts}"


def _deliveries(evidence: Evidence, rows: Sequence[Row]) -> Iterator[Moment]:
    named = labels(evidence)
    for row in rows:
        key = f"{row['workload']}/{row['arm']}"
        rack = f" in rack {row['client_rack']}" if row.get("client_rack") else ""
        read_from = "" if row.get("broker_id") is None else f", from broker {row['broker_id']}"
        member = f", member {row['member']}" if row.get("member") else ""
        yield Moment(row["done_us"], f"delivered{rack} as {_place(row)}{read_from}{member}", named.get(key, key))


def _notes(evidence: Evidence, produced: Row | None, logged: Sequence[Row], delivered: Sequence[Row]) -> Iterator[str]:
    if produced is None:
        yield "no client says that it sent this record: a phantom"
    elif produced["done_us"] is None:
        yield "its sending never ended: in doubt, and the log decides"
    if not evidence.parquet["log"]:
        yield "the log was not read at the end of the run"
    else:
        places = ", ".join(map(_place, logged))
        yield f"in the log at the end of the run: {places}" if logged else "not in the log at the end of the run"
    topic = next((row["topic"] for row in (produced, *logged, *delivered) if row and row["topic"]), None)
    for client in evidence.clients:
        times = sum((row["workload"], row["arm"]) == (client.workload, client.arm) for row in delivered)
        if client.consumes_from == topic and times != 1:
            who = labels(evidence)[client.key]
            yield f"{who}: never delivered" if not times else f"{who}: delivered {times} times"


def _place(row: Row) -> str:
    offset = "an unknown offset" if row.get("offset") is None else f"offset {row['offset']}"
    return f"{row['topic']}/{row['partition']} {offset}"


def _instead(evidence: Evidence, name: str) -> str:
    """Which producers there are, and how far each got."""
    parts = [str(part) for part in evidence.parquet["outcomes"]]
    if not parts:
        return f"There is no record {name}: the run recorded none."
    rows = ds.dataset(parts, format="parquet")
    said = []
    for producer_id, client in sorted(evidence.producers.items()):
        sent = (ds.field("producer_id") == producer_id) & (ds.field("op") == "produce")
        last = max((pc.max(batch["seq"]).as_py() for batch in _batches(rows, sent)), default=None)
        what = "sent nothing" if last is None else f"sent 0 to {last}"
        said.append(f"{producer_id} ({labels(evidence).get(client, client)}) {what}")
    return f"There is no record {name}. Records are PRODUCER:SEQ; the producers are {', '.join(said) or 'none'}."


def _batches(rows: ds.Dataset, which: ds.Expression) -> Iterator[Any]:
    return (batch for batch in rows.to_batches(columns=["seq"], filter=which) if batch.num_rows)
