"""A clean run as columns, so that a defect is a single edit and fifty runs are built in seconds.

The run is that of ``evidence_factory`` with half of its rate and the reference client, which also reports epochs,
brokers and high watermarks. A partition's leader epoch rises when its broker is killed (26 s) and when leaders are
rotated (36 s).
"""

import json
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import ARROW, S, clean_run

Row = dict[str, Any]
FRAMES = ("produce", "consume", "log", "metrics", "replicas", "offsets", "transactions", "batches")
SELDOM = ("replicas", "offsets", "transactions", "batches")  # not in every run
DOCUMENTS = ("run", "timeline", "phases", "journal", "events")
EPOCH, MARGIN = 3, 6  # the first leader epoch; how far the high watermark is ahead of what is delivered
SLOS = (
    "produce.latency p95 < 50ms in steady",
    "produce.latency p95 < 250ms in fault/latency-1",
    "produce.latency p95 < 250ms in recovery",
    "produce.success >= 99%",
    "produce.gap < 6s in fault",
    "consume.latency p99 < 5s",
    "recovery < 10s after kill-1",
    "lost == 0",
    "p95(patient) <= 1.5 * p95(baseline) of produce.latency in steady",
)


@dataclass
class Run:
    """A run to spoil: documents as plain data and tables as data frames; ``write`` creates the run directory."""

    documents: dict[str, Any]
    frames: dict[str, pd.DataFrame]
    files: dict[str, bytes] = field(default_factory=dict)

    def copy(self, run_id: str) -> "Run":
        """Return a copy with this run id."""
        documents = deepcopy(self.documents)
        documents["run"]["run_id"] = run_id
        return Run(documents, {name: rows.copy() for name, rows in self.frames.items()}, dict(self.files))

    @property
    def arms(self) -> Row:
        """The arms of the timeline's workload."""
        return dict(self.documents["timeline"]["workloads"][0])

    def slos(self, *texts: str) -> None:
        """Replace the plan's SLOs."""
        self.documents["timeline"]["slo"] = [{"text": text, "at": f"demo.yaml:{n}:5"} for n, text in enumerate(texts)]

    def at(self, table: str, producer_id: int, seq: int, arm: str | None = None) -> Any:
        """Return the index of a record's row; ``arm`` is the consuming arm."""
        rows = self.frames[table]
        result = (rows["producer_id"] == producer_id) & (rows["seq"] == seq)
        (index,) = rows.index[result if arm is None else result & (rows["arm"] == arm)]
        return index

    def set(self, table: str, index: Any, **values: Any) -> None:
        """Change one or several rows."""
        for name, value in values.items():
            self.frames[table].loc[index, name] = value

    def get(self, table: str, index: Any) -> Row:
        """Return a row."""
        return dict(self.frames[table].loc[index])

    def drop(self, table: str, index: Any) -> None:
        """Remove rows."""
        self.frames[table] = self.frames[table].drop(index)

    def add(self, table: str, *rows: Row) -> None:
        """Append rows."""
        old = self.frames[table]
        more = pd.DataFrame(rows).reindex(columns=old.columns).astype(old.dtypes)
        self.frames[table] = pd.concat([old, more], ignore_index=True) if len(old) else more

    def lose(self, producer_id: int, seq: int, *, status: str = "ok", logged: bool = True, read_by: str = "") -> None:
        """Set the outcome of one record: its status, whether the log has it, and the arms that read it."""
        changes = {"status": status} if status == "ok" else {"status": status, "offset": None, "done_us": None}
        self.set("produce", self.at("produce", producer_id, seq), **changes)
        if not logged:
            self.drop("log", self.at("log", producer_id, seq))
        for arm in ("baseline", "patient"):
            if arm not in read_by.split():
                self.drop("consume", self.at("consume", producer_id, seq, arm))

    def read_in_order(self) -> None:
        """Deliver the records of each partition in order to every reader, however late the first record is."""
        rows = self.frames["consume"].sort_values(["arm", "topic", "partition", "offset"])
        self.frames["consume"] = rows.assign(done_us=rows.groupby(["arm", "topic", "partition"])["done_us"].cummax())

    def write(self, home: Path) -> Path:
        """Write the run directory ``home``."""
        home.mkdir(parents=True)
        for name in ("run", "timeline", "phases"):
            (home / f"{name}.json").write_text(json.dumps(self.documents[name]))
        for name in ("journal", "events"):
            (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.documents[name]))
        names = [self._write(home, name) for name in FRAMES if name not in SELDOM or len(self.frames[name])]
        if self.documents["run"]["status"] == "complete":
            (home / "manifest.json").write_text(json.dumps({"schema_version": 1, "files": sorted(names)}))
        for name, content in self.files.items():
            (home / name).write_bytes(content)
        return home

    def _write(self, home: Path, frame: str) -> str:
        table = "outcomes" if frame in ("produce", "consume") else frame
        name = f"{table}/{frame}-0.parquet"
        (home / table).mkdir(exist_ok=True)
        pq.write_table(arrow(table, self.frames[frame]), home / name)
        return name


