"""The lines that a judged run adds to the coverage ledger. Pure, of what the run has left.

A cell is exercised if the fault's witness passed, traffic met it, and records of a client of that workload were due in
its window. What was tried and not exercised has a line too, with the reason: a search would try it for ever otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from aftershock.faults.coverage.cell import Cell, struck
from aftershock.faults.coverage.line import Line
from aftershock.faults.coverage.role import role_of
from aftershock.faults.coverage.worker import Worker, meets, workers_of
from aftershock.faults.plan import Plan
from aftershock.faults.swarm.placing import planned
from aftershock.faults.timeline import Step, Timeline
from aftershock.results.check import Check, Status
from aftershock.results.comparing.stored import Stored

Windows = Mapping[str, tuple[float, float]]
_UNMET = "no record of it was due while the fault was in force"


def lines_of(
    stored: Stored, plan: Plan, timeline: Timeline, phases: Iterable[Mapping[str, Any]], number: int | None
) -> list[Line]:
    """A line for each cell that the run's faults and clients make; ``phases``: what ``phases.json`` says."""
    windows = {row["fault"]: (row["start_us"] / 1e3, row["end_us"] / 1e3) for row in phases if row["fault"]}
    night, unproven = date.fromisoformat(str(stored.run["started_at"])[:10]), stored.unproven()
    found: dict[Cell, Line] = {}
    for step in timeline.steps:
        for cell, workers in _cells(step, plan, timeline, windows):
            met = [worker for worker in workers if _due(stored, step.id, worker)]
            why = unproven.get(step.id) or ("" if met else _UNMET)
            verdict = _worst(stored.verdict.checks, workers)
            recovered_s = _recovered_s(stored, step.id, workers)
            line = Line(night, stored.run_id, timeline.seed, number, cell, not why, why, verdict, recovered_s)
            if cell not in found or line.exercised:
                found[cell] = line
    return [*found.values()]


def lines_in_vain(plan: Plan, timeline: Timeline, number: int | None, run_id: str, night: date, why: str) -> list[Line]:
    """The same of a run that came to no verdict."""
    tried = [cell for step in timeline.steps for cell, _ in _cells(step, plan, timeline, {})]
    return [
        Line(night, run_id, timeline.seed, number, cell, exercised=False, why=why, verdict="ERROR")
        for cell in dict.fromkeys(tried)
    ]


def _cells(step: Step, plan: Plan, timeline: Timeline, windows: Windows) -> Iterator[tuple[Cell, list[Worker]]]:
    """The cells of one fault, each with its clients; the phase is the real one, or the plan's where it never began."""
    fault = step.fault()
    if step.id in windows:
        others = [window for other, window in windows.items() if other != step.id]
        phase = struck(windows[step.id][0], others)
    else:
        others_planned = [other.fault() for other in timeline.steps if other.id != step.id]
        phase = planned(fault, others_planned, plan.timing)
    by_label: dict[str, list[Worker]] = {}
    for worker in workers_of(plan):
        if meets(fault, worker):
            by_label.setdefault(worker.label, []).append(worker)
    for label, workers in by_label.items():
        yield Cell(step.kind, role_of(fault), phase, label), workers


def _due(stored: Stored, fault: str, worker: Worker) -> bool:
    key = f"{worker.op}.latency", f"{worker.workload}/{worker.arm}", f"fault/{fault}"
    rows = stored.analysis["distributions"]
    return any(row["n"] for row in rows if (row["metric"], row["client"], row["window"]) == key)


def _worst(checks: Sequence[Check], workers: Sequence[Worker]) -> str:
    """FAIL if a check that gates failed of one of these clients, or of the log that all share."""
    failed = [check for check in checks if check.gate and check.status in (Status.FAIL, Status.ERROR)]
    return "FAIL" if any(_about(check, worker) for check in failed for worker in workers) else "PASS"


def _about(check: Check, worker: Worker) -> bool:
    words = check.subject.split()
    named = {word.partition("=")[0]: word.partition("=")[2] for word in words if "=" in word}
    own = named.get("arm", worker.arm) == worker.arm and named.get("workload", worker.workload) == worker.workload
    return own and not {*words} & ({"produce", "consume", "commit"} - {worker.op})


def _recovered_s(stored: Stored, fault: str, workers: Sequence[Worker]) -> float | None:
    """The slowest of these clients; None where one was not seen to recover, or there was nothing to see."""
    clients = {f"{worker.workload}/{worker.arm}" for worker in workers}
    rows = [row for row in stored.analysis["recoveries"] if row["fault"] == fault and row["client"] in clients]
    times = [row["recovered_us"] for row in rows]
    return max(times) / 1e6 if times and None not in times else None
