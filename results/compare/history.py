"""The nightly ledger: one JSON line a metric a night, in git or any directory; no server, and merges join lines.

::

    {"schema_version": 1, "night": "2026-11-21", "run_id": "...", "plan": "nightly", "workload": "orders",
     "arm": "kip951", "metric": "produce.latency p99", "window": "fault", "value": 412.5, "unit": "ms", "n": 9600,
     "ratio_to": 1310.0, "host": "ci-2", "kafka": "4.3.1", "git": "4653788"}

Rules: lines are only appended, and a run that is there already is not added again. ``value`` is null where it was
slower than any (censored); ``ratio_to`` is the control arm's value of the same run, null for the control itself. A line
that can't be read is named and left out; the others count.

Regressions that are known, each with the day on which that ends: ``known-issues.toml`` beside the ledger.

::

    [[issue]]
    metric = "produce.latency p99*"     # a glob on the metric; "plan" and "arm" likewise, where only some are meant
    reason = "KAFKA-19999: leaders move twice"
    from = 2026-11-01
    until = 2026-12-15

Rules: an issue excuses what changed from ``from`` on, as long as the last night is not past ``until``; after that it
excuses nothing, and is named as expired.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.compare.blocks import BACK_OFF_US
from aftershock.results.evidence import files
from aftershock.results.evidence.stored import JudgedRun

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


def read_ledger(path: Path) -> Ledger:
    """The ledger; an empty one where there is no file yet. Raises EvidenceError where the file can't be read."""
    lines, broken = files.read_ledger_lines(path, _parsed, SCHEMA_VERSION, "a ledger", _OPTION)
    return Ledger(tuple(sorted(lines, key=lambda line: (line.night, line.run_id))), tuple(broken))


def add(path: Path, runs: Iterable[JudgedRun]) -> list[str]:
    """Append the runs' nights, and say of each what was done. Raises EvidenceError where the file can't be written."""
    there = {line.run_id for line in read_ledger(path).lines}
    said, lines = [], []
    for run in runs:
        doubt = run.doubt()
        found = [] if doubt or run.run_id in there else list(lines_of(run))
        why = doubt or ("it is there already" if run.run_id in there else "it measured nothing")
        said.append(f"{run.run_id}: {len(found)} lines added" if found else f"{run.run_id}: not added: {why}")
        there.add(run.run_id)
        lines += found
    if lines:
        files.append_ledger_lines(path, (line.to_json() for line in lines), _OPTION)
    return said


def lines_of(run: JudgedRun) -> Iterator[Line]:
    """What the ledger keeps of a run: p50 and p99 by window, the longest gap under faults, recovery from each fault."""
    for workload in run.timeline["workloads"]:
        control, *others = run.arms(workload)
        measured = {arm: _measured(run, f"{workload['name']}/{arm}") for arm in (control, *others)}
        for arm, metrics in measured.items():
            for key, (value, unit, n) in sorted(metrics.items()):
                beside = None if arm == control else measured[control].get(key, (None, "", 0))[0]
                yield _line(run, workload["name"], arm, key, value, unit, n, beside)


def _line(
    run: JudgedRun,
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


def _measured(run: JudgedRun, client: str) -> dict[tuple[str, str], tuple[float | None, str, int]]:
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


def _recoveries(run: JudgedRun, client: str) -> dict[tuple[str, str], tuple[float | None, str, int]]:
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


KNOWN_ISSUES_FILE = "known-issues.toml"
_GLOBS = ("metric", "plan", "arm")


@dataclass(frozen=True)
class Issue:
    """One known issue; the days are inclusive."""

    metric: str
    reason: str
    begin: date
    until: date
    plan: str = "*"
    arm: str = "*"

    def covers(self, plan: str, arm: str, metric: str, changed: date) -> bool:
        """Whether it speaks of a change of that night."""
        said = ((plan, self.plan), (arm, self.arm), (metric, self.metric))
        return self.begin <= changed <= self.until and all(fnmatchcase(name, glob) for name, glob in said)

    def expired(self, last: date) -> bool:
        """Whether it excuses nothing any more."""
        return last > self.until


def read_known_issues(path: Path) -> tuple[Issue, ...]:
    """The issues; none where there is no file. Raises EvidenceError where it is damaged, for an excuse must be sure."""
    if not path.exists():
        return ()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as broken:
        raise EvidenceError(f"{path}: not readable as TOML ({broken}); mend it") from broken
    entries = document.get("issue", [])
    if document.keys() - {"issue"} or not isinstance(entries, list):
        raise EvidenceError(f"{path}: only [[issue]] tables belong here; mend it")
    return tuple(_issue(path, number, entry) for number, entry in enumerate(entries, 1))


def _issue(path: Path, number: int, entry: dict[str, Any]) -> Issue:
    where = f"{path}: issue {number}"
    unknown = sorted(entry.keys() - {*_GLOBS, "reason", "from", "until"})
    missing = [key for key in ("metric", "reason", "from", "until") if key not in entry]
    if unknown or missing:
        what = f"{unknown[0]!r} is unknown" if unknown else f"{missing[0]!r} is missing"
        raise EvidenceError(f"{where}: {what}; it has metric, reason, from and until, and may have plan and arm")
    for key, value in entry.items():
        if type(value) is not (date if key in ("from", "until") else str):
            raise EvidenceError(
                f"{where}: {key!r} must be a {'day like 2026-12-15' if key in ('from', 'until') else 'text'}"
            )
    globs = {key: entry[key] for key in _GLOBS if key in entry}
    return Issue(**globs, reason=entry["reason"], begin=entry["from"], until=entry["until"])
