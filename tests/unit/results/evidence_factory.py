"""Evidence of a good run as plain rows that a test may spoil before they are written.

The run lasts sixty seconds and has two confluent arms on one topic of six partitions. Each arm produces 60 records per
second and reads all records. Its faults are 50 ms of latency on the links of rack a, a killed broker, and a rotation of
leaders. Rows are seeded, so they are the same in every test.
"""

import json
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
S = 1_000_000
ARMS = ("baseline", "patient")
RATE = 60
PARTITIONS = 6
LOAD_END_S = 50
WINDOWS_S = {"latency-1": (16, 24), "kill-1": (26, 34), "reassign-1": (36, 39)}
ARROW = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_()}
SLOS = (
    "produce.latency p95 < 50ms in steady",
    "produce.latency p95 < 250ms in fault/latency-1",
    "produce.success >= 99.9%",
    "produce.gap < 6s in fault",
    "consume.latency p99 < 5s",
    "recovery < 10s after kill-1",
    "lost == 0",
    "p95(patient) <= 1.5 * p95(baseline) of produce.latency in steady",
)


@dataclass
class Made:
    """A run's evidence as rows and documents; ``write`` creates the run directory."""

    run: Row
    timeline: Row
    phases: list[Row]
    journal: list[Row]
    events: list[Row]
    produce: list[Row]
    consume: list[Row]
    log: list[Row]
    metrics: list[Row]
    offsets: list[Row] = field(default_factory=list)
    manifested: bool = True
    columns: dict[str, dict[str, str]] = field(default_factory=dict)

    def copy(self) -> "Made":
        """Return a copy that a test may spoil."""
        tables = ("produce", "consume", "log", "metrics", "offsets")
        rows = {name: [dict(row) for row in getattr(self, name)] for name in tables}
        told = {name: deepcopy(getattr(self, name)) for name in ("run", "timeline", "phases", "journal", "events")}
        return Made(**rows, **told, manifested=self.manifested, columns=self.columns)

    def write(self, home: Path) -> Path:
        """Write the run directory ``home``."""
        home.mkdir(parents=True)
        for name in ("run", "timeline", "phases"):
            (home / f"{name}.json").write_text(json.dumps(getattr(self, name)))
        for name in ("journal", "events"):
            (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in getattr(self, name)))
        parts = {
            "outcomes/produce-0.parquet": self.produce,
            "outcomes/consume-0.parquet": self.consume,
            "log/part-0.parquet": self.log,
            "metrics/part-0.parquet": self.metrics,
        }
        parts |= {"offsets/part-0.parquet": self.offsets} if self.offsets else {}
        for name, rows in parts.items():
            write_rows(home / name, rows, self.columns[name.split("/", 1)[0]])
        if self.manifested:
            (home / "manifest.json").write_text(json.dumps({"schema_version": 1, "files": sorted(parts)}))
        return home


def write_rows(path: Path, rows: list[Row], columns: dict[str, str]) -> None:
    """Write ``rows`` as Parquet with exactly ``columns`` (name → Spark type)."""
    path.parent.mkdir(exist_ok=True)
    schema = pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def clean_run(columns: dict[str, dict[str, str]], slos: tuple[str, ...] = SLOS, rate: int = RATE) -> Made:
    """Return a run that keeps every SLO and in which every fault takes effect."""
    produce = [row for id_, arm in enumerate(ARMS) for row in _produced(id_, arm, rate)]
    log = _log(produce)
    return Made(
        run=_run(),
        timeline=_timeline(slos, rate),
        phases=_phases(),
        journal=_journal(),
        events=[_assigned(arm) for arm in ARMS],
        produce=produce,
        consume=[row for arm in ARMS for row in _consumed(arm, log)],
        log=[{key: row.get(key) for key in columns["log"]} for row in log],
        metrics=_metrics(),
        columns=columns,
    )


def _produced(producer_id: int, arm: str, rate: int) -> list[Row]:
    rng = np.random.default_rng(producer_id)
    base_us = (5000 * rng.lognormal(0, 0.3, rate * LOAD_END_S)).astype(int)
    rows = []
    for seq, taken_us in enumerate(base_us.tolist()):
        intended = seq * S // rate + 1000 * producer_id
        partition = seq % PARTITIONS
        done = intended + taken_us + _slower_us(intended, partition)
        row = _row("produce", arm, (producer_id, seq), partition, intended)
        row |= {"sent_us": intended + 200, "done_us": done, "deadline_us": intended + 30 * S, "attempts": None}
        rows.append(row)
    return rows


