"""The nightly ledger (a file with the measured values of nightly runs) and the list of known issues.

**Ledger.** One JSON line per metric and night, in git or any directory; it needs no server, and merges join lines::

    {"schema_version": 1, "night": "2026-11-21", "run_id": "...", "plan": "nightly", "workload": "orders",
     "arm": "kip951", "metric": "produce.latency p99", "window": "fault", "value": 412.5, "unit": "ms", "n": 9600,
     "ratio_to": 1310.0, "host": "ci-2", "kafka": "4.3.1", "git": "4653788"}

A night lasts from noon to noon UTC and is called by the day on which it ends, so that a run at 23:50 and its repetition
at 00:20 are runs of one night, and a nightly run that begins around midnight counts once for each night.

Lines are only appended to the nightly ledger, and a run is added only once. A ``value`` is null if it is censored (a
record failed). ``ratio_to`` is the value of the control arm in the same run, null in a line about the control arm
itself. A line of the nightly ledger that can't be read is reported and skipped.

**Known issues.** ``known-issues.toml`` beside the ledger lists known regressions, each with its last day::

    [[issue]]
    metric = "produce.latency p99*"     # a glob on the metric; "plan" and "arm" are optional globs
    reason = "KAFKA-19999: leaders move twice"
    from = 2026-11-01
    until = 2026-12-15

A known issue excuses a regression that began on or after ``from``, as long as the last night is not after ``until``;
then the issue is reported as expired and has no effect.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.compare.blocks import slowest_recovery
from aftershock.results.evidence import files
from aftershock.results.evidence.stored import JudgedRun

SCHEMA_VERSION = 1
NAME = "ledger.jsonl"
HALF_DAY = timedelta(hours=12)
_OPTION = "--ledger"
_QUANTILES = {"p50": ("0.5", 20), "p99": ("0.99", 1000)}  # the minimum number of records is 10/(1-q)
_TEXTS = ("run_id", "plan", "workload", "arm", "metric", "window", "unit")


@dataclass(frozen=True)
class Line:
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
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self), "night": self.night.isoformat()})


@dataclass(frozen=True)
class Ledger:
    """Lines of the nightly ledger in order of nights, and a sentence for each unreadable line."""

    lines: tuple[Line, ...] = ()
    broken: tuple[str, ...] = ()


def ledger_in(place: Path) -> Path:
    return place / NAME if place.is_dir() else place


def read_ledger(path: Path) -> Ledger:
    """Read the nightly ledger, empty if the file does not exist. Raises EvidenceError if the ledger can't be read."""
    lines, broken = files.read_ledger_lines(path, _line_of, SCHEMA_VERSION, "a ledger", _OPTION)
    return Ledger(tuple(sorted(lines, key=lambda line: (line.night, line.run_id))), tuple(broken))


def add(path: Path, runs: Iterable[JudgedRun]) -> list[str]:
    """Append runs to the nightly ledger; return a sentence per run. Raises EvidenceError if writing it fails."""
    present = {line.run_id for line in read_ledger(path).lines}
    reports, lines = [], []
    for run in runs:
        doubt = run.doubt() or next(iter(run.notes()), None)  # a line could not say that the evidence was changed
        new = [] if doubt or run.run_id in present else list(lines_of(run))
        why = doubt or (
            "the ledger already has this run"
            if run.run_id in present
            else "the run has no measurement that the ledger could record"
        )
        reports.append(f"{run.run_id}: {len(new)} lines added" if new else f"{run.run_id}: not added: {why}")
        present.add(run.run_id)
        lines += new
    if lines:
        files.append_ledger_lines(path, (line.to_json() for line in lines), _OPTION)
    return reports


def night_of(started_at: datetime) -> date:
    """Return the day on which the night of a run ends; a time without a zone is in UTC."""
    in_utc = started_at.astimezone(UTC) if started_at.tzinfo else started_at
    return (in_utc + HALF_DAY).date()


def lines_of(run: JudgedRun) -> Iterator[Line]:
    """Yield the lines of a run for the nightly ledger (p50 and p99 by window, longest gap under faults, recoveries)."""
    files.require_fields(str(run.home / "run.json"), run.run, ("started_at",))
    night = night_of(datetime.fromisoformat(run.run["started_at"]))
    host, versions = (run.run.get(part) or {} for part in ("host", "versions"))
    about = host.get("hostname"), versions.get("kafka"), run.run.get("git")
    for workload in run.timeline["workloads"]:
        control, *others = run.arms(workload)
        values = {arm: _measured(run, f"{workload['name']}/{arm}") for arm in (control, *others)}
        for arm, metrics in values.items():
            for key, (value, unit, n) in sorted(metrics.items()):
                ratio_to = None if arm == control else values[control].get(key, (None, "", 0))[0]
                names = run.run_id, run.verdict.plan, workload["name"], arm
                yield Line(night, *names, *key, value, unit, n, ratio_to, *about)


