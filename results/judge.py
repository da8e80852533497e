"""Judge of run directories, which reads a run's evidence, measures it with Spark, judges it and writes the results.

A judged run directory contains, besides the evidence:

====================  ==================================================
``verdict.json``      the checks and the run's status
``analysis.json``     the measurements from which the reports are drawn
``junit.xml``         the checks for a CI system
``silver/``           latency histograms, for queries
``gold/``             the checks as a table, for queries
====================  ==================================================

Judging needs no running cluster. The same evidence gives the same verdict, no matter which runs are judged together.
Invalid evidence of a run raises EvidenceError, if possible before Spark starts, and affects no other run.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aftershock.errors import EvidenceError
from aftershock.results.checks.answers import answers
from aftershock.results.checks.backoff import backoff_checks
from aftershock.results.checks.deadline import deadline_checks
from aftershock.results.checks.died import death_checks
from aftershock.results.checks.doubts import NO_DOUBTS, Doubts, left_out, suspects_of, unproven_faults
from aftershock.results.checks.harness import harness_checks
from aftershock.results.checks.integrity import integrity_checks, integrity_results
from aftershock.results.checks.progress import obligation_checks
from aftershock.results.checks.slo.checks import slo_checks, wanted
from aftershock.results.checks.stable_offset import stable_offset_checks
from aftershock.results.checks.stuck import stuck_checks
from aftershock.results.checks.witness import fault_checks
from aftershock.results.evidence.absences import Absence, unplanned_absences
from aftershock.results.evidence.evidence import Evidence, Trust, read
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.phases import RUN
from aftershock.results.evidence.services import notes_on_services
from aftershock.results.evidence.stored import AUTHORS_VERDICT, analysis_document
from aftershock.results.measure.layers import write_gold, write_silver
from aftershock.results.measure.measure import measure
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.model.facts import Facts, MeasurementRequest
from aftershock.results.report import verdict_formats
from aftershock.results.spark.conf import UNKNOWN, Load, load_of
from aftershock.results.spark.remote import read_at
from aftershock.results.spark.session import JVM_LOST, LOCAL_SPARK, SAIL, master_of, reason, session
from aftershock.results.spark.tables import columns

Log = Callable[[str], None]
Judgement = Verdict | EvidenceError


class Judge:
    """Judge of runs that shares a Spark session: ``with Judge(spark_log, None, log) as judge: judge(run_dir)``.

    The Spark session starts with the first run and ends with the ``with`` block. After a failure of Spark the next run
    gets a new Spark session. ``master`` is Spark's URL (None means the default of ``spark/session.py``). If
    ``exhaustive`` is True, every record is examined individually. If ``trust`` is True, evidence that differs from its
    manifest is judged, and the verdict says so. If ``strict`` is True, a run whose clients owed progress for too little
    of the time is INCONCLUSIVE.
    """

    def __init__(
        self,
        spark_log: Path,
        master: str | None,
        log: Log,
        *,
        exhaustive: bool = False,
        trust: bool = False,
        strict: bool = False,
    ) -> None:
        self._spark_log, self._master, self._log, self._exhaustive = spark_log, master, log, exhaustive
        self._trust: Trust = None if trust else ()
        self._strict = strict
        self._resources = ExitStack()
        self._spark: SparkSession | None = None
        self._starting: Future[SparkSession] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.__exit__(kind, error, traceback)

    def prepare(self, run_dir: Path) -> None:
        """Start the Spark session in a thread, sized for the run in ``run_dir``, while the caller does other work."""

        def start() -> SparkSession:
            return self._started(load_of(run_dir.glob("*/*.parquet")))

        self._starting = self._resources.enter_context(ThreadPoolExecutor(1)).submit(start)

    def __call__(self, run_dir: Path) -> Verdict:
        """Judge the run in ``run_dir`` and write the results to that directory.

        Raises EvidenceError if the evidence is missing, truncated or has the wrong columns.
        """
        return _verdict_or_raise(self.many([run_dir])[run_dir])

    def judge_evidence(self, evidence: Evidence) -> Verdict:
        """Judge evidence and write the results to its ``home``. Raises EvidenceError if the evidence is invalid."""
        self._log_altered(evidence)
        return _verdict_or_raise(self._judge_together([evidence])[0])

    def many(self, run_dirs: Iterable[Path]) -> dict[Path, Judgement]:
        """Judge several runs with one set of Spark queries; return the verdict or the error of each run."""
        judgements: dict[Path, Judgement] = {}
        readable: dict[Path, Evidence] = {}
        homes: dict[str, list[Path]] = {}
        for run_dir in dict.fromkeys(run_dirs):
            try:
                evidence = readable[run_dir] = read(run_dir, columns(), self._trust)
            except EvidenceError as error:
                judgements[run_dir] = error
            else:
                self._log_altered(evidence)
                homes.setdefault(str(evidence.run["run_id"]), []).append(run_dir)
        for run_id, same in homes.items():
            if len(same) > 1:  # the records of two runs with one id can't be distinguished
                paths = " and ".join(map(str, same))
                judgements |= dict.fromkeys(
                    same,
                    EvidenceError(
                        f"{paths}: both directories hold run {run_id!r}; judge only one of the two directories"
                    ),
                )
        whole = {run_dir: evidence for run_dir, evidence in readable.items() if run_dir not in judgements}
        return judgements | dict(zip(whole, self._judge_together(list(whole.values())), strict=True))

    def _log_altered(self, evidence: Evidence) -> None:
        for difference in evidence.altered:
            self._log(f"{evidence.home}: judged as it is: {difference}")
        if evidence.unverified:
            self._log(f"{evidence.home}: {evidence.unverified}: changes to the evidence can't be detected")

    @property
    def spark(self) -> SparkSession:
        """Spark session, started if necessary, with memory for evidence of unknown size."""
        return self._session(UNKNOWN)

    def _judge_together(self, runs: Sequence[Evidence]) -> list[Judgement]:
        """Judge runs with the same Spark queries. If Spark fails on several runs, each half is judged again."""
        if not runs:
            return []
        try:
            spark = self._session(load_of(part for run in runs for parts in run.parquet.values() for part in parts))
            self._log("judging: measuring")
            return [*judge_in(spark, runs, exhaustive=self._exhaustive, strict=self._strict)]
        except EvidenceError as error:
            cause = error
        except (PySparkException, *JVM_LOST) as error:
            cause = EvidenceError(
                f"{runs[0].home}: Spark could not read the evidence: {reason(error)}; see {self._spark_log}"
            )
            self._spark = None  # the JVM may not have survived the failure
            self._resources.close()
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            if not any(run.altered or run.unverified for run in runs):
                raise  # by its digests the evidence is as recorded, so this is a bug
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            cause = EvidenceError(
                f"{runs[0].home}: the evidence can't be judged ({why}), and was changed after the run or has no "
                "digests; restore the files or run the plan again"
            )
        if len(runs) == 1:
            return [cause]
        half = len(runs) // 2
        return [*self._judge_together(runs[:half]), *self._judge_together(runs[half:])]

    def _session(self, load: Load) -> SparkSession:
        if self._spark is None:
            starting, self._starting = self._starting, None
            self._spark = starting.result() if starting else self._started(load)
        return self._spark

    def _started(self, load: Load) -> SparkSession:
        self._log("judging: starting Spark")
        return self._resources.enter_context(session(self._spark_log, self._master, load))


def judge(
    run_dir: Path, master: str | None, log: Log, *, exhaustive: bool = False, trust: bool = False, strict: bool = False
) -> Verdict:
    """Judge one run with Spark at ``master``, None for Sail. Raises EvidenceError if the run's evidence is invalid."""
    spark_log = run_dir / "logs" / "spark.log"
    with Judge(spark_log, master, log, exhaustive=exhaustive, trust=trust, strict=strict) as run_judge:
        return run_judge(run_dir)


