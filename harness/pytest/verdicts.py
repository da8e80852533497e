"""Driving a run once more because the host, not the cluster, left it undecided.

Rules: never after a FAIL, and never where a count of records is open: what was lost is not to be rolled for again. What
is repeated is the *run*, from its evidence (plan, seed, expectations), alone on the host; the test's Python is not.

Judging a session's runs together, in one Spark session, and what that makes of each test.

Rules: every finished run gets a verdict or a reason why not, and one run's bad evidence harms no other; runs that a
starved host left undecided are driven once more when all others are judged, and the second verdict is the one that
counts. A test with several runs is as good as its worst.
"""

import shutil
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from aftershock.errors import AftershockError, EvidenceError
from aftershock.harness.pytest import leased_run
from aftershock.harness.pytest.chaos import EXPECTATIONS, beginning
from aftershock.harness.pytest.reports import Outcome
from aftershock.harness.pytest.session import Entry, Suite
from aftershock.harness.run.run import prepare
from aftershock.results.checks.check import Check, Status, Verdict
from aftershock.results.evidence.files import read_json
from aftershock.results.judge import Judge
from aftershock.results.report.page import write_report
from aftershock.results.report.verdict_formats import summary
from aftershock.results.text import sentence

_STARVED = ("harness/host", "harness/generator", "harness/generator-commit")
_FOLLOWS = ("harness/warmup",)  # latency does not settle on a host that is starved


def starved(verdict: Verdict) -> bool:
    """Whether nothing but a starved host, or the load generator that it starved, left a run undecided."""
    undecided = [check for check in verdict.gating if check.status is not Status.PASS]
    return any(map(_starvation, undecided)) and all(map(_by_the_host, undecided))


def _starvation(check: Check) -> bool:
    """Seen, and not just unseen: a host watched for too short a time would be again."""
    return check.id in _STARVED and check.n >= check.minimum


def _by_the_host(check: Check) -> bool:
    """Left open by the host's trouble and nothing else; a broken count of records never is."""
    measured = check.kind in ("slo", "compare") and check.why.startswith(_STARVED)
    return check.status is Status.INCONCLUSIVE and (_starvation(check) or check.id in _FOLLOWS or measured)


def repeat(home: Path, entry: Entry, suite: Suite) -> Path:
    """Drive the run in ``home`` again, with the host to itself; gives the new run's directory.

    Raises what driving a run raises.
    """
    facts = read_json(home / "run.json")
    job = prepare(home / "plan.yaml", (), facts["seed"], _silent, rehearse=facts["rehearse"], allow_exec=True)
    begin = beginning(suite, entry.test, job, f"--aftershock-seed={facts['seed']}", repeats=entry.run_id)
    quiet = Console(quiet=True)  # no test is there to be shown it with
    again = leased_run.drive(leased_run.Errand(job, "latency", suite, entry.test, begin, quiet))
    again.tell(plan_file=facts.get("plan_file"))
    if (home / EXPECTATIONS).exists():
        shutil.copy(home / EXPECTATIONS, again.path)
        again.seal()
    return again.path


def _silent(_: str) -> None:
    """What the first run said of the plan need not be said again."""


Say = Callable[[str], None]


@dataclass(frozen=True)
class Judged:
    """A run and its verdict. ``why``: the reason where there is none. ``again``: the run that was driven in its place.

    ``note`` is said besides: that it could not be repeated, say.
    """

    home: Path
    verdict: Verdict | None = None
    why: str = ""
    again: "Judged | None" = None
    note: str = ""

    @property
    def counts(self) -> "Judged":
        """The one whose verdict counts."""
        return self.again or self

    @property
    def status(self) -> Status:
        """The verdict's; a run that could not be judged is an ERROR."""
        return self.verdict.status if self.verdict else Status.ERROR

    @property
    def sentence(self) -> str:
        """The verdict in one line, or why there is none."""
        return sentence(self.verdict) if self.verdict else f"not judged: {self.why}".split("\n")[0]

    @property
    def text(self) -> str:
        """All that a test's failure should tell: the repetition, the verdict's summary, and where the report is."""
        told = [f"{self.home.name} was {self.status}: the host was starved.\n{self.again.text}"] if self.again else []
        if not self.again and self.verdict:
            told = [summary(self.verdict).rstrip("\n"), f"report: {self.home / 'report.html'}"]
        elif not self.again:
            told = [f"{self.home.name} was not judged: {self.why}", f"run: {self.home}"]
        return "\n".join([*told, *([self.note] if self.note else [])])


