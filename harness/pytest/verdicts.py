"""Verdicts of a pytest session's runs, judged together in one Spark session, and the outcomes of the tests.

A run that is undecided only because its host was starved of CPU is repeated once, alone on the host, with the same
plan, and the second verdict decides. A run with a FAIL or an undecided count of records is never repeated, because the
repetition could hide a loss. The worst verdict of a test's runs decides the outcome of the test.
"""

import shutil
import traceback
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from aftershock.errors import AftershockError, EvidenceError, Log
from aftershock.harness.pytest.chaos import EXPECTATIONS, run_starter
from aftershock.harness.pytest.reports import Outcome
from aftershock.harness.run import run as running
from aftershock.harness.run.job import prepare
from aftershock.harness.run.session import Entry, Suite
from aftershock.results.evidence.files import read_json
from aftershock.results.judge import Judge
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.model.text import sentence
from aftershock.results.report.page import write_report
from aftershock.results.report.verdict_formats import summary

_HOST_CHECKS = ("harness/host", "harness/generator", "harness/generator-commit")
_CONSEQUENCES = ("harness/warmup",)  # latency does not settle on a starved host


@dataclass(frozen=True)
class RunVerdict:
    """Result of judging a test's run; a run that was not judged has no ``verdict``, and the reason in ``why``.

    ``repetition`` is the result of repeating the run, ``note`` a remark on the run, for example that the run could not
    be repeated.
    """

    home: Path
    verdict: Verdict | None = None
    why: str = ""
    repetition: "RunVerdict | None" = None
    note: str = ""

    @property
    def final(self) -> "RunVerdict":
        """The result of the repetition if the run was repeated, otherwise the result of the run itself."""
        return self.repetition or self

    @property
    def status(self) -> Status:
        return self.verdict.status if self.verdict else Status.ERROR

    @property
    def sentence(self) -> str:
        return sentence(self.verdict) if self.verdict else f"not judged: {self.why}".split("\n")[0]

    @property
    def text(self) -> str:
        """Text that pytest prints for a failed test, with a summary of the final verdict and the report's path."""
        if self.repetition:
            lines = [
                f"{self.home.name} was {self.status}, because the host was starved of CPU.\n{self.repetition.text}"
            ]
        elif self.verdict:
            lines = [summary(self.verdict).rstrip("\n"), f"report: {self.home / 'report.html'}"]
        else:
            lines = [f"{self.home.name} was not judged: {self.why}", f"run: {self.home}"]
        return "\n".join([*lines, *([self.note] if self.note else [])])


def judge_all(
    suite: Suite, master: str | None, log: Log, repeatable: Collection[str]
) -> Iterator[tuple[str, RunVerdict]]:
    """Judge all runs of the session together; yield each run's id and result, and again if the run was repeated.

    ``repeatable`` has the ids of the runs that may be repeated, because their tests still wait for a verdict.
    """
    entries = suite.entries()
    log(f"aftershock: judging {len(entries)} {'run' if len(entries) == 1 else 'runs'}")
    with Judge(suite.folder / "spark.log", master, lambda _: None) as judge:  # one line for all runs is logged above
        verdicts = list(zip(entries, _judge_runs([suite.out / entry.run_id for entry in entries], judge), strict=True))
        yield from ((entry.run_id, run) for entry, run in verdicts)
        for entry, run in verdicts:
            if entry.run_id in repeatable and run.verdict and host_starved(run.verdict):
                log(
                    f"aftershock: {entry.test}: the host was starved of CPU; repeating {entry.run_id} alone on the host"
                )
                try:
                    home = repeat(run.home, entry, suite)
                except AftershockError as error:
                    yield entry.run_id, replace(run, note=f"the run could not be repeated: {error}")
                    continue
                (repetition,) = _judge_runs([home], judge)
                yield entry.run_id, replace(run, repetition=repetition)
                yield repetition.home.name, repetition


