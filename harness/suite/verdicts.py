"""Judging a session's runs together, in one Spark session, and what that makes of each test.

Rules: every finished run gets a verdict or a reason why not, and one run's bad evidence harms no other; runs that a
starved host left undecided are driven once more when all others are judged, and the second verdict is the one that
counts. A test with several runs is as good as its worst.
"""

import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aftershock.errors import AftershockError, EvidenceError
from aftershock.harness.suite.deferred import Outcome
from aftershock.harness.suite.repeat import repeat, starved
from aftershock.harness.suite.session import Entry, Suite
from aftershock.results.check import Status
from aftershock.results.files import read_json
from aftershock.results.judge import Judge
from aftershock.results.report import write as write_report
from aftershock.results.shown import sentence
from aftershock.results.summary import summary
from aftershock.results.verdict import Verdict

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
    with Judge(suite.folder / "spark.log", master, _silent) as judge:
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


def _silent(_: str) -> None:
    """One line for all runs is enough."""
