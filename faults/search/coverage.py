"""Coverage of ``explore``, counts of runs that exercised each cell (combination of fault, role, phase and workload).

A run exercises a coverage cell if the fault's witness passed, traffic met the fault, and the workload had records due
while the fault was in force.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, timedelta
from statistics import median
from typing import Any, Literal, NamedTuple

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.model import Plan
from aftershock.faults.sections.services import Pipe
from aftershock.faults.sections.workloads import Commit, Consume, Produce
from aftershock.faults.targets import links, roles
from aftershock.faults.targets.clients import OPS, Op
from aftershock.faults.targets.clients import parse as parse_client

Phase = Literal["steady", "overlapping", "recovering"]
PHASES: tuple[Phase, ...] = ("steady", "overlapping", "recovering")
# Leader returns, group rebalances and back-offs end within it (measured: demo, broker-loss).
RECOVERING_MS = 10_000
STALE_AFTER = timedelta(days=14)
SCHEMA_VERSION = 1

_LISTED_CELLS_MAX = 10
_ROLE_WORDS = {
    roles.Controller: "controller",
    roles.Leader: "leader",
    roles.Replica: "follower",
    roles.Coordinator: "coordinator",
    roles.TransactionCoordinator: "transaction coordinator",
}
_PRODUCER_APIS = {"Produce", "InitProducerId", "AddPartitionsToTxn", "EndTxn"}
_CONSUMER_APIS = {"Fetch", "ListOffsets"}
_GROUP_APIS = {"OffsetCommit", "OffsetFetch", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "FindCoordinator"}


class Cell(NamedTuple):
    """Coverage cell, a combination of fault, role, phase and workload."""

    fault: str  # kind of the fault: ``kill``
    role: str  # target of the fault: ``leader``, ``client link``, ``Produce requests``
    phase: Phase  # when the fault starts: ``steady``, ``overlapping`` another fault, ``recovering`` from another fault
    workload: str  # client, operation and guarantee: ``confluent produce acks=all idempotent``


def phase_at(start_ms: float, windows: Iterable[tuple[float, float]]) -> Phase:
    """Return the phase in which a fault starts at ``start_ms``; ``windows`` has (start, heal) of every other fault."""
    begun = [window for window in windows if window[0] <= start_ms]
    if any(start_ms < end for _, end in begun):
        return "overlapping"
    if any(start_ms < end + RECOVERING_MS for _, end in begun):
        return "recovering"
    return "steady"


@dataclass(frozen=True)
class CoverageLine:
    """Line of the coverage file about one run and one coverage cell.

    ``number`` is the run's number among the runs of ``seed``, so an interrupted search can continue; None if the run
    was not drawn. ``why`` is the reason if the cell was not exercised. ``recovered_s`` has no value if the client's
    recovery was not seen. Example::

        {"schema_version": 1, "night": "2026-11-22", "run_id": "...", "seed": 7, "number": 3, "exercised": true,
         "why": "", "verdict": "PASS", "recovered_s": 3.2, "fault": "kill", "role": "leader", "phase": "overlapping",
         "workload": "confluent produce acks=all idempotent"}
    """

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
        """Return the line of the coverage file as JSON, without a newline."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | {"night": self.night.isoformat()}
        cell = values.pop("cell")._asdict()
        return json.dumps({"schema_version": SCHEMA_VERSION, **values, **cell})


def parse_line(data: dict[str, Any]) -> CoverageLine:
    """Parse a line of the coverage file; raise ValueError or KeyError if the line is invalid."""
    types: dict[str, Any] = dict.fromkeys(("run_id", "fault", "role", "workload", "why", "verdict"), str)
    types |= {"seed": int, "number": int | None, "exercised": bool}
    wrong = [name for name, valid in types.items() if not isinstance(data[name], valid)]
    wrong += ["phase"] if data["phase"] not in PHASES else []
    wrong += ["recovered_s"] if not isinstance(data.get("recovered_s"), float | int | None) else []
    if wrong:
        raise ValueError(f"{wrong[0]} can't be {data[wrong[0]]!r}")
    cell = Cell(*(data[name] for name in Cell._fields))
    values: dict[str, Any] = {field.name: data.get(field.name) for field in fields(CoverageLine)}
    return CoverageLine(**values | {"night": date.fromisoformat(data["night"]), "cell": cell})


