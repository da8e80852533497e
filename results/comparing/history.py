"""The nightly ledger: one JSON line a metric a night, in git or any directory; no server, and merges join lines.

::

    {"schema_version": 1, "night": "2026-11-21", "run_id": "...", "plan": "nightly", "workload": "orders",
     "arm": "kip951", "metric": "produce.latency p99", "window": "fault", "value": 412.5, "unit": "ms", "n": 9600,
     "ratio_to": 1310.0, "host": "ci-2", "kafka": "4.3.1", "git": "4653788"}

Rules: lines are only appended, and a run that is there already is not added again. ``value`` is null where it was
slower than any (censored); ``ratio_to`` is the control arm's value of the same run, null for the control itself. A line
that can't be read is named and left out; the others count.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

from aftershock.results import json_lines
from aftershock.results.comparing.blocks import BACK_OFF_US
from aftershock.results.comparing.stored import Stored

SCHEMA_VERSION = 1
NAME = "ledger.jsonl"
_OPTION = "--ledger"
_WINDOWS = ("steady", "fault", "recovery")
_QUANTILES = {"p50": ("0.5", 20), "p99": ("0.99", 1000)}  # and the records that each needs: 10/(1-q)
_TEXTS = ("run_id", "plan", "workload", "arm", "metric", "window", "unit")


@dataclass(frozen=True)
class Line:
    """One metric of one night."""

    night: date
    run_id: str
    plan: str
    workload: str
    arm: str
    metric: str
    window: str
    value: float | None
    unit: str
    n: int
    ratio_to: float | None
    host: str | None
    kafka: str | None
    git: str | None

    def to_json(self) -> str:
        """The line, without its newline."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self), "night": self.night.isoformat()})


@dataclass(frozen=True)
class Ledger:
    """What could be read, in order of nights, and a sentence for each line that could not."""

    lines: tuple[Line, ...] = ()
    broken: tuple[str, ...] = ()


def ledger_in(place: Path) -> Path:
    """The file that ``place``, a file or a directory, stands for."""
    return place / NAME if place.is_dir() else place


def read(path: Path) -> Ledger:
    """The ledger; an empty one where there is no file yet. Raises EvidenceError where the file can't be read."""
    lines, broken = json_lines.read(path, _parsed, SCHEMA_VERSION, "a ledger", _OPTION)
    return Ledger(tuple(sorted(lines, key=lambda line: (line.night, line.run_id))), tuple(broken))


def add(path: Path, runs: Iterable[Stored]) -> list[str]:
    """Append the runs' nights, and say of each what was done. Raises EvidenceError where the file can't be written."""
    there = {line.run_id for line in read(path).lines}
    said, lines = [], []
    for run in runs:
        doubt = run.doubted()
        found = [] if doubt or run.run_id in there else list(lines_of(run))
        why = doubt or ("it is there already" if run.run_id in there else "it measured nothing")
        said.append(f"{run.run_id}: {len(found)} lines added" if found else f"{run.run_id}: not added: {why}")
        there.add(run.run_id)
        lines += found
    if lines:
        json_lines.append(path, (line.to_json() for line in lines), _OPTION)
    return said


def lines_of(run: Stored) -> Iterator[Line]:
    """What the ledger keeps of a run: p50 and p99 by window, the longest gap under faults, recovery from each fault."""
    for workload in run.timeline["workloads"]:
        control, *others = run.arms(workload)
        measured = {arm: _measured(run, f"{workload['name']}/{arm}") for arm in (control, *others)}
        for arm, metrics in measured.items():
            for key, (value, unit, n) in sorted(metrics.items()):
                beside = None if arm == control else measured[control].get(key, (None, "", 0))[0]
                yield _line(run, workload["name"], arm, key, value, unit, n, beside)


def _line(
    run: Stored,
    workload: str,
    arm: str,
    key: tuple[str, str],
    value: float | None,
    unit: str,
    n: int,
    beside: float | None,
) -> Line:
    night = date.fromisoformat(str(run.run["started_at"])[:10])
    host, kafka = (run.run.get(part) or {} for part in ("host", "versions"))
    about = host.get("hostname"), kafka.get("kafka"), run.run.get("git")
    return Line(night, run.run_id, run.verdict.plan, workload, arm, *key, value, unit, n, beside, *about)


def _measured(run: Stored, client: str) -> dict[tuple[str, str], tuple[float | None, str, int]]:
    """By (metric, window): value, unit and n."""
    found = {}
    for row in run.analysis["distributions"]:
        side, _, what = row["metric"].partition(".")
        if row["client"] == client and what == "latency" and row["window"] in _WINDOWS:
            for name, (q, needs) in _QUANTILES.items():
                if row["n"] >= needs:
                    found[f"{side}.latency {name}", row["window"]] = _scaled(row["at"].get(q), 1e3), "ms", row["n"]
    for row in run.analysis["gaps"]:
        if row["client"] == client and row["window"] == "fault":
            longest_us = row["longest_us"] if row["n"] else None
            found[row["metric"], "fault"] = _scaled(longest_us, 1e6), "s", row["n"]
    return found | _recoveries(run, client)


def _recoveries(run: Stored, client: str) -> dict[tuple[str, str], tuple[float | None, str, int]]:
    """The slowest of a fault's rounds and blocks."""
    entries = {step["id"]: step.get("entry") or step["id"] for step in run.timeline["steps"]}
    by_entry: dict[str, list[Mapping[str, Any]]] = {}
    for row in run.analysis["recoveries"]:
        if row["client"] == client and row["fault"] in entries:
            by_entry.setdefault(entries[row["fault"]], []).append(row)
    return {("recovery", f"fault/{entry}"): _slowest(rows) for entry, rows in by_entry.items()}


def _slowest(rows: list[Mapping[str, Any]]) -> tuple[float | None, str, int]:
    times_us = [row["recovered_us"] for row in rows]
    slowest_us = None if None in times_us else max(BACK_OFF_US, *times_us)
    return _scaled(slowest_us, 1e6), "s", min(row["n"] for row in rows)


def _scaled(us: float | None, by: float) -> float | None:
    return us / by if us else None


def _parsed(said: dict[str, Any]) -> Line:
    wrong = [name for name in _TEXTS if not isinstance(said[name], str)]
    if wrong or not isinstance(said["n"], int):
        raise ValueError(f"{(wrong or ['n'])[0]} is of the wrong type")
    values = {name: _positive(said, name) for name in ("value", "ratio_to")}
    known: dict[str, Any] = {field.name: said.get(field.name) for field in fields(Line)}
    return Line(**known | values | {"night": date.fromisoformat(said["night"])})


def _positive(said: Mapping[str, Any], name: str) -> float | None:
    value = said[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}, and must be above 0 or null")
    return float(value)
