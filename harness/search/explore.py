"""Search for failures within a time budget, first with the plans of the corpus, then with random plans.

A run starts only if it would end within the budget even with its longest warm-up; the plans of the corpus (known
failures) get half of the budget. Each run adds a line to ``coverage.jsonl`` for each coverage cell (fault kind, role,
phase, workload). A coverage cell is exercised if the fault's witness passed, traffic was exposed to the fault, and
records of the workload were due during the fault; otherwise the line has the reason, so that the search does not retry
the cell for ever.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError, ClusterError, EvidenceError, FaultError, Log, PlanError, WorkloadError
from aftershock.faults.plan.model import Plan
from aftershock.faults.search.coverage import (
    SCHEMA_VERSION,
    Cell,
    CoverageLine,
    Worker,
    can_affect,
    matrix,
    parse_line,
    phase_at,
    role_of,
    tally_cells,
    uncovered_cells,
    workers_of,
)
from aftershock.faults.search.swarm import DrawnPlan, Frame, draw_plan, planned_phase
from aftershock.faults.timeline.timeline import Step, Timeline
from aftershock.harness.run.job import Job, prepare
from aftershock.harness.search import corpus
from aftershock.harness.search.corpus import Corpus, Entry, Origin
from aftershock.results.evidence import files
from aftershock.results.evidence.files import read_json
from aftershock.results.evidence.stored import JudgedRun, read_judged_run
from aftershock.results.model.check import Check, Status, Verdict

LAUNCH_S = 45.0  # three nodes with the wire proxy, images present (measured: 15 s alone, twice that beside Spark)
OVERHEAD_S = 60.0  # before the first measurement, with Spark's start
CLOSING_S = 15.0
_MARGIN = 1.25


def load_s(timeline: Timeline) -> float:
    """Return the longest possible duration of a run's load, up to the last delivery deadline, in seconds."""
    parts = [part for workload in timeline.workloads for part in (workload["produce"], workload.get("commit")) if part]
    deadline_ms = max((part["deadline_ms"] for part in parts), default=0)
    timing = timeline.timing
    return (timing.warmup_max_ms + timing.steady_ms + timeline.length_ms + deadline_ms) / 1000


@dataclass
class Budget:
    """Time budget of a search, from its creation on, which includes ``CLOSING_S`` to remove the cluster.

    ``durations_s`` has the durations of all runs, ``overheads_s`` the duration of each judged run minus its load phase.
    """

    total_s: float
    clock: Callable[[], float]
    durations_s: list[float] = field(default_factory=list)
    overheads_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    @property
    def left_s(self) -> float:
        return self.total_s - CLOSING_S - (self.clock() - self._began_s)

    def needs_s(self, timeline: Timeline) -> float:
        """Return the longest possible duration of a run with this timeline, including the verdict, in seconds."""
        # the first run is not representative, because it starts Spark
        overhead_s = max(self.overheads_s[1:]) * _MARGIN if self.overheads_s[1:] else OVERHEAD_S
        return load_s(timeline) + overhead_s + (0 if self.durations_s else LAUNCH_S)

    def fits(self, timeline: Timeline) -> bool:
        return self.needs_s(timeline) <= self.left_s

    def record(self, took_s: float, loaded_s: float | None) -> None:
        """Record the duration of a finished run, and of its load (``loaded_s``; None for a run without a verdict)."""
        self.durations_s.append(took_s)
        if loaded_s is not None:
            self.overheads_s.append(took_s - loaded_s)

    def more(self) -> int:
        """Estimate from the mean duration of the runs so far how many more runs fit the budget."""
        if not self.durations_s:
            return 0
        return max(0, int(self.left_s * len(self.durations_s) / sum(self.durations_s)))


def format_duration(seconds: float) -> str:
    minutes, remainder = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes} m {remainder:02d} s" if minutes else f"{remainder} s"


Windows = Mapping[str, tuple[float, float]]