def judge_all(suite: Suite, master: str | None, say: Say, repeatable: Collection[str]) -> Iterator[tuple[str, Judged]]:
    """Every run of the session by its id, judged in one go; one that was driven again a second time, with the other.

    ``repeatable``: the ids of those that may be, since a test waits for their verdict.
    """
    entries = suite.entries()
    say(f"aftershock: judging {len(entries)} {'run' if len(entries) == 1 else 'runs'}")
    with Judge(suite.folder / "spark.log", master, _silent_verdicts) as judge:
        judged = list(zip(entries, _together([suite.out / entry.run_id for entry in entries], judge), strict=True))
        yield from ((entry.run_id, one) for entry, one in judged)
        for entry, first in judged:
            if entry.run_id in repeatable and first.verdict and starved(first.verdict):
                say(f"aftershock: {entry.test}: the host was starved; repeating {entry.run_id} alone")
                second = _again(first, entry, suite, judge)
                yield entry.run_id, second
                if second.again:
                    yield second.again.home.name, second.again


def outcome_of(runs: Sequence[Judged]) -> Outcome:
    """What the verdicts on its runs make of a test."""
    counting = [run.counts for run in runs]
    worst = max(counting, key=lambda run: run.status.severity)
    return Outcome(worst.status.value, worst.sentence, "\n\n".join(run.text for run in runs))


def unjudged(home: Path) -> Judged:
    """A run that nobody came to judge; its evidence waits."""
    why = _unfinished(home) or f"the session was interrupted; judge it with: aftershock verdict {home}"
    return Judged(home, why=why)


def _together(homes: Sequence[Path], judge: Judge) -> list[Judged]:
    """The runs in order. What is ours to mend may hang on one of them alone: then each is judged by itself."""
    reasons = {home: _unfinished(home) for home in homes}
    finished = [home for home in homes if not reasons[home]]
    try:
        found = judge.many(finished)
    except Exception as error:  # noqa: BLE001 - ours to mend; but the reports that wait for this must be let go
        return [_alone(home, judge) for home in homes] if len(homes) > 1 else [_broken(home, error) for home in homes]
    return [_told(home, found[home]) if home in found else Judged(home, why=reasons[home]) for home in homes]


def _alone(home: Path, judge: Judge) -> Judged:
    return _together([home], judge)[0]


def _told(home: Path, found: Verdict | EvidenceError) -> Judged:
    """With its report, where there is a verdict to report."""
    if isinstance(found, EvidenceError):
        return Judged(home, why=str(found))
    try:
        write_report(home)
    except AftershockError as error:
        return Judged(home, why=str(error))
    except Exception as error:  # noqa: BLE001 - as above
        return _broken(home, error)
    return Judged(home, found)


def _broken(home: Path, error: Exception) -> Judged:
    return Judged(home, why=f"{error!r}\n{''.join(traceback.format_exception(error))}")


def _again(first: Judged, entry: Entry, suite: Suite, judge: Judge) -> Judged:
    try:
        home = repeat(first.home, entry, suite)
    except AftershockError as error:
        return replace(first, note=f"it could not be repeated: {error}")
    return replace(first, again=_alone(home, judge))


def _unfinished(home: Path) -> str:
    """Why a run has nothing to be judged, "" if it has."""
    try:
        run = read_json(home / "run.json")
    except AftershockError as error:
        return str(error)
    if run.get("status") == "complete":
        return ""
    if run.get("status") == "running":
        return "the process that drove it died"
    return str(run.get("why") or f"it is {run.get('status')}")


def _silent_verdicts(_: str) -> None:
    """One line for all runs is enough."""
