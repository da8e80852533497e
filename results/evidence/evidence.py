"""The evidence of one run, its documents and Parquet files, which are read once and checked.

The checks know nothing of a run but its evidence. ``run.json`` and
``timeline.json`` must exist; other files may be missing if the run did not finish, but a file that exists must be
complete. A damaged file of the evidence raises an EvidenceError with the full name of the file.

``REQUIRED`` lists the columns that every file of an evidence table has, which are a public contract. No column of an
evidence table is ever removed. A column that was added later (``schema.py`` lists all columns) may be missing in an
older file and is null then.

A ``Source`` gives access to the files of one run by their names in the run directory (``run.json``,
``outcomes/part-0.parquet``). ``Folder`` reads a local run directory; ``results/spark/remote.py`` reads other
filesystems.

``leaders.jsonl`` holds the partitions' leaders, one ``Leadership`` per line; older versions recorded none.
``expectations.jsonl`` holds the objectives (SLOs) that a test added to those of the plan, one ``{"text", "at",
"gate"}`` per line. In ``expectations.jsonl`` ``gate`` is ``verdict``, or ``report`` for an objective that has no effect
on the run's status.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from aftershock.errors import EvidenceError
from aftershock.names import topic_names, worker_names
from aftershock.results.evidence import files, manifest
from aftershock.results.evidence.leadership import Leadership, leaderships
from aftershock.results.evidence.manifest import Digest
from aftershock.results.evidence.phases import Phase, Windows, windows_of
from aftershock.results.slo import Side, Slo, SloSyntaxError, parse

T = TypeVar("T")

SCHEMA_VERSION = files.NEWEST_VERSIONS["run.json"]
"""Newest schema version of ``run.json`` and ``timeline.json`` that can be read."""

RECOVERY_DEFINITION = 2
"""Definition of recovery that new runs are judged by, as docs/SLO.md states it; ``run.json`` records it.