def role_of(fault: Fault) -> str:
    """Return the role of a fault in coverage, its most specific target, or ``cluster`` for a fault without a target.

    A broker named by its number, or ``any``, has the role ``broker``, even if the broker is a leader at that moment.
    """
    if fault.effective_exposure_target() == "requests":
        return f"{api_of(fault) or 'all'} requests"
    for text in fault.clients().values():
        return parse_client(text).op or "client"
    for text in fault.links().values():
        selector = links.parse(text)
        return f"{selector.channel if isinstance(selector, links.ToBroker) else 'rack'} link"
    for text in fault.roles().values():
        return _ROLE_WORDS.get(type(roles.parse(text)), "broker")
    return "rack" if fault.racks() else "topic" if fault.topics() else "cluster"


def api_of(fault: Fault) -> str | None:
    """Return the Kafka API to which a fault is limited; None if the fault is not limited to an API."""
    parameters = fault.parameters()
    return parameters.get("api") or next(iter(parameters.get("versions", ())), None)


@dataclass(frozen=True)
class Worker:
    """Client process of a plan, which performs one operation of one arm.

    ``label`` names the client in the coverage matrix; ``grouped`` is True if the client commits offsets.
    """

    workload: str
    arm: str
    op: Op
    topics: tuple[str, ...]
    rack: str
    grouped: bool
    label: str


def workers_of(plan: Plan) -> tuple[Worker, ...]:
    """Return all client processes of a plan, in the order of the plan."""
    workers = []
    for workload in plan.workloads:
        for arm_name, arm in workload.arms.items():
            for op in OPS:
                part: Produce | Consume | Commit | Pipe | None = getattr(workload, op)
                if part is None:
                    continue
                guarantee = ""
                in_group = isinstance(part, Consume | Pipe) and part.group is not None
                if isinstance(part, Produce):
                    guarantee = f" acks={part.acks}{' idempotent' if part.idempotence else ''}"
                elif in_group:
                    guarantee = " in a group"
                rack = part.rack or next(iter(plan.cluster.racks))
                declared = [topic.name for topic in plan.topics]
                topics = (part.topic or declared[0],) if isinstance(part, Commit) else part.topic_names(declared)
                label = f"{arm.client} {op}{guarantee}"
                workers.append(Worker(workload.name, arm_name, op, topics, rack, op == "commit" or in_group, label))
    return tuple(workers)


def can_affect(fault: Fault, worker: Worker) -> bool:
    """Return True if the fault's targets include a client, topic, link or API that the client process uses."""
    clients = [parse_client(text) for text in fault.clients().values()]
    if clients and not any(client.matches(worker.workload, worker.arm, worker.op) for client in clients):
        return False
    topics = fault.topics().values()
    if topics and not set(topics).intersection(worker.topics):
        return False
    # Clients use the links of their own rack. Faults between brokers affect producers, which wait for replicas.
    selectors = [links.parse(text) for text in fault.links().values()]
    client_links = [link for link in selectors if isinstance(link, links.ToBroker) and link.channel == "client"]
    if client_links:
        if not any(link.source in ("*", worker.rack) for link in client_links):
            return False
    elif selectors and worker.op != "produce":
        return False
    api = api_of(fault) if fault.effective_exposure_target() == "requests" else None
    if api in _PRODUCER_APIS or api in _CONSUMER_APIS:
        return worker.op == ("produce" if api in _PRODUCER_APIS else "consume")
    return worker.grouped or api not in _GROUP_APIS


@dataclass(frozen=True)
class Tally:
    """Numbers of past runs for one coverage cell.

    ``exercised`` counts all runs that exercised the cell, and ``fresh`` those in the last ``STALE_AFTER``. ``tried``
    counts the runs in the last ``STALE_AFTER`` that failed to exercise the cell. ``latest`` is the night of the last
    run that exercised the cell.
    """

    exercised: int = 0
    fresh: int = 0
    tried: int = 0
    latest: date | None = None

    def word(self, today: date) -> str:
        """Return the number and age of runs for a coverage cell, as ``NEVER``, ``STALE, 15 d``, or ``3x, 2 d``."""
        if self.latest is None:
            return "NEVER"
        if not self.fresh:
            return f"STALE, {(today - self.latest).days} d"
        return f"{self.exercised}x, {(today - self.latest).days} d"


NO_RUNS = Tally()


