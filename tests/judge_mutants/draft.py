"""A run's evidence in memory, as a planter edits it: tables as data frames, documents as objects.

``Stored`` holds the evidence of one real run and never changes. ``Stored.draft()`` returns a ``Draft``, which copies a
table or document when it is first changed, and ``Draft.write`` makes a run directory of it with a manifest that agrees.
A table is written as one file, so a batch of a hundred mutants has hundreds of files for Spark and not thousands.

``thinned`` keeps one record in ``keep`` of a long run and renumbers offsets and sequence numbers without gaps. The rate
in the timeline falls by the same factor; faults, epochs, assignments, commits and times stay as they were recorded.
"""

import io
import json
import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.results.evidence import manifest
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.schema import TABLES
from aftershock.results.spark.tables import columns

Row = dict[str, Any]
Renumber = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
"""A monotone map of the offsets of one partition."""

LINES = ("journal.jsonl", "events.jsonl", "leaders.jsonl")
OBJECTS = ("run.json", "timeline.json", "phases.json")
_JUDGED_METRICS = ("host.", "client.sent_bytes/")
"""Metrics on which verdicts depend; the rest are most rows of some runs, and only plots show them."""
_ARROW = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_()}
_PANDAS = {"string": "object", "int": "Int64", "bigint": "Int64", "double": "float64", "boolean": "boolean"}


@dataclass
class Draft:
    """Evidence of one run that can be changed. ``tables`` and ``documents`` are read; ``table`` and ``document`` give
    a copy that may be changed. ``spoilt`` holds changes that are made to the files after the manifest was written.
    """

    tables: dict[str, pd.DataFrame]
    documents: dict[str, Any]
    files: Mapping[str, bytes]
    parts: dict[str, int] = field(default_factory=dict)
    spoilt: list[Callable[[Path], None]] = field(default_factory=list)
    _own: set[str] = field(default_factory=set)

    def table(self, name: str) -> pd.DataFrame:
        if name not in self._own:
            self._own.add(name)
            self.tables[name] = self.tables[name].copy()
        return self.tables[name]

    def replace(self, name: str, rows: pd.DataFrame) -> None:
        self._own.add(name)
        self.tables[name] = rows

    def append(self, name: str, rows: list[Row]) -> None:
        """Add rows to a table; columns that a row does not have are null."""
        if rows:
            old = self.tables[name]
            new = pd.DataFrame(rows, columns=old.columns).astype(old.dtypes.to_dict())
            self.replace(name, pd.concat([old, new], ignore_index=True))

    def drop(self, name: str, where: "pd.Series[bool] | npt.NDArray[np.bool_]") -> None:
        gone = where.to_numpy(bool, na_value=False) if isinstance(where, pd.Series) else where
        self.replace(name, self.tables[name][~gone].reset_index(drop=True))

    def document(self, name: str) -> Any:
        if name not in self._own:
            self._own.add(name)
            self.documents[name] = pickle.loads(pickle.dumps(self.documents[name]))  # noqa: S301 - a fast deep copy
        return self.documents[name]

    def write(self, home: Path, run_id: str) -> Path:
        """Write the run directory ``home``, with ``run_id`` in ``run.json`` and a manifest of what was written."""
        home.mkdir(parents=True)
        self.document("run.json")["run_id"] = run_id
        (home / "plan.yaml").write_bytes(self.files["plan.yaml"])
        for name, document in self.documents.items():
            (home / name).write_bytes(_document(name, document) if name in self._own else self.files[name])
        for name, rows in self.tables.items():
            (home / name).mkdir()
            if name not in self._own and name not in self.parts:
                (home / name / "part-0.parquet").write_bytes(self.files[name])
                continue
            parts = min(self.parts.get(name, 1), max(1, len(rows)))
            for number, part in enumerate(np.array_split(np.arange(len(rows)), parts)):
                (home / name / f"part-{number}.parquet").write_bytes(_parquet(name, rows.iloc[part]))
        (home / manifest.NAME).write_text(json.dumps(manifest.manifest_of(home)))
        for spoil in self.spoilt:
            spoil(home)
        return home


@dataclass(frozen=True)
class Stored:
    """A real run of the corpus. ``bad`` names arms whose clients have a known defect: nothing is planted in them."""

    name: str
    home: Path
    bad: tuple[str, ...]
    tables: Mapping[str, pd.DataFrame]
    documents: Mapping[str, Any]
    plan: bytes

    @cached_property
    def evidence(self) -> Evidence:
        """The documents as the judge reads them, for the settings of clients."""
        return read(self.home, columns(), None)

    def draft(self) -> Draft:
        return Draft(dict(self.tables), dict(self.documents), self.files)

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """The bytes of documents, and of tables as one file each, which most drafts leave as they are."""
        documents = {name: _document(name, document) for name, document in self.documents.items()}
        tables = {name: _parquet(name, rows) for name, rows in self.tables.items()}
        return {"plan.yaml": self.plan, **documents, **tables}