A run without it is judged by definition 1, under which its SLOs were written: the start of the first calm period.
"""

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
    "transactions": (
        *("workload", "arm", "client", "worker", "producer_id", "number", "first_seq", "last_seq"),
        *("transactional_id", "kafka_producer_id", "kafka_epoch", "version", "intended", "outcome", "commit_asked"),
        *("due_us", "begin_us", "sent_us", "asked_us", "done_us", "error"),
    ),
    "batches": (
        *("topic", "topic_id", "partition", "first_offset", "last_offset", "leader_epoch"),
        *("kafka_producer_id", "kafka_epoch", "base_sequence", "transactional", "marker", "coordinator_epoch"),
    ),
}


Part = Path | str
"""A Parquet file for Spark: a path on this host, or a URI of any Hadoop filesystem."""


class Source(ABC):
    @abstractmethod
    def where(self, name: str) -> str:
        """Return the full name of a file of the run, for error messages."""

    @abstractmethod
    def content(self, name: str) -> bytes | None:
        """Return the bytes of a document, or None if the document does not exist."""

    @abstractmethod
    def parquet_names(self) -> list[str]:
        """Return the sorted names of the run's Parquet files, except names that begin with a dot or underscore."""

    @abstractmethod
    def digests(self, names: Collection[str]) -> dict[str, Digest]:
        """Return the digests of files of the run; a file that does not exist is left out."""

    @abstractmethod
    def part(self, name: str, columns: Mapping[str, str], required: Collection[str]) -> Part:
        """Return the path of a Parquet file after a check of its columns (``files.check_columns``)."""

    def json(self, name: str) -> Any:
        """Parse a JSON document of the run. Raises EvidenceError if the document does not exist."""
        content = self.content(name)
        if content is None:
            raise files.missing(self.where(name))
        return files.document(self.where(name), content)

    def object(self, name: str) -> dict[str, Any]:
        return files.as_object(self.where(name), self.json(name))

    def has(self, name: str) -> bool:
        return self.content(name) is not None

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Parse a JSONL document, empty if the document does not exist; an incomplete last line is left out."""
        return files.lines(self.where(name), self.content(name) or b"")

    def whole_lines(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        """Parse a JSONL document into line numbers and objects; an incomplete line raises EvidenceError."""
        return files.whole_lines(self.where(name), self.content(name) or b"")


class Folder(Source):
    def __init__(self, home: Path) -> None:
        self._home = home

    def where(self, name: str) -> str:
        return str(self._home / name)

    def content(self, name: str) -> bytes | None:
        path = self._home / name
        if path.exists() and not path.is_file():  # reading a named pipe would never end
            raise EvidenceError(f"{path}: not a regular file; restore the file or run the plan again")
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EvidenceError(
                f"{self.where(name)}: not readable ({error}); restore the file or run the plan again"
            ) from error

    def parquet_names(self) -> list[str]:
        return sorted(path.relative_to(self._home).as_posix() for path in self._home.glob("[!._]*/[!._]*.parquet"))

    def digests(self, names: Collection[str]) -> dict[str, Digest]:
        return {name: digest for name in names if (digest := manifest.digest_of(self._home / name))}

    def part(self, name: str, columns: Mapping[str, str], required: Collection[str]) -> Part:
        files.check_parquet(self._home / name, columns, required)
        return self._home / name


ACKS_ALL = ("all", "-1")


@dataclass(frozen=True, order=True)
class Pipe:
    """Pipe of a client: a service whose ``members`` read a topic in a ``group`` (empty if unknown) and write another.

    An input has ``outputs_min`` to ``outputs_max`` outputs. A ``transactional`` service promises exactly once.
    """

    reads: str
    writes: str
    group: str
    members: int
    rack: str | None
    outputs_min: int
    outputs_max: int
    transactional: bool = False


@dataclass(frozen=True, order=True)
class Client:
    """Client of a run, which is one arm of one workload, with the guarantees of its configuration.

    A workload that does not produce or consume has no topics and no rack (None) for that operation. ``commits_to`` is
    the topic whose offsets the client commits. Several ``producers``, or ``members`` of the consumer group, are one
    client.
    """

    workload: str
    arm: str
    produces_to: tuple[str, ...]
    consumes_from: tuple[str, ...]
    acks_all: bool
    acks: str
    idempotent: bool
    from_latest: bool
    produce_rack: str | None = None
    consume_rack: str | None = None
    commits_to: str | None = None
    producers: int = 1
    members: int = 1
    pipe: Pipe | None = None

    def workers(self, side: str) -> tuple[str, ...]:
        """Return the names of the client's processes of an operation."""
        members = self.pipe.members if self.pipe else 1
        counts = {"produce": self.producers, "consume": self.members, "pipe": members}
        return worker_names(self.workload, self.arm, side, counts.get(side, 1))

    def wrote(self, event: Mapping[str, Any]) -> bool:
        """Return True if a process of the client wrote an event, which may not name its workload."""
        return event.get("arm") == self.arm and event.get("workload", self.workload) == self.workload

    def reader_of(self, event: Mapping[str, Any]) -> str:
        """Return the name of the client's consumer process that wrote an event."""
        workers = self.workers("consume")
        return workers[0] if len(workers) == 1 else str(event["worker"])

    @property
    def key(self) -> str:
        """Name of the client in measurements and events, of the form ``workload/arm``."""
        return f"{self.workload}/{self.arm}"

    @property
    def topics(self) -> dict[Side, tuple[str, ...]]:
        """Map each operation of the client to its topics; those of the operation pipe are the topics of outputs."""
        topics: dict[Side, tuple[str, ...]] = {
            "produce": self.produces_to,
            "consume": self.consumes_from,
            "commit": () if self.commits_to is None else (self.commits_to,),
            "pipe": (self.pipe.writes,) if self.pipe else (),
        }
        return {side: names for side, names in topics.items() if names}

    def reads_from(self, producer: "Client") -> bool:
        """Return True if records of a producer are due at the client: it consumes a topic of the producer's."""
        return not {*self.consumes_from}.isdisjoint(producer.produces_to)


def listed_once(of_run: "Callable[[Evidence], Iterable[T]]") -> "Callable[[Evidence], Sequence[T]]":
    """Make a function list its results once for each ``Evidence``, as long as that lives."""

    @wraps(of_run)
    def listed(evidence: "Evidence") -> Sequence[T]:
        known, name = vars(evidence), f"{of_run.__module__}.{of_run.__name__}"
        if name not in known:
            known[name] = tuple(of_run(evidence))
        results: Sequence[T] = known[name]
        return results

    return listed


@dataclass(frozen=True)
class Objective:
    """The text of one SLO and its place (``demo.yaml:21:5`` in the plan or ``tests/test_x.py:12`` in a test).

    ``gate`` is False for an SLO that is only reported and has no effect on the run's status. ``advice`` is the plan's
    own advice for the case that the SLO is violated, empty if it has none.
    """

    text: str
    at: str | None
    gate: bool = True
    advice: str = ""

    @cached_property
    def slo(self) -> Slo:
        return parse(self.text)


