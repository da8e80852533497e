"""A cell of the coverage: which fault struck whom, in what state the cluster was then, and who was sending.

::

    fault      its kind, ``kill``
    role       whom it hit: ``leader``, ``client link``, ``Produce requests`` (`role.py`)
    phase      what it struck into: ``steady``, ``overlapping`` another fault, ``recovering`` from one
    workload   client, operation and promise: ``confluent produce acks=all idempotent`` (`worker.py`)

A cell is exercised by a run in which the fault's witness passed, its exposure shows that traffic met it, and records of
that workload were due while it was in force.

A line of the coverage ledger: what one run did to one cell. Pure.

::

    {"schema_version": 1, "night": "2026-11-22", "run_id": "...", "seed": 7, "number": 3, "exercised": true, "why": "",
     "verdict": "PASS", "recovered_s": 3.2, "fault": "kill", "role": "leader", "phase": "overlapping",
     "workload": "confluent produce acks=all idempotent"}

``number`` is the run's among those drawn from ``seed``, which is how a search goes on where it was interrupted; None:
it was not drawn. ``recovered_s`` is null where the client was not seen to recover.

Whom a fault hits, by its own words: the coordinate ``role`` of a cell.

Rules: what is said most closely decides, in this order: requests of an API, clients, links, a broker's role, a rack, a
topic. A fault that names nobody hits the cluster. A broker by its number, or any, is a ``broker``: whatever roles it
plays then, nobody asked for them.

The clients of a plan, one for each operation of each arm: what they are in a cell, and which faults they meet.

Whether a fault was met at all is the judge's to say (``exposure/…``). Of a fault that was, this says whom it can have
met: a client that neither uses the link, the topic nor the API has exercised nothing.

How often each cell was exercised, and how long ago: what is drawn next hangs on it, and what is reported.

The coverage as text: a line a kind, with each role that it can hit, how often it did and how long ago.

::

    kill      controller NEVER · follower 2x, 1 d · leader 3x, 0 d

The night's matrix: fault x client, how it went and how long recovery took. Markdown, for a step summary.

Of each pair counts what is not stale: the worst verdict, and the median time until the client was calm again with the
number of runs behind it. A pair that was not exercised in these nights says so.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, timedelta
from statistics import median
from typing import Any, Literal, NamedTuple

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.workloads import Consume, Workload
from aftershock.faults.targets import links, roles
from aftershock.faults.targets.clients import OPS, Op
from aftershock.faults.targets.clients import parse as parse_client

Phase = Literal["steady", "overlapping", "recovering"]
PHASES: tuple[Phase, ...] = ("steady", "overlapping", "recovering")
RECOVERING_MS = 10_000  # leaders return, groups settle and back-offs end in it (measured: demo, broker-loss)


class Cell(NamedTuple):
    """The four coordinates."""

    fault: str
    role: str
    phase: Phase
    workload: str


def struck(start_ms: float, others: Iterable[tuple[float, float]]) -> Phase:
    """What a fault strikes into at ``start_ms``; ``others``: when each of the other faults began and was healed."""
    windows = [window for window in others if window[0] <= start_ms]
    if any(start_ms < end for _, end in windows):
        return "overlapping"
    if any(start_ms < end + RECOVERING_MS for _, end in windows):
        return "recovering"
    return "steady"


SCHEMA_VERSION = 1
_TEXTS = ("run_id", "fault", "role", "workload", "why", "verdict")


@dataclass(frozen=True)
class Line:
    """What one run did to one cell. ``why``: what it lacked where it was not exercised."""

    night: date
    run_id: str
    seed: int
    number: int | None
    cell: Cell
    exercised: bool
    why: str
    verdict: str
    recovered_s: float | None = None

    def to_json(self) -> str:
        """The line, without its newline."""
        told = {field.name: getattr(self, field.name) for field in fields(self)} | {"night": self.night.isoformat()}
        cell = told.pop("cell")._asdict()
        return json.dumps({"schema_version": SCHEMA_VERSION, **told, **cell})


def parsed(said: dict[str, Any]) -> Line:
    """The line that a JSON object of this schema is. Raises ValueError or KeyError where it is none."""
    if wrong := list(_wrong(said)):
        raise ValueError(f"{wrong[0]} can't be {said[wrong[0]]!r}")
    cell = Cell(*(said[name] for name in Cell._fields))
    known: dict[str, Any] = {field.name: said.get(field.name) for field in fields(Line)}
    return Line(**known | {"night": date.fromisoformat(said["night"]), "cell": cell})


def _wrong(said: dict[str, Any]) -> Iterable[str]:
    yield from (name for name in _TEXTS if not isinstance(said[name], str))
    yield from (["seed"] if not isinstance(said["seed"], int) else [])
    yield from (["number"] if not isinstance(said["number"], int | None) else [])
    yield from (["exercised"] if not isinstance(said["exercised"], bool) else [])
    yield from (["phase"] if said["phase"] not in PHASES else [])
    yield from (["recovered_s"] if not isinstance(said.get("recovered_s"), float | int | None) else [])


_PLAYED = {
    roles.Controller: "controller",
    roles.Leader: "leader",
    roles.Replica: "follower",
    roles.Coordinator: "coordinator",
}


def role_of(fault: Fault) -> str:
    """The word for it."""
    if fault.meeting() == "requests":
        return f"{api_of(fault) or 'all'} requests"
    for text in fault.clients().values():
        return parse_client(text).op or "client"
    for text in fault.links().values():
        return _link(text)
    for text in fault.roles().values():
        return _PLAYED.get(type(roles.parse(text)), "broker")
    return "rack" if fault.racks() else "topic" if fault.topics() else "cluster"


def api_of(fault: Fault) -> str | None:
    """The API whose requests it is about; None: every one's."""
    said = fault.parameters()
    return said.get("api") or next(iter(said.get("versions", ())), None)