def stored(name: str, home: Path, bad: tuple[str, ...] = (), keep: int = 1) -> Stored:
    """Read the run in ``home``, and thin it if ``keep`` is more than 1."""
    documents: dict[str, Any] = {name: json.loads((home / name).read_bytes()) for name in OBJECTS}
    documents |= {
        name: [json.loads(line) for line in (home / name).read_bytes().splitlines()]
        for name in LINES
        if (home / name).exists()
    }
    tables = {}
    for table in TABLES:
        files = sorted((home / table).glob("[!._]*.parquet"))
        if files:
            tables[table] = _frame(table, [pq.read_table(file) for file in files])
    if "metrics" in tables:
        judged = tables["metrics"]["name"].str.startswith(_JUDGED_METRICS).to_numpy(bool, na_value=False)
        tables["metrics"] = tables["metrics"][judged].reset_index(drop=True)
    draft = Draft(tables, documents, {})
    if keep > 1:
        thin(draft, keep)
    return Stored(name, home, bad, draft.tables, draft.documents, (home / "plan.yaml").read_bytes())


def thin(draft: Draft, keep: int) -> None:
    """Keep the records whose sequence number is a multiple of ``keep``, as if the rate had been lower."""
    short = _missing_in_replicas(draft)
    for name in ("outcomes", "log"):
        rows = draft.tables[name]
        commits = rows["op"] == "commit" if name == "outcomes" else np.zeros(len(rows), bool)
        kept = rows["seq"].isna() | (rows["seq"] % keep == 0) | commits
        draft.replace(name, rows[kept.to_numpy(bool, na_value=False)].reset_index(drop=True))
        thinned = draft.tables[name]
        mine = (thinned["op"] != "commit") if name == "outcomes" else np.ones(len(thinned), bool)
        thinned.loc[mine, "seq"] = thinned.loc[mine, "seq"] // keep
    for topic, partition in {*zip(draft.tables["log"]["topic"], draft.tables["log"]["partition"], strict=True)}:
        rows = draft.tables["log"]
        offsets = np.sort(
            rows.loc[(rows["topic"] == topic) & (rows["partition"] == partition), "offset"].to_numpy("int64")
        )
        renumber(draft, topic, int(partition), partial(np.searchsorted, offsets))
    for workload in draft.document("timeline.json")["workloads"]:
        if workload.get("produce"):
            workload["produce"]["rate_per_s"] /= keep
    if short is not None:  # each replica has as many records less than the log as before
        draft.table("replicas")["records"] += _missing_in_replicas(draft) - short
    recount(draft)


def _missing_in_replicas(draft: Draft) -> "pd.Series[int] | None":
    """Return how many records of the log between its offsets each row of ``replicas`` does not have."""
    if "replicas" not in draft.tables:
        return None
    rows, log = draft.tables["replicas"], draft.tables["log"]
    offsets = {key: np.sort(part["offset"].to_numpy("int64")) for key, part in log.groupby(["topic", "partition"])}
    logged = [
        np.diff(np.searchsorted(offsets.get((topic, partition), np.array([], "int64")), [start, end]))[0]
        for topic, partition, start, end in zip(
            rows["topic"], rows["partition"], rows["start_offset"].fillna(0), rows["end_offset"].fillna(0), strict=True
        )
    ]
    return pd.Series(logged, rows.index, dtype="Int64") - rows["records"]


def renumber(draft: Draft, topic: str, partition: int, change: Renumber) -> None:
    """Apply a monotone map to every offset of one partition: rows, replicas, commits, positions and epochs."""
    for name in ("log", "outcomes", "replicas", "offsets"):
        if name in draft.tables:
            _renumber_rows(draft, name, topic, partition, change)

    def one(value: int) -> int:
        return int(change(np.array([value], dtype="int64"))[0])

    for event in draft.document("events.jsonl"):
        if (event.get("topic"), event.get("partition")) == (topic, partition) and isinstance(event.get("offset"), int):
            event["offset"] = one(event["offset"])
        for entry in (*(event.get("offsets") or ()), *(event.get("positions") or ())):
            if entry[:2] == [topic, partition]:
                entry[2:] = [one(value) for value in entry[2:]]
    for line in draft.document("leaders.jsonl") if "leaders.jsonl" in draft.documents else ():
        if line["topic"] == topic and line["partition"] == partition and line["start_offset"] is not None:
            line["start_offset"] = one(line["start_offset"])
            for broker, start in line.get("checkpoints", {}).items():
                line["checkpoints"][broker] = one(start)