def _measured(run: JudgedRun, client: str) -> dict[tuple[str, str], tuple[float | None, str, int]]:
    """Map (metric, window) to (value, unit, record count); a recovery is the slowest of a fault's repetitions.

    Recoveries by definition 2 are a series of their own, because those by definition 1 are shorter.
    """

    def scaled(us: float | None, by: float) -> float | None:
        return us / by if us else None

    values: dict[tuple[str, str], tuple[float | None, str, int]] = {}
    for row in run.analysis["distributions"]:
        side, _, kind = row["metric"].partition(".")
        if row["client"] == client and kind == "latency" and row["window"] in ("steady", "fault", "recovery"):
            for name, (q, records_min) in _QUANTILES.items():
                if row["n"] >= records_min:
                    values[f"{side}.latency {name}", row["window"]] = scaled(row["at"].get(q), 1e3), "ms", row["n"]
    for row in run.analysis["gaps"]:
        if row["client"] == client and row["window"] == "fault":
            values[row["metric"], "fault"] = scaled(row["longest_us"] if row["n"] else None, 1e6), "s", row["n"]
    entries = {step["id"]: step.get("entry") or step["id"] for step in run.timeline["steps"]}
    by_entry: dict[str, list[Mapping[str, Any]]] = {}
    for row in run.analysis["recoveries"]:
        if row["client"] == client and row["fault"] in entries:
            by_entry.setdefault(entries[row["fault"]], []).append(row)
    name = "recovery" if run.analysis.get("recovery_definition", 1) == 1 else "lasting recovery"
    for entry, rows in by_entry.items():
        recovery = slowest_recovery(rows)
        values[name, f"fault/{entry}"] = scaled(recovery.value_us, 1e6), "s", recovery.n
    return values


def _line_of(row: dict[str, Any]) -> Line:
    """Parse a line of the nightly ledger. Raises ValueError or KeyError if a field is invalid or missing."""
    invalid = [name for name in _TEXTS if not isinstance(row[name], str)]
    if invalid or not isinstance(row["n"], int):
        raise ValueError(f"{next(iter(invalid), 'n')} is of the wrong type")
    values = {}
    for name in ("value", "ratio_to"):
        value = row[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value < math.inf):
            raise ValueError(f"{name} is {value}, but must be a number above 0 or null")
        values[name] = None if value is None else float(value)
    columns: dict[str, Any] = {field.name: row.get(field.name) for field in fields(Line)}
    return Line(**columns | values | {"night": date.fromisoformat(row["night"])})


KNOWN_ISSUES_FILE = "known-issues.toml"
_GLOBS = ("metric", "plan", "arm")


@dataclass(frozen=True)
class Issue:
    """Known issue that excuses a regression between two days, both inclusive."""

    metric: str
    reason: str
    begin: date
    until: date
    plan: str = "*"
    arm: str = "*"

    def covers(self, plan: str, arm: str, metric: str, changed: date) -> bool:
        pairs = ((plan, self.plan), (arm, self.arm), (metric, self.metric))
        return self.begin <= changed <= self.until and all(fnmatchcase(name, glob) for name, glob in pairs)


def read_known_issues(path: Path) -> tuple[Issue, ...]:
    """Read the known issues; none if the file does not exist. Raises EvidenceError if ``path`` can't be read."""
    if not path.exists():
        return ()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path}: not readable as TOML ({error}); correct the file") from error
    entries = document.get("issue", [])
    if document.keys() - {"issue"} or not isinstance(entries, list):
        raise EvidenceError(f"{path}: a file of known issues may only have [[issue]] tables; correct the file")
    issues = []
    for number, entry in enumerate(entries, 1):
        where = f"{path}: issue {number}"
        unknown = sorted(entry.keys() - {*_GLOBS, "reason", "from", "until"})
        missing = [key for key in ("metric", "reason", "from", "until") if key not in entry]
        if unknown or missing:
            problem = f"{unknown[0]!r} is unknown" if unknown else f"{missing[0]!r} is missing"
            keys = "a known issue must have the keys metric, reason, from and until, and may have plan and arm"
            raise EvidenceError(f"{where}: {problem}; {keys}")
        for key, value in entry.items():
            if type(value) is not (date if key in ("from", "until") else str):
                kind = "a day like 2026-12-15" if key in ("from", "until") else "a string"
                raise EvidenceError(f"{where}: {key!r} must be {kind}; correct the file")
        globs = {key: entry[key] for key in _GLOBS if key in entry}
        issues.append(Issue(**globs, reason=entry["reason"], begin=entry["from"], until=entry["until"]))
    return tuple(issues)
