"""The columns that every evidence file has: the public contract of design 5.3, by table.

Rules: none is ever taken away; a column that came later (`schema.py` has all) may be missing in an older file, and is
null there.

Where evidence is read from: the documents and the Parquet files of one run, by their names in its directory.

Rules: a name is ``run.json`` or ``outcomes/part-0.parquet``; whoever reads knows no path. What is broken is an
EvidenceError that calls the file by its whole name.

What a run left behind, read once and checked: the only thing that crosses from the live half to the judging half.

Rules: ``run.json`` and ``timeline.json`` must be there, the rest may be missing where the run did not finish; what is
there must be whole. JSON ends here: everybody else gets values; where files lie, ``sources.py`` knows.
``expectations.jsonl`` holds what a test asked of the run besides the plan's own SLOs, one ``{"text", "at", "gate"}`` a
line; ``gate`` is ``verdict``, or ``report`` for what is only watched, as in the timeline.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.evidence import files
from aftershock.results.evidence.files import gone
from aftershock.results.slo import SloSyntaxError, parse

REQUIRED = {
    "outcomes": (
        *("workload", "arm", "client", "op", "producer_id", "seq"),
        *("topic", "topic_id", "partition", "offset", "group", "member"),
        *("leader_epoch", "broker_id", "broker_rack", "client_rack", "high_watermark"),
        *("intended_us", "deadline_us", "sent_us", "done_us", "attempts", "bytes", "status", "error"),
    ),
    "log": ("topic", "topic_id", "partition", "offset", "producer_id", "seq"),
    "metrics": ("t_us", "broker_id", "name", "value"),
    "replicas": (
        *("topic", "topic_id", "partition", "broker_id", "start_offset", "end_offset"),
        *("records", "fingerprint", "error"),
    ),
    "offsets": (
        *("broker_id", "partition", "offset", "batch", "leader_epoch", "transactional"),
        *("group", "topic", "topic_partition", "committed"),
    ),
}


Part = Path | str
"""A Parquet file as Spark is told of it: a path here, or a URI of any Hadoop filesystem."""


class Source(ABC):
    """One run's evidence. What lies elsewhere than in a folder is read in ``results/spark/remote.py``."""

    @abstractmethod
    def where(self, name: str) -> str:
        """The whole name of a file, for people."""

    @abstractmethod
    def content(self, name: str) -> bytes | None:
        """A document's bytes, None where there is none."""

    @abstractmethod
    def found(self) -> list[str]:
        """The names of all Parquet files, in order; drafts, which begin with a dot or an underscore, are none."""

    @abstractmethod
    def part(self, name: str, columns: Mapping[str, str], required: Collection[str]) -> Part:
        """The Parquet file of that name, its columns checked (``files.check_columns``)."""

    def json(self, name: str) -> Any:
        """A document that must be there."""
        content = self.content(name)
        if content is None:
            raise files.missing(self.where(name))
        return files.document(self.where(name), content)

    def object(self, name: str) -> dict[str, Any]:
        """A document that must be there, and an object."""
        return files.as_object(self.where(name), self.json(name))

    def has(self, name: str) -> bool:
        """Whether there is such a document."""
        return self.content(name) is not None

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The lines of a JSONL document, none where there is no document; a torn last line is left out."""
        return files.lines(self.where(name), self.content(name) or b"")

    def whole_lines(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        """The lines of a JSONL document with their numbers; a torn one is an error."""
        return files.whole_lines(self.where(name), self.content(name) or b"")


class Folder(Source):
    """A run directory on this host."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def where(self, name: str) -> str:
        """Its path."""
        return str(self._home / name)

    def content(self, name: str) -> bytes | None:
        """The file's bytes."""
        try:
            return (self._home / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as broken:
            why = f"{self.where(name)}: not readable ({broken}); restore the file or run the plan again"
            raise EvidenceError(why) from broken

    def found(self) -> list[str]:
        """By looking into the folders."""
        return sorted(path.relative_to(self._home).as_posix() for path in self._home.glob("[!._]*/[!._]*.parquet"))

    def part(self, name: str, columns: Mapping[str, str], required: Collection[str]) -> Part:
        """Checked by its footer."""
        files.check_parquet(self._home / name, columns, required)
        return self._home / name


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
    """A window of the journal's real times: start inclusive, end exclusive, in microseconds of the run.

    ``block`` counts from 1 and is 0 for what is in none; ``entry`` is the fault's id in the plan, before any round or
    block was added to it.
    """

    name: str
    fault: str | None
    start_us: int
    end_us: int
    block: int = 0
    entry: str | None = None


@dataclass(frozen=True)
class Objective:
    """The text of one SLO and where it stands: ``demo.yaml:21:5`` in the plan, ``tests/test_x.py:12`` in a test.

    ``gate``: whether the run's status hangs on it, or it is only watched.
    """

    text: str
    at: str | None
    gate: bool = True


@dataclass(frozen=True)
class Evidence:
    """A run directory's contents. ``parquet`` maps a table (``outcomes``, ``log``, …) to its checked files."""

    home: Path
    run: Mapping[str, Any]
    timeline: Mapping[str, Any]
    clients: tuple[Client, ...]
    producers: Mapping[int, str]
    phases: tuple[Phase, ...]
    objectives: tuple[Objective, ...]
    journal: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]
    parquet: Mapping[str, tuple[Part, ...]]
    manifested: bool

    @property
    def complete(self) -> bool:
        """Whether the run says of itself that it finished."""
        return self.manifested and self.run.get("status") == "complete"

    @property
    def steps(self) -> tuple[Mapping[str, Any], ...]:
        """The faults that the plan asked for, in the timeline's order."""
        return tuple(self.timeline["steps"])

    @property
    def racks(self) -> frozenset[str]:
        """Where the brokers stand, as far as they say."""
        return _racks(self.run)

    def faults_of(self, name: str) -> tuple[str, ...]:
        """The steps that a fault's name in an SLO stands for: one, or every round and block of a plan's fault."""
        return tuple(step["id"] for step in self.steps if name in (step["id"], step.get("entry")))

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

    def arm_settings(self, client: Client) -> Mapping[str, Any]:
        """The settings of its arm, as the plan has them."""
        workload = next(one for one in self.timeline["workloads"] if one["name"] == client.workload)
        return (workload["arms"][client.arm] or {}).get("settings") or {}

    def assigned_us(self, arm: str, workload: str) -> tuple[int, ...]:
        """When partitions were assigned to the consumers of an arm, in order."""
        told = (line for line in self.events if line.get("event") == "assigned" and line.get("arm") == arm)
        return tuple(sorted(line["t_us"] for line in told if line.get("workload", workload) == workload))


