"""Runs of an audit written to disk: each arm is without answers for given times after each inject of a fault."""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.results.evidence.manifest import manifest_of
from aftershock.results.evidence.stored import JudgedRun
from aftershock.results.model.check import Check
from aftershock.results.studies.part import Part
from aftershock.results.studies.suite import client_of
from aftershock.tests.unit.results.studies.trials.made import verdict

S = 1_000_000
EVERY_US, QUICK_US = 66_000, 5_000
FIRST_S, BLOCK_S, FAULT_S = 20.0, 60.0, 40.0
"""Time of the first inject, length of a repetition, and of the fault in it."""
PARTITIONS = 6
CLUSTER = {"profile": "fast", "config": {"leader.imbalance.check.interval.seconds": "1"}}

Outages = Mapping[str, Sequence[float]]
"""Seconds without an answer after each inject, by arm."""


def audited(
    home: Path,
    outages: Outages,
    *checks: Check,
    plan: str = "half-open",
    workloads: Sequence[str] = ("orders",),
    clients: Mapping[str, str] | None = None,
    failed: Mapping[str, int] | None = None,
) -> Part:
    """Return a run in ``home``, which lasts as long as the repetitions of its fault; ``failed`` records are the first.

    Arms of the same name do the same in all ``workloads``. ``clients`` has their kinds, ``exec`` by default.
    """
    home.mkdir(parents=True)
    blocks = range(1, len(next(iter(outages.values()))) + 1)
    injects_us = [round((FIRST_S + BLOCK_S * (block - 1)) * S) for block in blocks]
    end_us = injects_us[-1] + round(BLOCK_S * S)
    rows = [
        _rows(arm, times_s, workload, injects_us, end_us, number)
        for number, (workload, (arm, times_s)) in enumerate(product(workloads, outages.items()))
    ]
    table = pa.concat_tables(rows)
    for arm, count in (failed or {}).items():
        table = _failing(table, arm, count)
    (home / "outcomes").mkdir()
    pq.write_table(table, home / "outcomes" / "part-0.parquet")
    arms = {arm: {"client": (clients or {}).get(client_of(arm), "exec"), "settings": {}} for arm in outages}
    steps = [{"id": f"f-{block}", "entry": "f", "block": block, "for_ms": int(FAULT_S * 1000)} for block in blocks]
    windows: list[dict[str, Any]] = [_window("steady", None, 0, round(14 * S), 0)]
    lines = []
    for block, at_us in zip(blocks, injects_us, strict=True):
        heal_us = at_us + round(FAULT_S * S)
        windows.append(_window("fault", f"f-{block}", at_us, heal_us, block))
        windows.append(_window("recovery", None, heal_us, at_us + round(BLOCK_S * S), block))
        lines.append({"t_us": heal_us, "fault": f"f-{block}", "state": "healing"})
    sides = {"produce": {"topic": "orders"}, "consume": {"topic": "orders"}}
    timeline = {
        "schema_version": 1,
        "cluster": CLUSTER,
        "timing": {"fault_ms": 3000},
        "workloads": [{"name": name, **sides, "arms": arms} for name in workloads],
        "steps": steps,
    }
    run = {
        "schema_version": 1,
        "run_id": home.name,
        "status": "complete",
        "why": None,
        "plan": plan,
        "recovery_definition": 2,
        "versions": {"kafka": "4.3.1"},
    }
    judged = verdict(home.name, checks)
    documents = {
        "run": run,
        "timeline": timeline,
        "phases": windows,
        "verdict": judged.to_json(),
        "analysis": {"schema_version": 2, "distributions": [], "gaps": [], "recoveries": []},
    }
    for name, document in documents.items():
        (home / f"{name}.json").write_text(json.dumps(document))
    (home / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for name in ("events.jsonl", "plan.yaml"):
        (home / name).write_text("")
    (home / "manifest.json").write_text(json.dumps(manifest_of(home)))
    return Part(plan, JudgedRun(home, run, timeline, documents["analysis"], judged))


def _window(name: str, fault: str | None, start_us: int, end_us: int, block: int) -> dict[str, Any]:
    entry = "f" if fault else None
    return {"name": name, "fault": fault, "entry": entry, "start_us": start_us, "end_us": end_us, "block": block}


def _rows(
    arm: str, outages_s: Sequence[float], workload: str, injects_us: Sequence[int], end_us: int, number: int
) -> pa.Table:
    due_us = np.arange(number * 100, end_us, EVERY_US)
    done_us = due_us + QUICK_US
    for inject_us, outage_s in zip(injects_us, outages_s, strict=True):
        back_us = inject_us + round(outage_s * S)
        late = (due_us >= inject_us) & (due_us < back_us)
        done_us[late] = back_us + QUICK_US
    seq = np.arange(len(due_us))
    columns = {
        "producer_id": np.full(len(seq), number),
        "seq": seq,
        "partition": seq % PARTITIONS,
        "intended_us": due_us,
        "deadline_us": due_us + 120 * S,
        "done_us": done_us,
    }
    texts = {"workload": workload, "arm": arm, "topic": "orders", "status": "ok"}
    return pa.concat_tables(
        pa.table({**columns, **{name: [text] * len(seq) for name, text in {**texts, "op": op}.items()}})
        for op in ("produce", "consume")
    )


def _failing(table: pa.Table, arm: str, count: int) -> pa.Table:
    rows = table.to_pylist()
    for row in [row for row in rows if (row["arm"], row["op"]) == (arm, "produce")][:count]:
        row["status"] = "failed"
    return pa.Table.from_pylist(rows, schema=table.schema)