@dataclass(frozen=True)
class Evidence:
    """Contents of a run directory.

    ``producers`` maps producer ids to client names. ``parquet`` maps a table (``outcomes``, ``log``, …) to its checked
    files. ``home`` is the folder to which the results of judging are written. ``altered`` describes the files that
    differ from the manifest, and are judged nevertheless; ``unverified`` is the reason why changes can't be detected.
    ``leaders`` is None for a run of an older version, which did not record the partitions' leaders.
    """

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
    altered: tuple[str, ...] = ()
    unverified: str | None = None
    leaders: tuple[Leadership, ...] | None = None

    @property
    def complete(self) -> bool:
        """True if the run finished, so that it has a manifest and the status ``complete``."""
        return self.manifested and self.run.get("status") == "complete"

    @property
    def steps(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.timeline["steps"])

    @property
    def recovery_definition(self) -> int:
        """Definition of recovery (1 or 2) that the run is judged by."""
        return int(self.run.get("recovery_definition", 1))

    @property
    def racks(self) -> frozenset[str]:
        """Racks of the brokers; empty if the run recorded no racks."""
        return frozenset(rack for broker in self.run.get("brokers", ()) if (rack := broker.get("rack")) is not None)

    @cached_property
    def windows(self) -> Windows:
        """Intervals of each window in microseconds of the run (``phases.windows_of``)."""
        return windows_of(self.phases)

    @cached_property
    def labels(self) -> dict[str, str]:
        """Names of the clients for readers, by client key."""
        return {client.key: self.subject_of(client) for client in self.clients}

    def clients_of(self, side: Side, arm: str | None) -> list[Client]:
        """Return the clients that produce, consume or commit (``side``), of an arm or (None) of all arms."""
        return [client for client in self.clients if side in client.topics and arm in (None, client.arm)]

    def subject_of(self, client: Client) -> str:
        """Return ``arm=kip951`` as a client's name, after its workload's name if several workloads have such an arm."""
        namesakes = sum(candidate.arm == client.arm for candidate in self.clients)
        return f"arm={client.arm}" if namesakes == 1 else f"workload={client.workload} arm={client.arm}"

    def faults_of(self, name: str) -> tuple[str, ...]:
        """Return the ids of the faults that an SLO names (one fault, or all repetitions of a fault of the plan)."""
        return tuple(step["id"] for step in self.steps if name in (step["id"], step.get("entry")))

    def window_of(self, fault: str) -> Phase | None:
        """Return the first window of ``fault``, or None if the fault never began."""
        return next((phase for phase in self.phases if phase.fault == fault), None)

    def arm_settings(self, client: Client) -> Mapping[str, Any]:
        """Return the settings of the client's arm as written in the plan."""
        return (workload_of(self, client)["arms"][client.arm] or {}).get("settings") or {}


DEADLINE_MS = 30_000
"""Deadline of a record or commit unless the plan gives another."""


def workload_of(evidence: Evidence, client: Client) -> Mapping[str, Any]:
    """Return a client's workload in the timeline; an empty one if the timeline has none of that name."""
    return next((row for row in evidence.timeline["workloads"] if row["name"] == client.workload), {})


def deadline_ms_of(evidence: Evidence, client: Client, side: str) -> int:
    """Return the deadline of a client's records or commits (``side``) in milliseconds."""
    return int((workload_of(evidence, client).get(side) or {}).get("deadline_ms") or DEADLINE_MS)


Trust: TypeAlias = Collection[str] | None
"""The differences from the manifest that a reader accepts (``Evidence.altered``); None accepts any."""


def read(home: Path, columns: Mapping[str, Mapping[str, str]], trust: Trust = ()) -> Evidence:
    """Read the run directory ``home``. ``columns`` maps tables to columns and Spark types. Raises EvidenceError."""
    manifest.refuse_links(home)
    return read_from(Folder(home), home, columns, trust)


def verify(home: Path, trust: Trust) -> None:
    """Raise EvidenceError if the evidence in ``home`` differs from its manifest in more than ``trust``."""
    manifest.refuse_links(home)
    _verified(Folder(home), trust)


@dataclass(frozen=True)
class _Verified:
    """Names of the evidence files of a run that exist, and the result of their comparison with the manifest."""

    names: Sequence[str]
    manifested: bool
    altered: tuple[str, ...] = ()
    unverified: str | None = None