def _renumber_rows(draft: Draft, name: str, topic: str, partition: int, change: Renumber) -> None:
    rows = draft.table(name)
    columns, number = ["offset", "high_watermark", "start_offset", "end_offset"], "partition"
    if name == "offsets":
        columns, number = ["committed"], "topic_partition"
    mine = ((rows["topic"] == topic) & (rows[number] == partition)).to_numpy(bool, na_value=False)
    if name == "outcomes":
        mine &= (rows["op"] != "commit").to_numpy(bool, na_value=False)
    if name == "offsets":  # positions of readers; a commit workload commits figures of its own
        outcomes = draft.tables["outcomes"]
        mine &= rows["group"].isin({*outcomes.loc[outcomes["op"] == "consume", "group"].dropna()}).to_numpy(bool)
    for column in {*columns} & {*rows.columns}:
        here = mine & rows[column].notna().to_numpy(bool)
        if here.any():
            rows.loc[here, column] = change(rows.loc[here, column].to_numpy("int64"))


def recount(draft: Draft) -> None:
    """Make the counters that the clients reported agree with the rows, as the client's own account of what it did."""
    rows = draft.tables["outcomes"]
    if "worker" not in rows.columns:
        return
    counts = rows.groupby(["worker", "op", "status"], dropna=False).size().to_dict()
    reports = [event for event in draft.document("events.jsonl") if event.get("event") == "counters"]
    lives = Counter((event.get("worker"), event.get("op")) for event in reports)
    for event in reports:
        counters, who = event["counters"], (event.get("worker"), event.get("op"))
        of_worker = {status: int(counts.get((*who, status), 0)) for status in ("ok", "failed", "in_doubt")}
        for status, count in of_worker.items():
            if status in counters:
                counters[status] = count
        if "sent" in counters:
            counters["sent"] = sum(of_worker.values())
        if "received" in counters and lives[who] == 1:
            counters["received"] = of_worker["ok"]


def _document(name: str, document: Any) -> bytes:
    return json.dumps(document).encode() if name in OBJECTS else b"".join(_line(row) for row in document)


def _parquet(table: str, rows: pd.DataFrame) -> bytes:
    output = io.BytesIO()
    pq.write_table(_arrow(table, rows), output, compression="zstd")
    return output.getvalue()


def _line(row: Mapping[str, Any]) -> bytes:
    """Return a JSON line; a line of the journal that has a checksum gets the checksum of its new content."""
    if "crc" not in row:
        return json.dumps(row).encode() + b"\n"
    body = json.dumps({key: value for key, value in row.items() if key != "crc"}).encode()[:-1]
    return body + b', "crc": "%08x"}\n' % zlib.crc32(body)


def _frame(table: str, parts: list[pa.Table]) -> pd.DataFrame:
    """Return the parts of a table with nullable integers, and with the columns that any part has."""
    kinds = {each.name: each.dataType.simpleString() for each in TABLES[table]}
    whole = pa.concat_tables([_plain(part) for part in parts], promote_options="default")
    frame = pd.DataFrame(index=range(whole.num_rows))
    series = {
        name: pd.array(whole.column(name).to_pylist(), dtype=_PANDAS[kinds[name]])
        if kinds[name] not in ("string", "double")
        else pd.Series(whole.column(name).to_pylist(), dtype=_PANDAS[kinds[name]])
        for name in whole.column_names
        if name in kinds
    }
    return pd.concat([frame, pd.DataFrame(series)], axis=1)


def _plain(part: pa.Table) -> pa.Table:
    """Return a table whose dictionary-encoded texts are plain, so that parts can be joined."""
    for number, column in enumerate(part.schema):
        if pa.types.is_dictionary(column.type):
            part = part.set_column(number, column.name, part.column(number).cast(column.type.value_type))
    return part


def _arrow(table: str, rows: pd.DataFrame) -> pa.Table:
    kinds = {each.name: each.dataType.simpleString() for each in TABLES[table]}
    schema = [(name, _ARROW[kinds[name]]) for name in rows.columns if name in kinds]
    return pa.table({name: pa.array(rows[name], kind, from_pandas=True) for name, kind in schema}, pa.schema(schema))