def judge_at(
    uri: str,
    run_id: str | None,
    out: Path,
    master: str | None,
    log: Log,
    *,
    exhaustive: bool = False,
    trust: bool = False,
    strict: bool = False,
) -> tuple[Path, Verdict]:
    """Judge evidence on another filesystem (``spark/remote.py``); return the folder of the results and the verdict.

    Raises EvidenceError if the evidence is invalid or is that of another run than ``run_id``.
    """
    reader = master_of(master, LOCAL_SPARK)
    if reader == SAIL:
        raise EvidenceError(f"{uri}: Sail reads run directories only; leave out --spark, or name a Spark master")
    with Judge(out / "spark.log", reader, log, exhaustive=exhaustive, trust=trust, strict=strict) as run_judge:
        evidence = read_at(run_judge.spark, uri, out, columns(), run_id, None if trust else ())
        return evidence.home, run_judge.judge_evidence(evidence)


def judge_in(
    spark: SparkSession, runs: Sequence[Evidence], *, exhaustive: bool = False, strict: bool = False
) -> list[Verdict]:
    """Measure ``runs`` together, judge each run, and write its results to its directory ``home``.

    Raises the errors of Spark, and EvidenceError if the SLOs of a run can't be parsed.
    """
    requests = {str(evidence.run["run_id"]): wanted(evidence) for evidence in runs}
    facts_by_run = measure(
        spark, runs, requests, exhaustive=exhaustive, keep=lambda run, rows: write_silver(rows, runs[run])
    )
    again = measured_again(spark, {str(run.run["run_id"]): run for run in runs}, requests, facts_by_run)
    verdicts = []
    for evidence in runs:
        facts, home = facts_by_run[str(evidence.run["run_id"])], evidence.home
        verdict = evaluate(evidence, facts, again.get(str(evidence.run["run_id"])), strict=strict)
        write_whole(home / "analysis.json", json.dumps(analysis_document(facts)) + "\n")
        write_gold(home, verdict.checks)
        write_whole(home / "verdict.json", verdict.text())
        (home / AUTHORS_VERDICT).unlink(missing_ok=True)
        verdict_formats.write(home, verdict)
        verdicts.append(verdict)
    return verdicts


