"""Load the evidence of a run into DuckDB: the tables that the second readings query.

Everything here follows ``docs/EVIDENCE.md`` and ``docs/SPARK.md``; nothing of ``results`` is imported.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

# ruff: noqa: S608 - queries are built from names of this module and the paths of evidence

OUTCOMES = {
    **dict.fromkeys(("workload", "arm", "client", "op", "topic", "topic_id", "group", "member"), "varchar"),
    **dict.fromkeys(("broker_rack", "client_rack", "status", "error", "worker"), "varchar"),
    **dict.fromkeys(("producer_id", "partition", "leader_epoch", "broker_id", "attempts", "bytes"), "integer"),
    **dict.fromkeys(("seq", "offset", "high_watermark", "intended_us", "deadline_us", "sent_us", "done_us"), "bigint"),
}
LOG = {"topic": "varchar", "topic_id": "varchar", "partition": "integer", "offset": "bigint", "producer_id": "integer"}
LOG |= {"seq": "bigint", "error": "varchar"}

TRANSACTIONS = {
    **dict.fromkeys(("workload", "arm", "intended", "outcome"), "varchar"),
    **dict.fromkeys(("due_us", "done_us"), "bigint"),
}
METRICS = {"t_us": "bigint", "broker_id": "integer", "name": "varchar", "value": "double"}
OFFSETS = {"group": "varchar", "topic": "varchar", "topic_partition": "integer", "committed": "bigint"}
_TABLES = {"outcomes": OUTCOMES, "log": LOG, "offsets": OFFSETS, "transactions": TRANSACTIONS, "metrics": METRICS}
EVENTS = {"line": pa.int64(), "t_us": pa.int64(), "who": pa.string(), "worker": pa.string(), "event": pa.string()}
EVENTS |= {"topic": pa.string(), "partition": pa.int32(), "value": pa.int64()}


@dataclass(frozen=True)
class Run:
    """A run directory, with its tables in DuckDB.

    ======================  =====================================================================================
    ``outcomes``            as ``docs/SPARK.md`` lists it, and ``who``
    ``log``, ``offsets``    as ``docs/SPARK.md`` lists them; ``metrics`` and ``transactions`` too
    ``spans``               ``window_name start_us end_us``, the disjoint spans of each window
    ``subscriptions``       ``who topic members from_latest``
    ``producers``           ``who producer_id topic``
    ``partitions``          ``topic partition``, of all topics
    ``events``              ``line t_us who worker event topic partition value``, a row for each named partition
    ``members``             ``who worker``, the consumer processes of a client
    ``group_names``         ``who group_name``
    ``outages``             ``fault kind verb worker start_us end_us``, when a fault stopped a process
    ======================  =====================================================================================

    ``who`` is a client, ``workload/arm``.
    """

    home: Path
    db: duckdb.DuckDBPyConnection

    @cached_property
    def timeline(self) -> dict[str, Any]:
        return self.document("timeline.json")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return self.document("run.json")

    def document(self, name: str) -> Any:
        return json.loads((self.home / name).read_text(encoding="utf-8"))

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        for line in (self.home / name).read_text(encoding="utf-8").splitlines():
            yield json.loads(line)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.db.sql(query).fetchall()

    @cached_property
    def windows(self) -> tuple[str, ...]:
        return tuple(name for (name,) in self.rows("select distinct window_name from spans order by all"))


def load(home: Path) -> Run:
    """Read the run directory ``home``."""
    run = Run(home, duckdb.connect())
    for table, columns in _TABLES.items():
        _create_parquet_table(run, table, columns)
    run.db.execute("alter table outcomes add column who varchar")
    run.db.execute("update outcomes set who = workload || '/' || arm")
    run.db.execute("update outcomes set worker = replace(who, '/', '-') || '-' || op where worker is null")
    _create_spans(run)
    _create_clients(run)
    _create_events(run)
    _create_members(run)
    _create_outages(run)
    return run


def _create_parquet_table(run: Run, table: str, columns: dict[str, str]) -> None:
    """Create a table with all documented columns; older evidence has fewer, which are then null."""
    files = sorted((run.home / table).glob("*.parquet"))
    listed = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    run.db.execute(f"create table {table} ({listed})")
    for file in files:
        run.db.execute(f"insert into {table} by name select {_known(run, file, columns)} from '{file}'")


def _known(run: Run, file: Path, columns: dict[str, str]) -> str:
    present = [row[0] for row in run.rows(f"describe select * from '{file}'")]
    return ", ".join(f'"{name}"' for name in present if name in columns)


def _create_spans(run: Run) -> None:
    """Create the disjoint spans of each window: overlapping and adjacent phases of a window are one span."""
    run.db.execute("create table phases (name varchar, fault varchar, entry varchar, start_us bigint, end_us bigint)")
    for phase in run.document("phases.json"):
        entry = phase.get("entry") or phase["fault"]
        run.db.execute(
            "insert into phases values (?, ?, ?, ?, ?)",
            [phase["name"], phase["fault"], entry, phase["start_us"], phase["end_us"]],
        )
    run.db.execute("""
        create table spans as
        with named as (
            select name as window_name, start_us, end_us from phases
            union select 'fault/' || fault, start_us, end_us from phases where fault is not null
            union select 'fault/' || entry, start_us, end_us from phases where entry is not null
            union select 'run', min(start_us), max(end_us) from phases where name <> 'warmup' having count(*) > 0
        ), begun as (
            select *, start_us > coalesce(max(end_us) over (
                partition by window_name order by start_us, end_us rows between unbounded preceding and 1 preceding
            ), -1) as fresh from named
        ), numbered as (
            select *, count(*) filter (fresh) over (partition by window_name order by start_us, end_us) as span
            from begun
        )
        select window_name, min(start_us) as start_us, max(end_us) as end_us from numbered group by window_name, span
    """)


def _create_clients(run: Run) -> None:
    run.db.execute("create table subscriptions (who varchar, topic varchar, members integer, from_latest boolean)")
    run.db.execute("create table producers (who varchar, producer_id integer, topic varchar)")
    run.db.execute("create table partitions (topic varchar, partition integer)")
    topics = {topic["name"]: int(topic["partitions"]) for topic in run.timeline["topics"]}
    for name, count in topics.items():
        run.db.execute(f"insert into partitions select '{name}', unnest(range({count}))")
    writes = {}
    for workload in run.timeline["workloads"]:
        for arm in workload["arms"]:
            who = f"{workload['name']}/{arm}"
            if consume := workload.get("consume"):
                read = consume["topic"]
                run.db.execute(
                    "insert into subscriptions values (?, ?, ?, ?)",
                    [who, read, consume.get("members") or 1, consume.get("from") == "latest"],
                )
            if produce := workload.get("produce"):
                writes[who] = produce["topic"]
    for one in run.manifest["producers"]:
        who = f"{one['workload']}/{one['arm']}"
        run.db.execute("insert into producers values (?, ?, ?)", [who, one["producer_id"], writes.get(who)])


def _create_events(run: Run) -> None:
    """Create a row for each partition that an event of a client names, in the order of ``events.jsonl``."""
    rows = []
    for at, line in enumerate(run.lines("events.jsonl")):
        if not line.get("workload"):
            continue
        who = f"{line['workload']}/{line['arm']}"
        worker = line.get("worker") or f"{line['workload']}-{line['arm']}-{line.get('op', 'consume')}"
        places = line.get("partitions") or line.get("positions") or []
        if line["event"] == "position_found":
            places = [[line["topic"], line["partition"], line["offset"]]]
        for topic, partition, *more in places or [[None, None]]:
            value = more[0] if more else None
            rows.append((at, line["t_us"], who, worker, line["event"], topic, partition, value))
    columns = zip(*rows, strict=True) if rows else [()] * len(EVENTS)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, EVENTS.values(), strict=True)]
    run.db.register("event_rows", pa.table(arrays, names=list(EVENTS)))
    run.db.execute("create table events as select * from event_rows")


def _create_members(run: Run) -> None:
    """Create ``members(who, worker)`` with each consumer process of a client, and ``group_names(who, group_name)``."""
    run.db.execute("create table group_names (who varchar, group_name varchar)")
    for workload in run.timeline["workloads"]:
        for arm in workload["arms"]:
            if group := (workload.get("consume") or {}).get("group"):
                run.db.execute("insert into group_names values (?, ?)", [f"{workload['name']}/{arm}", f"{group}-{arm}"])
    run.db.execute("""
        create table members as
        select who, worker from events where worker like '%-consume%' and worker is not null
        union select who, worker from outcomes where op = 'consume' and worker is not null
    """)


def _create_outages(run: Run) -> None:
    """Create ``outages``, the times in which a fault stopped a process."""
    run.db.execute(
        "create table outages (fault varchar, kind varchar, verb varchar, worker varchar,"
        " start_us bigint, end_us bigint)"
    )
    load_end_us = max(phase["end_us"] for phase in run.document("phases.json"))
    lines: dict[str, list[dict[str, Any]]] = {}
    for line in run.lines("journal.jsonl"):
        verb = (line.get("undo") or {}).get("verb")
        if verb in ("start_clients", "resume_clients", "resume_polling"):
            lines.setdefault(line["fault"], []).append(line | {"verb": verb})
    for fault, of_fault in lines.items():
        healed = [line["t_us"] for line in of_fault if line["state"] == "healed"]
        start_us, end_us = of_fault[0]["t_us"], max(healed, default=max(load_end_us, of_fault[-1]["t_us"]))
        for worker in of_fault[0]["targets"]["clients"]:
            row = [fault, of_fault[0].get("kind", ""), of_fault[0]["verb"], worker, start_us, end_us]
            run.db.execute("insert into outages values (?, ?, ?, ?, ?, ?)", row)