def lines_of(
    stored: JudgedRun, plan: Plan, timeline: Timeline, phases: Iterable[Mapping[str, Any]], number: int | None
) -> list[CoverageLine]:
    """Return a line of ``coverage.jsonl`` for each coverage cell of a run; ``phases`` is read from ``phases.json``.

    The ``verdict`` of a coverage cell is FAIL if a gating check of the cell's clients or of the topic's contents
    failed; ``recovered_s`` is the recovery time of the cell's slowest client, or None if a client did not recover.
    """
    windows = {row["fault"]: (row["start_us"] / 1e3, row["end_us"] / 1e3) for row in phases if row["fault"]}
    night, unproven = date.fromisoformat(str(stored.run["started_at"])[:10]), stored.unproven()
    failed = [check for check in stored.verdict.checks if check.gate and check.status in (Status.FAIL, Status.ERROR)]
    due = {(row["metric"], row["client"], row["window"]) for row in stored.analysis["distributions"] if row["n"]}
    lines_by_cell: dict[Cell, CoverageLine] = {}
    for step in timeline.steps:
        for cell, workers in _cells_of(step, plan, timeline, windows):
            had_traffic = any((f"{w.op}.latency", f"{w.workload}/{w.arm}", f"fault/{step.id}") in due for w in workers)
            no_traffic = "" if had_traffic else "the workload sent no record while the fault was in force"
            why = unproven.get(step.id) or no_traffic
            verdict = "FAIL" if any(_concerns(check, worker) for check in failed for worker in workers) else "PASS"
            clients = {f"{worker.workload}/{worker.arm}" for worker in workers}
            times_us = [
                row["recovered_us"]
                for row in stored.analysis["recoveries"]
                if row["fault"] == step.id and row["client"] in clients
            ]
            recovered_s = max(times_us) / 1e6 if times_us and None not in times_us else None
            line = CoverageLine(night, stored.run_id, timeline.seed, number, cell, not why, why, verdict, recovered_s)
            if cell not in lines_by_cell or line.exercised:
                lines_by_cell[cell] = line
    return [*lines_by_cell.values()]


def lines_without_verdict(
    plan: Plan, timeline: Timeline, number: int | None, run_id: str, night: date, why: str
) -> list[CoverageLine]:
    cells = [cell for step in timeline.steps for cell, _ in _cells_of(step, plan, timeline, {})]
    return [
        CoverageLine(night, run_id, timeline.seed, number, cell, exercised=False, why=why, verdict="ERROR")
        for cell in dict.fromkeys(cells)
    ]


def _cells_of(step: Step, plan: Plan, timeline: Timeline, windows: Windows) -> Iterator[tuple[Cell, list[Worker]]]:
    """Yield each coverage cell of the fault in ``step`` with the clients in that cell.

    The phase of the coverage cell is the measured phase of the fault, or the planned phase if the fault never started.
    """
    fault = step.fault()
    if step.id in windows:
        phase = phase_at(windows[step.id][0], [window for fault_id, window in windows.items() if fault_id != step.id])
    else:
        concurrent = [candidate.fault() for candidate in timeline.steps if candidate.id != step.id]
        phase = planned_phase(fault, concurrent, plan.timing)
    by_label: dict[str, list[Worker]] = {}
    for worker in workers_of(plan):
        if can_affect(fault, worker):
            by_label.setdefault(worker.label, []).append(worker)
    for label, workers in by_label.items():
        yield Cell(step.kind, role_of(fault), phase, label), workers


def _concerns(check: Check, worker: Worker) -> bool:
    """True if the subject of a check (``workload=orders arm=a produce``) includes the client."""
    words = check.subject.split()
    attributes = {word.partition("=")[0]: word.partition("=")[2] for word in words if "=" in word}
    same_client = (
        attributes.get("arm", worker.arm) == worker.arm
        and attributes.get("workload", worker.workload) == worker.workload
    )
    return same_client and not {*words} & ({"produce", "consume", "commit"} - {worker.op})


NAME = "coverage.jsonl"
_OPTION = "--out"


@dataclass(frozen=True)
class Ledger:
    """Content of ``coverage.jsonl``, with the readable lines in file order, and a message for each unreadable line."""

    lines: tuple[CoverageLine, ...] = ()
    broken: tuple[str, ...] = ()

    def drawn(self, seed: int) -> int:
        """Return how many runs in ``coverage.jsonl`` have a plan drawn with ``seed``."""
        return len({line.run_id for line in self.lines if line.seed == seed and line.number is not None})


def read(path: Path) -> Ledger:
    lines, broken = files.read_ledger_lines(path, parse_line, SCHEMA_VERSION, "the coverage ledger", _OPTION)
    return Ledger(tuple(lines), tuple(broken))


