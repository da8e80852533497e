"""What a run left behind, read once and checked: the only thing that crosses from the live half to the judging half.

Rules: ``run.json`` and ``timeline.json`` must be there, the rest may be missing where the run did not finish; what is
there must be whole. Paths and JSON end here: everybody else gets values. ``expectations.jsonl`` holds what a test asked
of the run besides the plan's own SLOs, one ``{"text", "at"}`` a line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.files import check_parquet, read_json, read_lines, read_object, read_whole_lines
from aftershock.results.slo import SloSyntaxError, parse

ACKS_ALL = ("all", "-1")


@dataclass(frozen=True, order=True)
class Client:
    """One arm of one workload and what its configuration promises; topic and rack are None where it lacks that side.

    ``commits_to`` is the topic whose positions it commits.
    """

    workload: str
    arm: str
    produces_to: str | None
    consumes_from: str | None
    acks_all: bool
    acks: str
    idempotent: bool
    from_latest: bool
    produce_rack: str | None = None
    consume_rack: str | None = None
    commits_to: str | None = None

    @property
    def key(self) -> str:
        """``workload/arm``: how rows name it."""
        return f"{self.workload}/{self.arm}"


@dataclass(frozen=True)
class Phase:
    """A window of the journal's real times: start inclusive, end exclusive, in microseconds of the run."""

    name: str
    fault: str | None
    start_us: int
    end_us: int


@dataclass(frozen=True)
class Objective:
    """The text of one SLO and where it stands: ``demo.yaml:21:5`` in the plan, ``tests/test_x.py:12`` in a test."""

    text: str
    at: str | None


@dataclass(frozen=True)
class Evidence:
    """A run directory's contents. ``parquet`` maps ``outcomes|log|metrics`` to its checked files."""

    home: Path
    run: Mapping[str, Any]
    timeline: Mapping[str, Any]
    clients: tuple[Client, ...]
    producers: Mapping[int, str]
    phases: tuple[Phase, ...]
    objectives: tuple[Objective, ...]
    journal: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]
    parquet: Mapping[str, tuple[Path, ...]]
    manifested: bool

    @property
    def complete(self) -> bool:
        """Whether the run says of itself that it finished."""
        return self.manifested and self.run.get("status") == "complete"

    @property
    def steps(self) -> tuple[Mapping[str, Any], ...]:
        """The faults that the plan asked for, in the timeline's order."""
        return tuple(self.timeline["steps"])

    def window_of(self, fault: str) -> Phase | None:
        """The first window of ``fault``, or None where it never began."""
        return next((phase for phase in self.phases if phase.fault == fault), None)

    def excused(self, topic: str | None, rule: str) -> str | None:
        """The fault, if any, by which the plan itself keeps an integrity rule from holding for a topic.

        Such a fault says so (``roles.permits``): records were deleted, say. One that was not injected excuses nothing.
        """
        done = (line for line in self.journal if line["state"] == "injected" and "why" not in line)
        for line in done:
            targets = line.get("targets") or {}
            if topic in targets.get("topics", ()) and rule in (targets.get("roles") or {}).get("permits", ()):
                return str(line["fault"])
        return None

    def assigned_us(self, arm: str, workload: str) -> tuple[int, ...]:
        """When partitions were assigned to the consumers of an arm, in order."""
        told = (line for line in self.events if line.get("event") == "assigned" and line.get("arm") == arm)
        return tuple(sorted(line["t_us"] for line in told if line.get("workload", workload) == workload))