def arrow(table: str, rows: pd.DataFrame) -> pa.Table:
    """Return the rows with the types of the files."""
    schema = pa.schema([(column, ARROW[kind]) for column, kind in columns()[table].items()])
    return pa.Table.from_pandas(rows, schema=schema, preserve_index=False)


def typed(table: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return all columns of the table, with nullable integers."""
    kinds = columns()[table]
    dtypes = {
        name: "Int64" if kind in ("int", "bigint") else "Float64" if kind == "double" else object
        for name, kind in kinds.items()
    }
    return rows.reindex(columns=list(kinds)).astype(dtypes).reset_index(drop=True)


@cache
def good_run() -> Run:
    """Return a run that keeps every SLO and meets every fault. Copy it before a change."""
    made = clean_run(columns(), SLOS, rate=30)
    documents = {name: getattr(made, name) for name in DOCUMENTS}
    for arm in documents["timeline"]["workloads"][0]["arms"].values():
        arm["client"] = "reference"
    documents["run"]["values_compared"] = ["orders/baseline", "orders/patient", "log"]
    frames = {name: pd.DataFrame(getattr(made, name)) for name in ("produce", "consume", "log", "metrics")}
    for name in ("produce", "consume"):
        frames[name] = frames[name].assign(client="reference", **_led(frames[name]))
    epochs = frames["produce"][["producer_id", "seq", "leader_epoch"]]
    frames["log"] = frames["log"].drop(columns="leader_epoch").merge(epochs, on=["producer_id", "seq"], how="left")
    late = frames["produce"]["intended_us"].between(26 * S, 29 * S) & (frames["produce"]["partition"] % 3 == 0)
    frames["produce"]["attempts"] = np.where(late, 2, 1)
    frames["consume"]["high_watermark"] = frames["consume"]["offset"] + MARGIN
    tables = {name: "outcomes" if name in ("produce", "consume") else name for name in frames}
    whole = {name: typed(tables[name], rows) for name, rows in frames.items()}
    return Run(documents, whole | {name: typed(name, pd.DataFrame()) for name in SELDOM})


@cache
def led_run() -> Run:
    """Return the good run with its history of leaders."""
    run = good_run().copy("led")
    starts = run.frames["produce"].groupby(["partition", "leader_epoch"])["offset"].min()
    lines = []
    for (partition, epoch), start in starts.items():
        first_us = 36 * S if epoch > EPOCH + (partition % 3 == 0) else 26 * S
        bounds = {"after_us": 0, "by_us": 0} if epoch == EPOCH else {"after_us": first_us, "by_us": first_us + S}
        place = {"topic": "orders", "topic_id": "t1", "partition": int(partition), "epoch": int(epoch)}
        elected = {"leader": 1 + int(partition + epoch) % 3, "isr": [1, 2, 3], "unclean": False}
        lines.append(
            place | elected | {"start_offset": int(start), **bounds, "sources": ["controller"], "checkpoints": {}}
        )
    run.files["leaders.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return run


def _led(rows: pd.DataFrame) -> Row:
    """Add the leader and its epoch at the time of the record's write."""
    killed = (rows["partition"] % 3 == 0) & (rows["intended_us"] >= 26 * S)
    moves = killed.astype(int) + (rows["intended_us"] >= 36 * S).astype(int)
    broker = 1 + (rows["partition"] + moves) % 3
    return {"leader_epoch": EPOCH + moves, "broker_id": broker, "broker_rack": broker.map({1: "a", 2: "b", 3: "c"})}
