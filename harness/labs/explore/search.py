"""What a run may take at most, and whether it fits into what is left of a budget. Pure: the clock is a parameter.

::

    launch (once) ─ warm-up ─ steady ─ faults, recovery ─ last deadline ─ beside: log, restore, verdict

Rules: a run is begun only if it would be over in time even if its warm-up took all it may; what lies beside the load is
guessed at first, and then is what was seen, with a margin.

The lines that a judged run adds to the coverage ledger. Pure, of what the run has left.

A cell is exercised if the fault's witness passed, traffic met it, and records of a client of that workload were due in
its window. What was tried and not exercised has a line too, with the reason: a search would try it for ever otherwise.

The coverage ledger, ``coverage.jsonl``: one JSON line a cell and run (``faults/search/coverage.py``); no server.

Rules: those of ``results/evidence/files.py``; all lines of a run are added at once.

The search: the corpus first, then plans that are drawn, each where the coverage is thinnest, until time is up.

Rules. What a run has shown is on disk before the next one is drawn, so a search that was interrupted goes on where it
was. A plan that fails goes to the corpus at once. A run that came to no verdict counts as tried; three in a row end the
search, since then it is the host. The corpus has half of the budget at most, or its newest plan what that one takes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Protocol

from aftershock.errors import AftershockError, ClusterError, EvidenceError, FaultError, PlanError, WorkloadError
from aftershock.faults.plan.model import Plan
from aftershock.faults.search.coverage import (
    SCHEMA_VERSION,
    Cell,
    Line,
    Worker,
    meets,
    parsed,
    role_of,
    struck,
    tallies,
    workers_of,
)
from aftershock.faults.search.swarm import Drawn, Frame, draw, planned
from aftershock.faults.timeline.timeline import Step, Timeline
from aftershock.harness.labs import corpus
from aftershock.harness.labs.corpus import Corpus, Entry, Found
from aftershock.harness.run.run import Job, prepare
from aftershock.results.checks.check import Check, Status, Verdict
from aftershock.results.evidence import files
from aftershock.results.evidence.files import read_json
from aftershock.results.evidence.stored import Stored, stored

LAUNCH_S = (
    45.0  # a cluster of three with the wire proxy, its images here (measured: 15 s alone, twice that beside Spark)
)
BESIDE_S = 60.0  # before any was seen: with Spark's start
CLOSING_S = 15.0
_MARGIN = 1.25


def load_s(timeline: Timeline) -> float:
    """How long clients may be busy with a plan: to the last delivery deadline."""
    parts = [part for workload in timeline.workloads for part in (workload["produce"], workload.get("commit")) if part]
    deadline_ms = max((part["deadline_ms"] for part in parts), default=0)
    timing = timeline.timing
    return (timing.warmup_max_ms + timing.steady_ms + timeline.length_ms + deadline_ms) / 1000


@dataclass
class Budget:
    """``total_s`` seconds from when it is made, on ``clock``, less what it takes to put the cluster away.

    ``took``: what each run took in all; ``beside``: of that, what lay beside its load, of those that came to a verdict.
    """

    total_s: float
    clock: Callable[[], float]
    took: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    @property
    def left_s(self) -> float:
        """What is left for runs."""
        return self.total_s - CLOSING_S - (self.clock() - self._began_s)

    def needs_s(self, timeline: Timeline) -> float:
        """What a plan may take from now to its verdict."""
        return load_s(timeline) + self._beside_s() + (0 if self.took else LAUNCH_S)

    def fits(self, timeline: Timeline) -> bool:
        """Whether it would be over in time."""
        return self.needs_s(timeline) <= self.left_s

    def seen(self, took_s: float, loaded_s: float | None) -> None:
        """A run is over; ``loaded_s``: how long its clients were busy, None where it came to no verdict."""
        self.took.append(took_s)
        if loaded_s is not None:
            self.beside.append(took_s - loaded_s)

    def more(self) -> int:
        """How many runs there is still room for, if they take what those before did on average."""
        if not self.took:
            return 0
        return max(0, int(self.left_s * len(self.took) / sum(self.took)))

    def _beside_s(self) -> float:
        """What lies beside the load, by the worst run but the first, which paid for the launch and Spark's start."""
        return max(self.beside[1:]) * _MARGIN if self.beside[1:] else BESIDE_S


def shown(seconds: float) -> str:
    """``12 m 10 s``."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes} m {rest:02d} s" if minutes else f"{rest} s"


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


NAME = "coverage.jsonl"
_OPTION = "--out"


@dataclass(frozen=True)
class Ledger:
    """What could be read, in the order of the file, and a sentence for each line that could not."""

    lines: tuple[Line, ...] = ()
    broken: tuple[str, ...] = ()

    def drawn(self, seed: int) -> int:
        """How many runs of a seed it has: the number of the next one."""
        return len({line.run_id for line in self.lines if line.seed == seed and line.number is not None})


def read(path: Path) -> Ledger:
    """The ledger; an empty one where there is no file yet. Raises EvidenceError where the file can't be read."""
    lines, broken = files.read(path, parsed, SCHEMA_VERSION, "the coverage ledger", _OPTION)
    return Ledger(tuple(lines), tuple(broken))


def append(path: Path, lines: Iterable[Line]) -> None:
    """Add a run's lines, in one write. Raises EvidenceError where that can't be done."""
    files.append(path, (line.to_json() for line in lines), _OPTION)


ERRORS_MAX = 3
Say = Callable[[str], None]


class Runs(Protocol):
    """What runs a plan and judges it: a ``Stage``."""

    def run(self, job: Job) -> tuple[Path, Verdict]:
        """The run directory, and the verdict."""