def _verified(source: Source, trust: Trust) -> _Verified:
    parts = [name for name in source.parquet_names() if name.split("/")[0] in manifest.TABLES]
    if not source.has(manifest.NAME):
        # An unfinished run has no manifest; all its existing files count.
        return _Verified(
            files.current_parts(parts),
            manifested=False,
            unverified="without a manifest, because the run did not finish",
        )
    where, document = source.where(manifest.NAME), source.object(manifest.NAME)
    files.require_schema_version(where, document, manifest.SCHEMA_VERSION)
    names = manifest.names_in(where, document)
    expected = manifest.expected_digests(document)
    if expected is None:
        present = [name for name in names if name in parts or (not name.endswith(".parquet") and source.has(name))]
        missing = {f"{name}: {files.MISSING}": name for name in names if name not in present}
        if trust is not None and not missing.keys() <= {*trust}:
            raise files.missing_from_manifest(source.where(next(iter(missing.values()))))
        unverified = "recorded by a version of Aftershock that wrote no digests"
        return _Verified(present, manifested=True, altered=tuple(missing), unverified=unverified)
    found = source.digests({*names, *parts, *manifest.DOCUMENTS, *manifest.OPTIONAL_DOCUMENTS})
    altered = manifest.differences(expected, names, found)
    if trust is not None and not {*altered} <= {*trust}:
        raise manifest.altered_evidence(source.where("").rstrip("/"), altered)
    return _Verified(sorted(found), manifested=True, altered=altered)


def read_from(source: Source, home: Path, columns: Mapping[str, Mapping[str, str]], trust: Trust = ()) -> Evidence:
    """Read the evidence of a run from ``source``; the results of judging are written to ``home``."""
    verified = _verified(source, trust)
    run, timeline = source.object("run.json"), source.object("timeline.json")
    altered = verified.altered
    if run.get("status") == "complete" and not verified.manifested:
        altered = ("manifest.json: missing, although the run is complete",)
        if trust is not None and not {*altered} <= {*trust}:
            raise manifest.altered_evidence(source.where("").rstrip("/"), altered)
    files.require_fields(source.where("timeline.json"), timeline, ("steps", "timing", "workloads"))
    clients = tuple(client_of(workload, arm) for workload in timeline["workloads"] for arm in workload["arms"])
    objectives = tuple(_objective(slo) for slo in timeline.get("slo", ()))
    producers = {p["producer_id"]: f"{p['workload']}/{p['arm']}" for p in run.get("producers", [])}
    if (definition := run.get("recovery_definition", 1)) not in range(1, RECOVERY_DEFINITION + 1):
        why = f"recovery_definition {definition} is unknown to this version"
        raise EvidenceError(f"{source.where('run.json')}: {why}; restore the file or run the plan again")
    journal = source.lines("journal.jsonl")
    files.verify_checksums(source.where("journal.jsonl"), source.content("journal.jsonl") or b"")
    phases = []
    if source.has("phases.json"):  # a run that ended early has none
        rows, where = source.json("phases.json"), source.where("phases.json")
        for row in rows:
            times_us = row["start_us"], row["end_us"]
            phases.append(Phase(row["name"], row["fault"], *times_us, row.get("block", 0), row.get("entry")))
        for phase in phases:
            if phase.end_us < phase.start_us:
                why = f"{phase.fault or phase.name} ends before it begins: the clock went back; run the plan again"
                raise EvidenceError(f"{where}: {why}")
        if difference := _disagreement(phases, journal, timeline, run.get("marks") or {}):
            raise EvidenceError(f"{where}: {difference}; restore the files or run the plan again")
        phases.sort(key=lambda phase: (phase.start_us, phase.end_us))
    expectations = _expectations(source)
    return Evidence(
        home=home,
        run=run,
        timeline=timeline,
        clients=clients,
        producers=producers,
        phases=tuple(phases),
        objectives=(*objectives, *expectations),
        journal=tuple(journal),
        events=tuple(source.lines("events.jsonl")),
        parquet={
            table: tuple(
                source.part(name, types, REQUIRED[table])
                for name in sorted(verified.names)
                if name.startswith(f"{table}/") and name.endswith(".parquet")
            )
            for table, types in columns.items()
        },
        leaders=leaders_in(source),
        manifested=verified.manifested,
        altered=altered,
        unverified=verified.unverified,
    )


def leaders_in(source: Source) -> tuple[Leadership, ...] | None:
    """Read ``leaders.jsonl``; None if the run has none. Raises EvidenceError for a damaged line."""
    content = source.content(manifest.LEADERS)
    return None if content is None else leaderships(source.where(manifest.LEADERS), content)