def tally_cells(lines: Iterable[CoverageLine], today: date) -> Mapping[Cell, Tally]:
    """Count, for each coverage cell, the runs that the lines of the coverage file record."""
    by_cell: dict[Cell, list[CoverageLine]] = {}
    for line in lines:
        by_cell.setdefault(line.cell, []).append(line)
    tallies = {}
    for cell, runs in by_cell.items():
        nights = [line.night for line in runs if line.exercised]
        fresh = sum(today - night <= STALE_AFTER for night in nights)
        tried = sum(not line.exercised and today - line.night <= STALE_AFTER for line in runs)
        tallies[cell] = Tally(len(nights), fresh, tried, max(nights, default=None))
    return tallies


def matrix(cells: Iterable[Cell], tallies: Mapping[Cell, Tally], today: date) -> str:
    """Return the coverage as text, a line for each fault kind, such as ``kill  follower 2x, 1 d · leader NEVER``."""
    by_fault: dict[str, dict[str, list[Tally]]] = {}
    for cell in sorted(cells):
        by_fault.setdefault(cell.fault, {}).setdefault(cell.role, []).append(tallies.get(cell, NO_RUNS))
    width = max(map(len, by_fault), default=0)
    rows = []
    for fault, by_role in by_fault.items():
        words = []
        for role, of_role in by_role.items():
            latest = max((tally.latest for tally in of_role if tally.latest), default=None)
            exercised, fresh = (sum(getattr(tally, name) for tally in of_role) for name in ("exercised", "fresh"))
            words.append(f"{role} {Tally(exercised, fresh, latest=latest).word(today)}")
        rows.append(f"{fault:<{width}}  {' · '.join(words)}")
    return "\n".join(rows)


def uncovered_cells(cells: Iterable[Cell], tallies: Mapping[Cell, Tally], today: date) -> dict[str, list[Cell]]:
    """Return the uncovered cells; ``NEVER`` lists cells that no run exercised, ``STALE`` cells with only old runs."""
    uncovered: dict[str, list[Cell]] = {"NEVER": [], "STALE": []}
    for cell in sorted(cells):
        word = tallies.get(cell, NO_RUNS).word(today).partition(",")[0]
        if word in uncovered:
            uncovered[word].append(cell)
    return uncovered


def summary(cells: Sequence[Cell], lines: Sequence[CoverageLine], today: date) -> str:
    """Return a night's coverage as a Markdown table of faults and clients, with the uncovered cells.

    The table shows the worst verdict, the median time to recovery and the number of recent runs; ``NEVER`` or ``STALE``
    stand for no recent runs.
    """
    clients = sorted({_client(cell) for cell in cells})
    rows = []
    for fault in dict.fromkeys(cell.fault for cell in sorted(cells)):
        row = [f"`{fault}`"]
        for client in clients:
            exercised = [
                line for line in lines if line.exercised and (line.cell.fault, _client(line.cell)) == (fault, client)
            ]
            fresh = [line for line in exercised if today - line.night <= STALE_AFTER]
            verdict = "FAIL" if any(line.verdict == "FAIL" for line in fresh) else "PASS"
            recovered_s = {line.run_id: line.recovered_s for line in fresh if line.recovered_s is not None}.values()
            if not fresh:
                row.append("STALE" if exercised else "NEVER")
            elif not recovered_s:
                row.append(f"{verdict}, recovery not seen")
            else:
                row.append(f"{verdict}, {median(recovered_s):.1f} s (n={len(recovered_s)})")
        rows.append(row)
    table = [["fault", *clients], ["---"] * (len(clients) + 1), *rows]
    markdown = "".join(f"| {' | '.join(row)} |\n" for row in table)
    sentences = [f"{len(cells)} combinations of fault, role, phase and workload"]
    for word, uncovered in uncovered_cells(cells, tally_cells(lines, today), today).items():
        if uncovered:
            listed = ", ".join(" / ".join(cell) for cell in uncovered[:_LISTED_CELLS_MAX])
            ellipsis = ", …" if len(uncovered) > _LISTED_CELLS_MAX else ""
            sentences.append(f"{len(uncovered)} {word} ({listed}{ellipsis})")
    return f"{markdown}\n{'; '.join(sentences)}.\n"


def _client(cell: Cell) -> str:
    return cell.workload.partition(" ")[0]