@dataclass(frozen=True)
class Ran:
    """One run. ``plan``: its file in the corpus, if it is in there; ``why``: why it came to no verdict."""

    name: str
    seed: int
    status: Status
    failed: tuple[str, ...] = ()
    home: Path | None = None
    plan: Path | None = None
    why: str = ""


@dataclass(frozen=True)
class Asked:
    """What to search with. ``today``: the night that staleness is counted from."""

    frame: Frame
    seed: int
    out: Path
    today: date
    allow_exec: bool


@dataclass
class Search:
    """A search in ``asked.out``, with time to spend and somewhere to run. ``ran``: what it has run so far."""

    asked: Asked
    budget: Budget
    stage: Runs
    say: Say
    ran: list[Ran] = field(default_factory=list)

    def go(self, read: Ledger, known: Corpus) -> Ledger:
        """Search until the budget is used up; the ledger afterwards."""
        read = self._corpus(read, known)
        while not self._hopeless():
            drawn = next_of(self.asked, read)
            job = self._job(drawn.text, self.asked.seed)
            if not self.budget.fits(job.timeline):
                left = shown(self.budget.left_s)
                self.say(f"{left} are left, and the next run may take {self._needs(job)}: that is it")
                break
            self.say(self._eta(drawn, job))
            read = self._run(drawn.text, job, drawn.number, read)
        return read

    def _corpus(self, read: Ledger, known: Corpus) -> Ledger:
        half_s = self.budget.left_s / 2
        for entry, job in self._jobs(known):
            rest_s = self.budget.left_s - self.budget.needs_s(job.timeline)
            if rest_s < (half_s if self.ran else 0):
                self.say(f"the corpus has had its half of the budget; {entry.path.name} and what is older wait")
                break
            self.say(f"corpus: {entry.path.name}, which failed {', '.join(entry.found.failed)}")
            read = self._run(entry.text, job, None, read, entry)
        return read

    def _jobs(self, known: Corpus) -> Iterator[tuple[Entry, Job]]:
        for entry in known.entries:
            try:
                yield entry, self._job(entry.text, entry.found.seed)
            except PlanError as wrong:
                self.say(f"{entry.path}: skipped: {wrong.problems[0]}")

    def _job(self, text: str, seed: int) -> Job:
        return prepare(text, (), seed, _nothing, allow_exec=self.asked.allow_exec)

    def _run(self, text: str, job: Job, number: int | None, read: Ledger, entry: Entry | None = None) -> Ledger:
        began_s, loaded_s = self.budget.clock(), None
        try:
            home, verdict = self.stage.run(job)
            phases = read_json(home / "phases.json")
            loaded_s = max(row["end_us"] for row in phases) / 1e6
            lines = lines_of(stored(home), job.checked.plan, job.timeline, phases, number)
            ran = self._judged(text, job, home, verdict, entry)
        except (PlanError, ClusterError, FaultError, WorkloadError, EvidenceError) as error:
            why = str(error).splitlines()[0]
            run_id = f"none-{job.timeline.seed}-{number}"
            lines = lines_in_vain(job.checked.plan, job.timeline, number, run_id, self.asked.today, why)
            ran = Ran(job.timeline.name, job.timeline.seed, Status.ERROR, why=why)
        append(self.asked.out / NAME, lines)
        self.budget.seen(self.budget.clock() - began_s, loaded_s)
        self.ran.append(ran)
        self.say(f"{ran.name}: {ran.status}{': ' if ran.failed or ran.why else ''}{', '.join(ran.failed) or ran.why}")
        return replace(read, lines=(*read.lines, *lines))

    def _judged(self, text: str, job: Job, home: Path, verdict: Verdict, entry: Entry | None) -> Ran:
        failed = tuple(dict.fromkeys(check.id for check in verdict.gating if check.status is Status.FAIL))
        ran = Ran(job.timeline.name, job.timeline.seed, verdict.status, failed, home, entry.path if entry else None)
        if not failed:
            return ran
        found = Found(job.timeline.seed, self.asked.today.isoformat(), failed, str(home))
        return replace(ran, plan=corpus.keep(self.asked.out / corpus.NAME, text, found))

    def _eta(self, drawn: Drawn, job: Job) -> str:
        more = self.budget.more()
        room = f", room for about {more} more" if more else ""
        goal = f"{drawn.goal.fault} on {drawn.goal.role}, {drawn.goal.phase}, for {drawn.goal.workload}"
        return f"{job.timeline.name}: {goal}; {self._needs(job)} at most of {shown(self.budget.left_s)} left{room}"

    def _needs(self, job: Job) -> str:
        return shown(self.budget.needs_s(job.timeline))

    def _hopeless(self) -> bool:
        last = self.ran[-ERRORS_MAX:]
        return len(last) == ERRORS_MAX and all(ran.status is Status.ERROR for ran in last)


def next_of(asked: Asked, read: Ledger) -> Drawn:
    """The next plan of the seed."""
    return draw(asked.frame, tallies(read.lines, asked.today), asked.seed, read.drawn(asked.seed))


def first_fits(asked: Asked, read: Ledger, budget: Budget) -> None:
    """AftershockError where the budget would not pay for the first run."""
    job = prepare(next_of(asked, read).text, (), asked.seed, _nothing, allow_exec=asked.allow_exec)
    if not budget.fits(job.timeline):
        minutes = int((budget.needs_s(job.timeline) + CLOSING_S) // 60) + 1
        what = f"a budget of {shown(budget.total_s)} is too small for the first run"
        raise AftershockError(
            f"{what}, which may take {shown(budget.needs_s(job.timeline))}: give --budget {minutes}m or more"
        )


def _nothing(_: str) -> None:
    """A drawn plan's warnings (it is a grey failure, say) are no news to anybody."""