def append(path: Path, lines: Iterable[CoverageLine]) -> None:
    files.append_ledger_lines(path, (line.to_json() for line in lines), _OPTION)


ERRORS_MAX = 3


@dataclass(frozen=True)
class ExploredRun:
    """Run of a search; ``plan`` is the plan's file in the corpus, if any, ``why`` the reason for a missing verdict."""

    name: str
    seed: int
    status: Status
    failed: tuple[str, ...] = ()
    home: Path | None = None
    plan: Path | None = None
    why: str = ""


@dataclass(frozen=True)
class SearchRequest:
    """Parameters of a search for failures; ``today`` determines which earlier coverage counts as outdated."""

    frame: Frame
    seed: int
    out: Path
    today: date
    allow_exec: bool


@dataclass
class Search:
    """Search for failures; ``run_plan`` runs and judges a plan, and returns the run directory and the verdict."""

    request: SearchRequest
    budget: Budget
    run_plan: Callable[[Job], tuple[Path, Verdict]]
    log: Log
    runs: list[ExploredRun] = field(default_factory=list)

    def go(self, coverage: Ledger, known_failures: Corpus) -> Ledger:
        """Search until the budget is used up, or three runs in a row have no verdict; return the new coverage."""
        half_s = self.budget.left_s / 2
        for entry in known_failures.entries:
            try:
                job = self._job(entry.text, entry.origin.seed)
            except PlanError as error:
                self.log(f"{entry.path}: skipped: {error.problems[0]}")
                continue
            if self.budget.left_s - self.budget.needs_s(job.timeline) < (half_s if self.runs else 0):
                skipped = f"{entry.path.name} and older plans of the corpus are skipped"
                self.log(f"the plans of the corpus have used half of the time budget; {skipped}")
                break
            self.log(f"corpus: {entry.path.name}, which failed {', '.join(entry.origin.failed)}")
            coverage = self._run(entry.text, job, None, coverage, entry)
        # stop after several runs without a verdict in a row, because the likely cause is the host
        while len(self.runs) < ERRORS_MAX or any(run.status is not Status.ERROR for run in self.runs[-ERRORS_MAX:]):
            drawn = _next_plan(self.request, coverage)
            job = self._job(drawn.text, self.request.seed)
            time_left = format_duration(self.budget.left_s)
            needed = format_duration(self.budget.needs_s(job.timeline))
            if not self.budget.fits(job.timeline):
                self.log(f"the search ends: {time_left} of the budget are left, but the next run may take {needed}")
                break
            goal = f"{drawn.goal.fault} on {drawn.goal.role}, {drawn.goal.phase}, for {drawn.goal.workload}"
            left = f"{time_left} of the budget are left"
            if more := self.budget.more():
                left = f"{left}, enough for about {more} more runs"
            self.log(f"{job.timeline.name}: {goal}; the run takes at most {needed}, and {left}")
            coverage = self._run(drawn.text, job, drawn.number, coverage)
        return coverage

    def _job(self, text: str, seed: int) -> Job:
        # without the warnings about a drawn plan, because random plans often cause them
        return prepare(text, (), seed, lambda _: None, allow_exec=self.request.allow_exec)

    def _run(self, text: str, job: Job, number: int | None, coverage: Ledger, entry: Entry | None = None) -> Ledger:
        began_s, loaded_s = self.budget.clock(), None
        try:
            home, verdict = self.run_plan(job)
            phases = read_json(home / "phases.json")
            loaded_s = max(row["end_us"] for row in phases) / 1e6
            lines = lines_of(read_judged_run(home), job.checked.plan, job.timeline, phases, number)
            failed = tuple(dict.fromkeys(check.id for check in verdict.gating if check.status is Status.FAIL))
            path = entry.path if entry else None
            if failed:
                origin = Origin(job.timeline.seed, self.request.today.isoformat(), failed, str(home))
                path = corpus.keep(self.request.out / corpus.NAME, text, origin)
            run = ExploredRun(job.timeline.name, job.timeline.seed, verdict.status, failed, home, path)
        except (PlanError, ClusterError, FaultError, WorkloadError, EvidenceError) as error:
            why = str(error).splitlines()[0]
            run_id = f"none-{job.timeline.seed}-{number}"
            lines = lines_without_verdict(job.checked.plan, job.timeline, number, run_id, self.request.today, why)
            run = ExploredRun(job.timeline.name, job.timeline.seed, Status.ERROR, why=why)
        append(self.request.out / NAME, lines)
        self.budget.record(self.budget.clock() - began_s, loaded_s)
        self.runs.append(run)
        self.log(f"{run.name}: {run.status}{': ' if run.failed or run.why else ''}{', '.join(run.failed) or run.why}")
        return replace(coverage, lines=(*coverage.lines, *lines))