def read(home: Path, columns: Mapping[str, Mapping[str, str]]) -> Evidence:
    """The evidence in ``home``; ``columns`` gives each table's columns and Spark types. Raises EvidenceError."""
    run, timeline = read_object(home / "run.json"), read_object(home / "timeline.json")
    manifested = (home / "manifest.json").exists()
    names = read_object(home / "manifest.json").get("files", []) if manifested else _found(home)
    _all_there(home, names)
    with _shape(home / "timeline.json"):
        clients = tuple(_client(workload, arm) for workload in timeline["workloads"] for arm in workload["arms"])
        objectives = tuple(Objective(slo["text"], slo.get("at")) for slo in timeline["slo"])
        _ = [step["id"] for step in timeline["steps"]]
    with _shape(home / "run.json"):
        producers = {p["producer_id"]: f"{p['workload']}/{p['arm']}" for p in run.get("producers", [])}
        _ = run["run_id"], run["status"]
    return Evidence(
        home=home,
        run=run,
        timeline=timeline,
        clients=clients,
        producers=producers,
        phases=_phases(home / "phases.json"),
        objectives=(*objectives, *_expectations(home / "expectations.jsonl")),
        journal=_journal(home / "journal.jsonl"),
        events=tuple(read_lines(home / "events.jsonl")),
        parquet={table: _parts(home, names, table, wanted) for table, wanted in columns.items()},
        manifested=manifested,
    )


class _shape:  # noqa: N801 - reads as a statement
    """Turns a missing or mistyped field of a JSON document into an EvidenceError that names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, broken: BaseException | None, _: object) -> None:
        if isinstance(broken, (KeyError, TypeError, ValueError, AttributeError)):
            what = f"field {broken} is missing" if isinstance(broken, KeyError) else str(broken)
            raise EvidenceError(f"{self._path}: {what}; restore the file or run the plan again") from broken


def _found(home: Path) -> list[str]:
    """Without a manifest (the run did not finish) the evidence is whatever is there."""
    return sorted(path.relative_to(home).as_posix() for path in home.glob("[!._]*/[!._]*.parquet"))


def _all_there(home: Path, names: Sequence[str]) -> None:
    for name in names:
        if not (home / name).is_file():
            raise EvidenceError(f"{home / name}: named in the manifest, but missing; restore it or run the plan again")


def _parts(home: Path, names: Sequence[str], table: str, columns: Mapping[str, str]) -> tuple[Path, ...]:
    parts = tuple(home / name for name in sorted(names) if name.startswith(f"{table}/") and name.endswith(".parquet"))
    for part in parts:
        check_parquet(part, columns)
    return parts


def _client(workload: Mapping[str, Any], arm: str) -> Client:
    produce, consume, commit = (workload.get(side) or {} for side in ("produce", "consume", "commit"))
    acks = str(produce.get("acks", "all"))
    return Client(
        workload=workload["name"],
        arm=arm,
        produces_to=produce.get("topic"),
        consumes_from=consume.get("topic"),
        acks_all=acks in ACKS_ALL,
        acks=acks,
        idempotent=bool(produce.get("idempotence", False)),
        from_latest=consume.get("from") == "latest",
        produce_rack=produce.get("rack"),
        consume_rack=consume.get("rack"),
        commits_to=commit.get("topic"),
    )


def _expectations(path: Path) -> list[Objective]:
    """None where no test asked for more. None may be lost: what is not read would not be judged."""
    return [_expectation(f"{path}:{number}", line) for number, line in read_whole_lines(path)]


def _expectation(where: str, line: Mapping[str, Any]) -> Objective:
    text, at = line.get("text"), line.get("at")
    if not isinstance(text, str) or not (at is None or isinstance(at, str)):
        raise EvidenceError(f'{where}: not {{"text": "<SLO>", "at": "<file>:<line>"}}; mend the line')
    try:
        parse(text)
    except SloSyntaxError as broken:
        raise EvidenceError(f"{where}: not an SLO: {broken}; mend the line, and the test that wrote it") from broken
    return Objective(text, at)


def _phases(path: Path) -> tuple[Phase, ...]:
    """None where the run ended before they were cut."""
    if not path.exists():
        return ()
    rows = read_json(path)
    with _shape(path):
        phases = [Phase(row["name"], row["fault"], int(row["start_us"]), int(row["end_us"])) for row in rows]
    return tuple(sorted(phases, key=lambda phase: (phase.start_us, phase.end_us)))


def _journal(path: Path) -> tuple[dict[str, Any], ...]:
    lines = read_lines(path)
    with _shape(path):
        _ = [(line["t_us"], line["fault"], line["state"]) for line in lines]
    return tuple(lines)
