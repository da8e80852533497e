"""Parts with rows, for tests of statements that read records, samples and events."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.results.model.check import Check
from aftershock.results.studies.part import Part
from aftershock.tests.unit.results.studies.trials.made import part as made_part
from aftershock.workloads.load.outcomes import SCHEMA

SECOND_US = 1_000_000
BROKERS = [{"id": 1, "rack": "a"}, {"id": 2, "rack": "b"}, {"id": 3, "rack": "c"}]
Row = Mapping[str, Any]


def part_of(
    home: Path,
    rows: Iterable[Row],
    windows: Mapping[str, tuple[int, int]],
    *,
    samples: Sequence[Row] = (),
    events: Sequence[Row] = (),
    journal: Sequence[Row] = (),
    checks: Sequence[Check] = (),
    gaps: Sequence[Row] = (),
    topics: Sequence[Row] = (),
) -> Part:
    """Return a part with these outcome rows; ``windows`` has start and end in seconds of each fault and of
    ``steady``.
    """
    for folder in ("outcomes", "metrics"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    filled = [dict.fromkeys(SCHEMA.names) | dict(row) for row in rows]
    pq.write_table(pa.Table.from_pylist(filled, SCHEMA), home / "outcomes" / "part-0.parquet")
    sampled = pa.schema(
        [("t_us", pa.int64()), ("broker_id", pa.int32()), ("name", pa.string()), ("value", pa.float64())]
    )
    pq.write_table(pa.Table.from_pylist([dict(row) for row in samples], sampled), home / "metrics" / "samples.parquet")
    (home / "phases.json").write_text(json.dumps([_phase(name, *span) for name, span in windows.items()]))
    for name, lines in (("events", events), ("journal", journal)):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = made_part("rows", {"w/a": [1.0]}, checks=checks)
    run = {**made.run.run, "brokers": BROKERS, "topics": list(topics)}
    analysis = {**made.run.analysis, "gaps": list(gaps)}
    return Part("rows", replace(made.run, home=home, run=run, analysis=analysis))


def produced(
    arm: str, partitions: Sequence[int | None], *, from_s: float = 0, per_s: int = 10, **more: Any
) -> list[Row]:
    """Return consecutive records; the partition None stands for a failure before a partition was chosen.
    ``latency_ms`` is 10 by default.
    """
    latency_us = more.pop("latency_ms", 10) * 1000
    workload = more.pop("workload", "orders")
    rows = []
    for seq, partition in enumerate(partitions):
        at_us = round(from_s * SECOND_US) + seq * SECOND_US // per_s
        rows.append(
            {"workload": workload, "arm": arm, "op": "produce", "seq": seq, "partition": partition, "bytes": 512}
            | {"intended_us": at_us, "done_us": at_us + latency_us, "status": "failed" if partition is None else "ok"}
            | more
        )
    return rows


def consumed(arm: str, at_s: Sequence[float], broker: int, *, latency_ms: float = 10, partition: int = 0) -> list[Row]:
    """Return records with these intended times and the broker that they were fetched from."""
    return [
        {"workload": "reads", "arm": arm, "op": "consume", "partition": partition, "broker_id": broker}
        | {"intended_us": round(at * SECOND_US), "done_us": round(at * SECOND_US + latency_ms * 1000), "status": "ok"}
        for at in at_s
    ]


def counter(name: str, broker: int, per_s: float, until_s: int) -> list[Row]:
    """Return samples, one per second, of a counter that grows evenly."""
    return [
        {"t_us": second * SECOND_US, "broker_id": broker, "name": name, "value": second * per_s}
        for second in range(until_s + 1)
    ]


def _phase(name: str, start_s: int, end_s: int) -> Row:
    fault = None if name in ("steady", "recovery") else name
    kind = "fault" if fault else name
    times = {"start_us": start_s * SECOND_US, "end_us": end_s * SECOND_US}
    return {"name": kind, "fault": fault, "entry": fault and fault.partition("-")[0], "block": 0, **times}
