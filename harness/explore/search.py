"""The search: the corpus first, then plans that are drawn, each where the coverage is thinnest, until time is up.

Rules. What a run has shown is on disk before the next one is drawn, so a search that was interrupted goes on where it
was. A plan that fails goes to the corpus at once. A run that came to no verdict counts as tried; three in a row end the
search, since then it is the host. The corpus has half of the budget at most, or its newest plan what that one takes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Protocol

from aftershock.errors import AftershockError, ClusterError, EvidenceError, FaultError, PlanError, WorkloadError
from aftershock.faults.coverage.tally import tallies
from aftershock.faults.swarm.draw import Drawn, draw
from aftershock.faults.swarm.frame import Frame
from aftershock.harness import corpus
from aftershock.harness.corpus import Corpus, Entry, Found
from aftershock.harness.explore import ledger
from aftershock.harness.explore.budget import CLOSING_S, Budget, shown
from aftershock.harness.explore.exercised import lines_in_vain, lines_of
from aftershock.harness.explore.ledger import Ledger
from aftershock.harness.run import Job, prepare
from aftershock.results.check import Status
from aftershock.results.comparing.stored import stored
from aftershock.results.files import read_json
from aftershock.results.verdict import Verdict

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
        ledger.append(self.asked.out / ledger.NAME, lines)
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