def _racks(run: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(rack for broker in run.get("brokers", ()) if (rack := broker.get("rack")) is not None)


def read(home: Path, columns: Mapping[str, Mapping[str, str]]) -> Evidence:
    """The evidence in ``home``; ``columns`` gives each table's columns and Spark types. Raises EvidenceError."""
    return read_from(Folder(home), home, columns)


def read_from(source: Source, home: Path, columns: Mapping[str, Mapping[str, str]]) -> Evidence:
    """The evidence in ``source``, as ``read``; ``home`` is where its results belong."""
    run, timeline = source.object("run.json"), source.object("timeline.json")
    manifested = source.has("manifest.json")
    with _shape(source.where("timeline.json")):
        clients = tuple(_client(workload, arm) for workload in timeline["workloads"] for arm in workload["arms"])
        objectives = tuple(_objective(slo) for slo in timeline["slo"])
        _ = [step["id"] for step in timeline["steps"]]
    with _shape(source.where("run.json")):
        producers = {p["producer_id"]: f"{p['workload']}/{p['arm']}" for p in run.get("producers", [])}
        _ = run["run_id"], run["status"], _racks(run)
    return Evidence(
        home=home,
        run=run,
        timeline=timeline,
        clients=clients,
        producers=producers,
        phases=_phases(source),
        objectives=(*objectives, *_expectations(source)),
        journal=_journal(source),
        events=tuple(source.lines("events.jsonl")),
        parquet=_parquet(source, columns, manifested=manifested),
        manifested=manifested,
    )


def told_apart(runs: Sequence[Evidence]) -> None:
    """Raises EvidenceError where two runs that are looked at together have one id."""
    homes: dict[str, Path] = {}
    for one in runs:
        before = homes.setdefault(str(one.run["run_id"]), one.home)
        if before != one.home:
            told = f"{one.home / 'run.json'}: run_id {one.run['run_id']!r} is that of {before / 'run.json'} too"
            raise EvidenceError(f"{told}; look at one of them, or restore the file")


class _shape:  # noqa: N801 - reads as a statement
    """Turns a missing or mistyped field of a JSON document into an EvidenceError that names the file."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, broken: BaseException | None, _: object) -> None:
        if isinstance(broken, (KeyError, TypeError, ValueError, AttributeError)):
            what = f"field {broken} is missing" if isinstance(broken, KeyError) else str(broken)
            raise EvidenceError(f"{self._where}: {what}; restore the file or run the plan again") from broken


def _parquet(
    source: Source, columns: Mapping[str, Mapping[str, str]], *, manifested: bool
) -> dict[str, tuple[Part, ...]]:
    """The files that the manifest names; without one (the run did not finish) the evidence is whatever is there."""
    there = source.found()
    names = list(map(str, source.object("manifest.json").get("files", []))) if manifested else there
    for name in names:
        if name not in there and not source.has(name):
            raise gone(source.where(name))
    return {
        table: tuple(source.part(name, wanted, REQUIRED[table]) for name in _of_table(names, table))
        for table, wanted in columns.items()
    }


def _of_table(names: Sequence[str], table: str) -> list[str]:
    return [name for name in sorted(names) if name.startswith(f"{table}/") and name.endswith(".parquet")]


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


def _expectations(source: Source) -> list[Objective]:
    """None where no test asked for more. None may be lost: what is not read would not be judged."""
    name = "expectations.jsonl"
    return [_expectation(f"{source.where(name)}:{number}", line) for number, line in source.whole_lines(name)]


def _expectation(where: str, line: Mapping[str, Any]) -> Objective:
    text, at = line.get("text"), line.get("at")
    gate = line.get("gate", "verdict")
    if not isinstance(text, str) or not (at is None or isinstance(at, str)) or gate not in ("verdict", "report"):
        shape = '{"text": "<SLO>", "at": "<file>:<line>", "gate": "verdict" or "report"}'
        raise EvidenceError(f"{where}: not {shape}; mend the line")
    try:
        parse(text)
    except SloSyntaxError as broken:
        raise EvidenceError(f"{where}: not an SLO: {broken}; mend the line, and the test that wrote it") from broken
    return _objective(line)


def _objective(line: Mapping[str, Any]) -> Objective:
    return Objective(line["text"], line.get("at"), line.get("gate") != "report")


def _phases(source: Source) -> tuple[Phase, ...]:
    """None where the run ended before they were cut."""
    if not source.has("phases.json"):
        return ()
    rows, where = source.json("phases.json"), source.where("phases.json")
    with _shape(where):
        phases = [_phase(row) for row in rows]
    for phase in phases:
        if phase.end_us < phase.start_us:
            name = phase.fault or phase.name
            raise EvidenceError(f"{where}: {name} ends before it begins: the clock went back; run the plan again")
    return tuple(sorted(phases, key=lambda phase: (phase.start_us, phase.end_us)))


def _phase(row: Mapping[str, Any]) -> Phase:
    name, fault, start_us, end_us = (row[field] for field in ("name", "fault", "start_us", "end_us"))
    return Phase(name, fault, int(start_us), int(end_us), int(row.get("block", 0)), row.get("entry"))


def _journal(source: Source) -> tuple[dict[str, Any], ...]:
    lines = source.lines("journal.jsonl")
    with _shape(source.where("journal.jsonl")):
        _ = [(line["t_us"], line["fault"], line["state"]) for line in lines]
    return tuple(lines)