def host_starved(verdict: Verdict) -> bool:
    """True if a run is undecided only because its host or load generator was starved of CPU."""

    def proves_shortage(check: Check) -> bool:
        # a check with too few samples proves nothing, and a repetition would have too few samples again
        return check.id in _HOST_CHECKS and check.n >= check.minimum

    def caused_by_host(check: Check) -> bool:
        measured = check.kind in ("slo", "compare") and check.why.startswith(_HOST_CHECKS)
        return check.status is Status.INCONCLUSIVE and (proves_shortage(check) or check.id in _CONSEQUENCES or measured)

    undecided = [check for check in verdict.gating if check.status is not Status.PASS]
    return any(map(proves_shortage, undecided)) and all(map(caused_by_host, undecided))


def repeat(home: Path, entry: Entry, suite: Suite) -> Path:
    """Repeat the run in the run directory ``home``, alone on the host; return the run directory of the repetition.

    Raises the same errors as `run.drive_leased`.
    """
    facts = read_json(home / "run.json")
    job = prepare(home / "plan.yaml", (), facts["seed"], lambda _: None, rehearse=facts["rehearse"], allow_exec=True)
    begin = run_starter(suite, entry.test, job, f"--aftershock-seed={facts['seed']}", repeats=entry.run_id)
    quiet = Console(quiet=True)  # the test has ended, so pytest does not capture the progress
    repetition = running.drive_leased(job, "latency", suite, entry.test, begin, quiet)
    repetition.update(plan_file=facts.get("plan_file"))
    if (home / EXPECTATIONS).exists():
        shutil.copy(home / EXPECTATIONS, repetition.path)
    repetition.seal()
    return repetition.path


def outcome_of(runs: Sequence[RunVerdict]) -> Outcome:
    worst = max((run.final for run in runs), key=lambda run: run.status.severity)
    return Outcome(worst.status.value, worst.sentence, "\n\n".join(run.text for run in runs))


def without_verdict(home: Path) -> RunVerdict:
    advice = f"judge the run with: aftershock verdict {home}"
    why = _unfinished(home) or f"the pytest session was interrupted; {advice}"
    return RunVerdict(home, why=why)


def _judge_runs(homes: Sequence[Path], judge: Judge) -> list[RunVerdict]:
    """Judge runs together; if an unexpected error stops the judge, judge each run by itself."""
    reasons = {home: _unfinished(home) for home in homes}
    try:
        results = judge.many([home for home in homes if not reasons[home]])
    except Exception as error:  # noqa: BLE001 - a bug of ours; the held test reports must still be released
        if len(homes) > 1:
            return [run for home in homes for run in _judge_runs([home], judge)]
        return [_crashed(home, error) for home in homes]
    verdicts = []
    for home in homes:
        result = results.get(home)
        if result is None:
            verdicts.append(RunVerdict(home, why=reasons[home]))
        elif isinstance(result, EvidenceError):
            verdicts.append(RunVerdict(home, why=str(result)))
        else:
            try:
                write_report(home)
                verdicts.append(RunVerdict(home, result))
            except AftershockError as error:
                verdicts.append(RunVerdict(home, why=str(error)))
            except Exception as error:  # noqa: BLE001 - as above
                verdicts.append(_crashed(home, error))
    return verdicts


def _crashed(home: Path, error: Exception) -> RunVerdict:
    return RunVerdict(home, why=f"{error!r}\n{''.join(traceback.format_exception(error))}")


def _unfinished(home: Path) -> str:
    """Return the reason why the run in ``home`` can't be judged; "" for a complete run."""
    try:
        facts = read_json(home / "run.json")
    except AftershockError as error:
        return str(error)
    if facts.get("status") == "complete":
        return ""
    if facts.get("status") == "running":
        return "the process that drove the run died"
    return str(facts.get("why") or f"the run's status is {facts.get('status')}")