def _link(text: str) -> str:
    selector = links.parse(text)
    return f"{selector.channel if isinstance(selector, links.ToBroker) else 'rack'} link"


_OF_PRODUCERS = {"Produce", "InitProducerId", "AddPartitionsToTxn", "EndTxn"}
_OF_READERS = {"Fetch", "ListOffsets"}
_OF_GROUPS = {"OffsetCommit", "OffsetFetch", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "FindCoordinator"}


@dataclass(frozen=True)
class Worker:
    """One. ``label`` is its coordinate in a cell; ``grouped``: it commits, alone or as the member of a group."""

    workload: str
    arm: str
    op: Op
    topic: str
    rack: str
    grouped: bool
    label: str


def workers_of(plan: Plan) -> tuple[Worker, ...]:
    """All of them, in the order of the plan."""
    return tuple(worker for workload in plan.workloads for worker in _of(workload, plan))


def meets(fault: Fault, worker: Worker) -> bool:
    """Whether a fault can meet it, by the words of both."""
    named = [parse_client(text).takes(worker.workload, worker.arm, worker.op) for text in fault.clients().values()]
    topics = fault.topics().values()
    own = not named or any(named)
    return own and (not topics or worker.topic in topics) and _crosses(fault, worker) and _asks(fault, worker)


def _of(workload: Workload, plan: Plan) -> Iterator[Worker]:
    for arm, said in workload.arms.items():
        for op in OPS:
            if (part := getattr(workload, op)) is not None:
                rack = part.rack or next(iter(plan.cluster.racks))
                topic = part.topic or plan.topics[0].name
                grouped = op == "commit" or (isinstance(part, Consume) and part.group is not None)
                label = f"{said.client} {op}{_promise(workload, op)}"
                yield Worker(workload.name, arm, op, topic, rack, grouped, label)


def _promise(workload: Workload, op: Op) -> str:
    if op == "produce" and workload.produce:
        return f" acks={workload.produce.acks}{' idempotent' if workload.produce.idempotence else ''}"
    return " in a group" if op == "consume" and workload.consume and workload.consume.group else ""


def _crosses(fault: Fault, worker: Worker) -> bool:
    """Clients cross their own rack's links; what is late or lost between brokers is felt by who waits for replicas."""
    selectors = [links.parse(text) for text in fault.links().values()]
    own = [one for one in selectors if isinstance(one, links.ToBroker) and one.channel == "client"]
    if own:
        return any(one.source in ("*", worker.rack) for one in own)
    return not selectors or worker.op == "produce"


def _asks(fault: Fault, worker: Worker) -> bool:
    api = api_of(fault) if fault.meeting() == "requests" else None
    if api in _OF_PRODUCERS:
        return worker.op == "produce"
    if api in _OF_READERS:
        return worker.op == "consume"
    return worker.grouped if api in _OF_GROUPS else True


STALE_AFTER = timedelta(days=14)


@dataclass(frozen=True)
class Tally:
    """Of one cell. ``exercised``: in how many runs, of those that are not stale ``fresh``; ``tried``: in vain."""

    exercised: int = 0
    fresh: int = 0
    tried: int = 0
    latest: date | None = None

    def word(self, today: date) -> str:
        """``NEVER``, ``STALE``, or how often and how long ago: ``3x, 2 d``."""
        if self.latest is None:
            return "NEVER"
        if not self.fresh:
            return f"STALE, {(today - self.latest).days} d"
        return f"{self.exercised}x, {(today - self.latest).days} d"