def _next_plan(request: SearchRequest, coverage: Ledger) -> DrawnPlan:
    tallies = tally_cells(coverage.lines, request.today)
    return draw_plan(request.frame, tallies, request.seed, coverage.drawn(request.seed))


def require_budget_for_first_run(request: SearchRequest, coverage: Ledger, budget: Budget) -> None:
    """Raise AftershockError if the time budget of a search is too small for its first run."""
    job = prepare(_next_plan(request, coverage).text, (), request.seed, lambda _: None, allow_exec=request.allow_exec)
    if not budget.fits(job.timeline):
        needs_s = budget.needs_s(job.timeline)
        raise AftershockError(
            f"a budget of {format_duration(budget.total_s)} is too small for the first run, which may take "
            f"{format_duration(needs_s)}: use --budget {int((needs_s + CLOSING_S) // 60) + 1}m or more"
        )


def exit_code(runs: Sequence[ExploredRun]) -> int:
    """Return the exit code of a search, which is 1 if any run failed, else 3 after repeated errors, else 0 or 2.

    Repeated errors means that all runs, or the last three runs, are errors. The exit code is 0 if a run passed, and 2
    if no run passed.
    """
    statuses = [run.status for run in runs]
    if Status.FAIL in statuses:
        return 1
    if set(statuses[-ERRORS_MAX:]) == {Status.ERROR}:
        return 3
    return 0 if Status.PASS in statuses else 2


def text(request: SearchRequest, coverage: Ledger, runs: Sequence[ExploredRun]) -> str:
    cells, tallies = request.frame.cells, tally_cells(coverage.lines, request.today)
    uncovered = uncovered_cells(cells, tallies, request.today)
    exercised = len(cells) - sum(map(len, uncovered.values()))
    by_status = {status: n for status in Status if (n := sum(run.status is status for run in runs))}
    counts = ", ".join(f"{n} {status.value}" for status, n in by_status.items()) or "none"
    uncovered_text = ", ".join(f"{len(group)} {word}" for word, group in uncovered.items())
    lines = [
        matrix(cells, tallies, request.today),
        "",
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: {counts}",
        f"{len(cells)} combinations of fault, role, phase and workload: {exercised} exercised, {uncovered_text}",
    ]
    for run in runs:
        if run.status is Status.FAIL:
            lines.append(f"{run.name} FAILED {', '.join(run.failed)}; evidence: {run.home}")
            lines.append(f"  repeat it with: {repeat_command(request, run)}")
        if run.status is Status.ERROR:
            lines.append(f"{run.name} has no verdict: {run.why}")
        if run.plan and run.status is Status.PASS:
            advice = "remove the file when the cause is fixed"
            lines.append(f"the plan {run.plan}, which failed earlier, passed this time; {advice}")
    return "\n".join(lines)


def document(request: SearchRequest, coverage: Ledger, runs: Sequence[ExploredRun]) -> dict[str, Any]:
    """Return the JSON document that ``aftershock explore --json`` prints."""
    cells = request.frame.cells
    uncovered = uncovered_cells(cells, tally_cells(coverage.lines, request.today), request.today)
    return {
        "schema_version": 1,
        "seed": request.seed,
        "runs": [
            {
                "name": run.name,
                "status": run.status.value,
                "failed": list(run.failed),
                "why": run.why,
                "run": str(run.home) if run.home else None,
                "plan": str(run.plan) if run.plan else None,
            }
            for run in runs
        ],
        "cells": len(cells),
        "never": [dict(cell._asdict()) for cell in uncovered["NEVER"]],
        "stale": [dict(cell._asdict()) for cell in uncovered["STALE"]],
        "broken_lines": list(coverage.broken),
    }


def repeat_command(request: SearchRequest, run: ExploredRun) -> str:
    options = ["--allow-exec"] if request.allow_exec else []
    return shlex.join(["aftershock", "run", str(run.plan), "--seed", str(run.seed), *options])