def require_distinct_ids(runs: Sequence[Evidence]) -> None:
    """Raise EvidenceError if two different runs that are examined together have the same id."""
    homes: dict[str, Path] = {}
    for evidence in runs:
        run_id = str(evidence.run["run_id"])
        first = homes.setdefault(run_id, evidence.home)
        if first != evidence.home:
            raise EvidenceError(
                f"{evidence.home / 'run.json'}: {first / 'run.json'} has the same run_id {run_id!r}; "
                "name only one of the two runs, or restore the file"
            )


def client_of(workload: Mapping[str, Any], arm: str) -> Client:
    produce, consume, commit = (workload.get(side) or {} for side in ("produce", "consume", "commit"))
    acks = str(produce.get("acks", "all"))
    return Client(
        workload=workload["name"],
        arm=arm,
        produces_to=topic_names(produce),
        consumes_from=topic_names(consume),
        acks_all=acks in ACKS_ALL,
        acks=acks,
        idempotent=bool(produce.get("idempotence", False)),
        from_latest=consume.get("from") == "latest",
        produce_rack=produce.get("rack"),
        consume_rack=consume.get("rack"),
        commits_to=commit.get("topic"),
        producers=int(produce.get("producers", 1)),
        members=int(consume.get("members", 1)) + int((consume.get("reserve") or {}).get(arm, 0)),
        pipe=_pipe_of(workload.get("pipe"), arm),
    )


def _pipe_of(pipe: Mapping[str, Any] | None, arm: str) -> Pipe | None:
    if not pipe or arm not in pipe["to"]:
        return None
    outputs = int(pipe["outputs_min"]), int(pipe["outputs_max"])
    group = pipe["groups"].get(arm, "")
    transactional = bool(pipe.get("transactional"))
    members = int(pipe["members"]) + int((pipe.get("reserve") or {}).get(arm, 0))
    return Pipe(pipe["from"], pipe["to"][arm], group, members, pipe.get("rack"), *outputs, transactional)


def _disagreement(
    phases: Sequence[Phase],
    journal: Sequence[Mapping[str, Any]],
    timeline: Mapping[str, Any],
    marks: Mapping[str, int | None],
) -> str | None:
    """Return which phase does not lie where the journal and ``marks`` of ``run.json`` have it; None if all do."""
    times: dict[str, dict[str, int]] = {}
    for line in journal:
        times.setdefault(line["fault"], {})[line["state"]] = line["t_us"]
    brief_us = timeline["timing"]["fault_ms"] * 1000  # the window of a fault that has no end of its own
    for window in (phase for phase in phases if phase.fault is not None):
        states = times.get(str(window.fault), {})
        ends = {states[name] + more for name, more in (("healed", 0), ("injected", brief_us)) if name in states}
        if window.start_us != states.get("intended") or ("healed" in states and window.end_us not in ends):
            return f"the window of {window.fault} is not that of journal.jsonl"
    for name, start, end in (
        ("warmup", "load_start_us", "steady_start_us"),
        ("steady", "steady_start_us", "faults_start_us"),
    ):
        own = marks.get(start), marks.get(end)
        if None not in own and any((p.start_us, p.end_us) != own for p in phases if p.name == name):
            return f"{name} does not lie between the marks of run.json"
    return None


def _expectations(source: Source) -> list[Objective]:
    """Return the objectives (SLOs) that a test added to the plan.

    A damaged line raises EvidenceError, because otherwise its objective would silently not be judged.
    """
    name, objectives = "expectations.jsonl", []
    for number, line in source.whole_lines(name):
        where = f"{source.where(name)}:{number}"
        text, at, gate = line.get("text"), line.get("at"), line.get("gate", "verdict")
        if not isinstance(text, str) or not (at is None or isinstance(at, str)) or gate not in ("verdict", "report"):
            shape = '{"text": "<SLO>", "at": "<file>:<line>", "gate": "verdict" or "report"}'
            raise EvidenceError(f"{where}: the line is not {shape}; correct the line")
        try:
            parse(text)
        except SloSyntaxError as error:
            why = f"{where}: the text is not an SLO: {error}; correct the line, and the test that wrote it"
            raise EvidenceError(why) from error
        objectives.append(_objective(line))
    return objectives


def _objective(line: Mapping[str, Any]) -> Objective:
    return Objective(line["text"], line.get("at"), line.get("gate") != "report", line.get("advice") or "")