def _slower_us(intended_us: int, partition: int) -> int:
    """Return the added latency: 50 ms on the links, and for a third of the partitions the time until the new
    leader is found.
    """
    if 16 * S <= intended_us < 24 * S:
        return 50_000
    if partition % 3 == 0 and 26 * S <= intended_us < 29 * S:
        return 29 * S - intended_us
    return 10_000 if 36 * S <= intended_us < 37 * S else 0


def _row(op: str, arm: str, record: tuple[int, int], partition: int, intended_us: int) -> Row:
    return {
        "workload": "orders",
        "arm": arm,
        "client": "confluent",
        "op": op,
        "producer_id": record[0],
        "seq": record[1],
        "topic": "orders",
        "topic_id": "t1",
        "partition": partition,
        "intended_us": intended_us,
        "client_rack": "a" if op == "produce" else "b",
        "bytes": 1000,
        "status": "ok",
    }


def _log(produce: list[Row]) -> list[Row]:
    """Return the log with offsets in order of completion. The order of each producer is kept, as idempotence
    guarantees.
    """
    ends = dict.fromkeys(range(PARTITIONS), 0)
    log = []
    for row in sorted(produce, key=lambda row: (row["intended_us"], row["producer_id"])):
        row["offset"] = ends[row["partition"]]
        ends[row["partition"]] += 1
        log.append(row)
    return log


def _consumed(arm: str, log: list[Row]) -> list[Row]:
    """Return deliveries in order of offsets, each at least 2 ms after the record's acknowledgement."""
    reached = dict.fromkeys(range(PARTITIONS), 0)
    rows = []
    for sent in log:
        at = max(sent["done_us"] + 2000, reached[sent["partition"]] + 1)
        reached[sent["partition"]] = at
        row = _row("consume", arm, (sent["producer_id"], sent["seq"]), sent["partition"], sent["intended_us"])
        rows.append(row | {"offset": sent["offset"], "done_us": at})
    return rows


def _phases() -> list[Row]:
    rows = [("warmup", None, 0, 6), ("steady", None, 6, 16)]
    rows += [("fault", fault, start, end) for fault, (start, end) in WINDOWS_S.items()]
    rows += [("recovery", None, 24, 26), ("recovery", None, 34, 36), ("recovery", None, 39, LOAD_END_S)]
    return [
        {"name": name, "fault": fault, "block": 0, "start_us": start * S, "end_us": end * S}
        for name, fault, start, end in rows
    ]


def _targets(fault: str) -> Row:
    links = [f"client_a-k{broker}" for broker in (1, 2, 3)]
    return {
        "latency-1": {"brokers": [], "links": links, "topics": [], "roles": {}},
        "kill-1": {"brokers": [1], "links": [], "topics": [], "roles": {"leader of orders/0": 1}},
        "reassign-1": {"brokers": [], "links": [], "topics": ["orders"], "roles": {}},
    }[fault]


def _witness(fault: str) -> Row:
    return {
        "latency-1": {"what": "probe", "asked": 50.0, "observed": 51.2, "unit": "ms", "n": 3, "ok": True},
        "kill-1": {"what": "container state", "asked": "exited", "observed": "exited", "unit": "", "n": 4, "ok": True},
        "reassign-1": {"what": "leaders moved", "asked": 6, "observed": 6, "unit": "partitions", "n": 1, "ok": True},
    }[fault]


MET: dict[str, Row] = {
    "latency": {"met_by": "links", "severs": False, "takes": "moments", "told": False},
    "kill": {"met_by": "brokers", "severs": True, "takes": "nodes", "told": True},
    "reassign": {"met_by": "topics", "severs": False, "takes": "leaders", "told": True},
}
"""How each kind is met and what it takes away, as the timeline has it."""


def _journal() -> list[Row]:
    lines = []
    for fault, (start, end) in WINDOWS_S.items():
        line = {
            "fault": fault,
            "kind": fault.split("-")[0],
            "targets": _targets(fault),
            "undo": {"verb": "none", "args": {}},
        }
        lines += [
            line | {"t_us": start * S, "state": "intended"},
            line | {"t_us": start * S + 40_000, "state": "injected"},
            line | {"t_us": start * S + 300_000, "state": "witnessed", "witness": _witness(fault)},
            line | {"t_us": end * S - 100_000, "state": "healing"},
            line | {"t_us": end * S, "state": "healed"},
        ]
    return sorted(lines, key=lambda line: line["t_us"])


