"""Judged runs written to disk, for statements that read records, samples and events."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.results.evidence.stored import JudgedRun
from aftershock.results.model.check import Check
from aftershock.results.studies.part import STEADY_SLICE_US, Part
from aftershock.tests.unit.results.studies.trials.made import verdict

Rows = Sequence[Mapping[str, Any]]


def part(
    home: Path,
    *,
    cluster: Mapping[str, Any] | None = None,
    faults: Mapping[str, Sequence[int]] | None = None,
    slices: int = 8,
    events: Iterable[Mapping[str, Any]] = (),
    checks: Sequence[Check] = (),
    workloads: Rows = (),
    **tables: Rows,
) -> Part:
    """Return a part in ``home``; its steady phase begins at 0, and each of ``faults`` begins at these times, one per
    block.

    ``tables``: the rows of ``outcomes``, ``offsets`` and ``metrics``.
    """
    home.mkdir(parents=True, exist_ok=True)
    windows = [
        {"name": "fault", "entry": entry, "fault": f"{entry}-{block}", "block": block, "start_us": at, "end_us": at + 1}
        for entry, times in (faults or {}).items()
        for block, at in enumerate(times, 1)
    ]
    steady = {"name": "steady", "fault": None, "block": 0, "start_us": 0, "end_us": slices * STEADY_SLICE_US}
    (home / "phases.json").write_text(json.dumps([steady, *windows]))
    (home / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    for table, rows in tables.items():
        (home / table).mkdir()
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), home / table / "part-0.parquet")
    steps = [{"id": window["fault"], "entry": window["entry"], "block": window["block"]} for window in windows]
    timeline = {"cluster": cluster or {"racks": {"a": 1}, "config": {}}, "workloads": [*workloads], "steps": steps}
    run = {"run_id": home.name, "status": "complete", "why": None}
    return Part(home.name, JudgedRun(home, run, timeline, {}, verdict(home.name, checks)))