NOTHING = Tally()


def tallies(lines: Iterable[Line], today: date) -> Mapping[Cell, Tally]:
    """Of every cell that the ledger knows. Attempts in vain count for as long as what was exercised."""
    found: dict[Cell, list[Line]] = {}
    for line in lines:
        found.setdefault(line.cell, []).append(line)
    return {cell: _tally(of_it, today) for cell, of_it in found.items()}


def _tally(lines: list[Line], today: date) -> Tally:
    nights = [line.night for line in lines if line.exercised]
    fresh = sum(today - night <= STALE_AFTER for night in nights)
    tried = sum(not line.exercised and today - line.night <= STALE_AFTER for line in lines)
    return Tally(len(nights), fresh, tried, max(nights, default=None))


def together(tallies: Iterable[Tally]) -> Tally:
    """Of several cells, as one."""
    listed = list(tallies)
    latest = max((each.latest for each in listed if each.latest), default=None)
    exercised, fresh, tried = (sum(getattr(each, name) for each in listed) for name in ("exercised", "fresh", "tried"))
    return Tally(exercised, fresh, tried, latest)


def matrix(cells: Iterable[Cell], tallies: Mapping[Cell, Tally], today: date) -> str:
    """Of all cells that there are, phases and workloads taken together; without a newline at the end."""
    by_fault: dict[str, dict[str, list[Tally]]] = {}
    for cell in sorted(cells):
        by_fault.setdefault(cell.fault, {}).setdefault(cell.role, []).append(tallies.get(cell, NOTHING))
    width = max(map(len, by_fault), default=0)
    return "\n".join(f"{fault:<{width}}  {_row(roles, today)}" for fault, roles in by_fault.items())


def _row(roles: Mapping[str, Sequence[Tally]], today: date) -> str:
    return " · ".join(f"{role} {together(of_it).word(today)}" for role, of_it in roles.items())


def missing(cells: Iterable[Cell], tallies: Mapping[Cell, Tally], today: date) -> dict[str, list[Cell]]:
    """The cells that were never exercised, and those whose evidence is stale: by ``NEVER`` and ``STALE``."""
    found: dict[str, list[Cell]] = {"NEVER": [], "STALE": []}
    for cell in sorted(cells):
        word = tallies.get(cell, NOTHING).word(today).partition(",")[0]
        if word in found:
            found[word].append(cell)
    return found


_SHOWN = 10


def summary(cells: Sequence[Cell], lines: Sequence[Line], today: date) -> str:
    """The matrix of all cells that there are, and which of them lack evidence; a newline at its end."""
    clients = sorted({_client(cell) for cell in cells})
    faults = list(dict.fromkeys(cell.fault for cell in sorted(cells)))
    rows = [[f"`{fault}`", *(_pair(lines, fault, client, today) for client in clients)] for fault in faults]
    table = [["fault", *clients], ["---"] * (len(clients) + 1), *rows]
    drawn = "".join(f"| {' | '.join(row)} |\n" for row in table)
    return f"{drawn}\n{_lacking(cells, lines, today)}"


def _client(cell: Cell) -> str:
    return cell.workload.partition(" ")[0]


def _pair(lines: Iterable[Line], fault: str, client: str, today: date) -> str:
    of_it = [line for line in lines if line.exercised and (line.cell.fault, _client(line.cell)) == (fault, client)]
    fresh = [line for line in of_it if today - line.night <= STALE_AFTER]
    if not fresh:
        return "STALE" if of_it else "NEVER"
    verdict = "FAIL" if any(line.verdict == "FAIL" for line in fresh) else "PASS"
    by_run = {line.run_id: line.recovered_s for line in fresh if line.recovered_s is not None}
    return (
        f"{verdict}, {median(by_run.values()):.1f} s (n={len(by_run)})" if by_run else f"{verdict}, recovery not seen"
    )


def _lacking(cells: Sequence[Cell], lines: Sequence[Line], today: date) -> str:
    found = missing(cells, tallies(lines, today), today)
    told = [f"{len(cells)} cells of fault, role, phase and workload"]
    told += [f"{len(of_it)} {word}{_some(of_it)}" for word, of_it in found.items() if of_it]
    return "; ".join(told) + ".\n"


def _some(cells: Sequence[Cell]) -> str:
    shown = ", ".join(" / ".join(cell) for cell in cells[:_SHOWN])
    return f" ({shown}{', …' if len(cells) > _SHOWN else ''})"