def measured_again(
    spark: SparkSession,
    runs: Mapping[str, Evidence],
    requests: Mapping[str, MeasurementRequest],
    facts: Mapping[str, Facts],
) -> dict[str, Facts]:
    """Return the second measurement, without suspect times, of the runs with a failed check that it may change.

    A failed count, or a failed check of clients that no suspect interval concerns, stays as it is.
    """
    times = {
        name: spans
        for name, evidence in runs.items()
        if (spans := left_out(evidence)) and _open_without(evidence, facts[name])
    }
    return measure(spark, [runs[name] for name in times], requests, left_out=times) if times else {}


def _open_without(evidence: Evidence, facts: Facts) -> bool:
    """Return True if a check fails that is open as long as the run has no second measurement."""
    # counts of lost or wrong records stay as they are, so no integrity results are needed
    plain, doubtful = (
        [*slo_checks(evidence, facts, (), doubts), *obligation_checks(evidence, facts, doubts)]
        for doubts in (NO_DOUBTS, Doubts(suspects=suspects_of(evidence)))
    )
    return any(
        check.status is Status.FAIL and open_check.status is not Status.FAIL
        for check, open_check in zip(plain, doubtful, strict=True)
    )


def evaluate(evidence: Evidence, facts: Facts, again: Facts | None = None, *, strict: bool = False) -> Verdict:
    """Return the verdict on the measurements of one run, and on the second measurement without its suspect times.

    A fault without witness or exposure makes the SLO checks of its windows INCONCLUSIVE; a harness that can't be
    trusted makes failed checks of latency and progress INCONCLUSIVE.
    """
    faults, harness = fault_checks(evidence, facts), harness_checks(evidence, facts)
    harness_again = () if again is None else harness_checks(evidence, again)
    unproven, suspects = unproven_faults(faults), suspects_of(evidence)
    doubts = Doubts(unproven, harness, suspects, again, harness_again, strict=strict)
    integrity = integrity_results(evidence, facts)
    checks = (
        *slo_checks(evidence, facts, integrity, doubts),
        *integrity_checks(evidence, integrity),
        *obligation_checks(evidence, facts, doubts),
        *deadline_checks(evidence, facts),
        *backoff_checks(evidence),
        *stuck_checks(evidence, facts),
        *stable_offset_checks(evidence, facts),
        *death_checks(evidence),
        *faults,
        *(one.check for one in harness),
    )
    arms = dict.fromkeys(client.arm for client in evidence.clients)
    name = str(evidence.timeline.get("name", evidence.run.get("plan", "")))
    absent = unplanned_absences(evidence)
    checks = tuple(_with_absences(check, absent, evidence) for check in checks)
    names = (str(evidence.run["run_id"]), name, evidence.run.get("seed"), tuple(arms))
    unplanned = (*map(str, absent), *notes_on_services(evidence))
    figures = () if facts.write_cycles is None else (str(facts.write_cycles),)
    told = answers(evidence, facts, integrity)
    return Verdict(*names, checks, evidence.altered, answers=told, unplanned=unplanned, figures=figures)


def _with_absences(check: Check, absences: Sequence[Absence], evidence: Evidence) -> Check:
    """Add to a failed check of latency or progress which brokers were away by themselves in its window."""
    if check.status is Status.PASS or check.kind not in ("slo", "compare", "obligation"):
        return check
    spans = evidence.windows.get(check.phase or RUN, ())
    texts = [str(one) for one in absences if any(one.overlaps(start, end) for start, end in spans)]
    return replace(check, why="; ".join([check.why, *texts])) if texts else check


def _verdict_or_raise(judgement: Judgement) -> Verdict:
    if isinstance(judgement, EvidenceError):
        raise judgement
    return judgement