def _assigned(arm: str) -> Row:
    partitions = [["orders", partition] for partition in range(PARTITIONS)]
    return {"t_us": 0, "arm": arm, "event": "assigned", "workload": "orders", "partitions": partitions}


def _metrics() -> list[Row]:
    rows = []
    for second in range(LOAD_END_S):
        for broker in (1, 2, 3):
            name = f"client.sent_bytes/client_a-k{broker}/orders-base-produce"
            rows.append({"t_us": second * S, "broker_id": broker, "name": name, "value": 40_000.0 * second})
        rows.append({"t_us": second * S, "broker_id": None, "name": "host.cpu_busy", "value": 0.6})
        rows.append({"t_us": second * S, "broker_id": None, "name": "host.steal", "value": 0.01})
        for tick in range(10):
            at = second * S + tick * S // 10
            rows.append({"t_us": at, "broker_id": None, "name": "host.tick_late_us", "value": 800.0})
    return rows


def _run() -> Row:
    return {
        "schema_version": 1,
        "run_id": "20261121-101500-demo-7",
        "plan": "demo",
        "seed": 7,
        "started_at": "2026-11-21T10:15:00+00:00",
        "status": "complete",
        "why": None,
        "versions": {"aftershock": "0.1.0", "kafka": "4.3.1", "toxiproxy": "2.12.0", "python": "3.11.7"},
        "git": None,
        "images": {"kafka": {"name": "kafka:4.3.1", "digest": "sha256:1"}},
        "host": {"cores": 2, "memory_bytes": 24 * 2**30, "kernel": "6.1", "hostname": "host"},
        "profile": {"name": "fast"},
        "rehearse": False,
        "recovery_definition": 2,
        "origin_ns": 0,
        "warmup": {"settled": True, "after_ms": 6000, "why": "medians stopped drifting"},
        "marks": {
            "load_start_us": 0,
            "steady_start_us": 6 * S,
            "faults_start_us": 16 * S,
            "load_end_us": LOAD_END_S * S,
        },
        "topics": [
            {"name": "orders", "topic_id": "t1", "partitions": PARTITIONS}
            | {"assignment": {str(partition): [1, 2, 3] for partition in range(PARTITIONS)}}
        ],
        "brokers": [{"id": node, "rack": rack} for node, rack in ((1, "a"), (2, "b"), (3, "c"))],
        "voters": [1, 2, 3],
        "producers": [{"producer_id": id_, "workload": "orders", "arm": arm} for id_, arm in enumerate(ARMS)],
        "command": "aftershock run demo --seed 7",
    }


def _timeline(slos: tuple[str, ...], rate: int) -> Row:
    arms = {arm: {"client": "confluent", "settings": {}, "client_rack": None} for arm in ARMS}
    produce = {"topic": "orders", "rate_per_s": float(rate), "acks": "all", "idempotence": True, "rack": "a"}
    consume = {"topic": "orders", "group": None, "from": "earliest", "rack": "b"}
    return {
        "schema_version": 1,
        "name": "demo",
        "why": "to see what three faults do",
        "plan_source": "demo.yaml",
        "seed": 7,
        "cluster": {"kafka": "default", "racks": {"a": 1, "b": 1, "c": 1}, "profile": "fast"},
        "topics": [{"name": "orders", "partitions": PARTITIONS, "replication": 3, "config": {}}],
        "workloads": [{"name": "orders", "produce": produce, "consume": consume, "arms": arms}],
        "timing": {
            "warmup_min_ms": 5000,
            "warmup_max_ms": 30000,
            "steady_ms": 10000,
            "fault_ms": 3000,
            "recovery_ms": 10000,
        },
        "steps": [
            {"id": fault, "kind": fault.split("-")[0], "at_ms": (start - 16) * 1000, "for_ms": (end - start) * 1000}
            | {"parameters": {}, "draws": {}, **MET[fault.split("-")[0]]}
            for fault, (start, end) in WINDOWS_S.items()
        ],
        "length_ms": 34000,
        "slo": [{"text": text, "at": f"demo.yaml:{20 + line}:5"} for line, text in enumerate(slos)],
    }


def unfinish(home: Path) -> None:
    """Turn the evidence of a complete run into that of a killed run."""
    (home / "manifest.json").unlink()
    run = json.loads((home / "run.json").read_text())
    (home / "run.json").write_text(json.dumps(run | {"status": "running"}))
