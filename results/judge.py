"""Evidence in, verdict out: reads run directories, measures, judges, writes ``verdict.json`` and its company.

Rules: the cluster is never needed; the same evidence gives the same verdict, whoever else is judged with it; bad
evidence is an EvidenceError before Spark is started wherever a look at the files can tell, and harms no other run.
``analysis.json`` keeps what the report draws, ``junit.xml`` what CI reads, ``silver`` and ``gold`` what can be queried.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aftershock.errors import EvidenceError
from aftershock.results.checks.check import Check, Status, Verdict
from aftershock.results.checks.harness import harness
from aftershock.results.checks.integrity import integrity
from aftershock.results.checks.obligations.checks import obligations
from aftershock.results.checks.slo.judged import Doubts, objectives, wanted
from aftershock.results.checks.witness import exposure, witness
from aftershock.results.evidence.analysis import document
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.files import write_whole
from aftershock.results.measure.facts import Facts
from aftershock.results.measure.layers import write_gold, write_silver
from aftershock.results.measure.measure import measure
from aftershock.results.report import verdict_formats
from aftershock.results.spark.conf import UNKNOWN, Load, load_of
from aftershock.results.spark.remote import read_at
from aftershock.results.spark.session import JVM_LOST, reason, session
from aftershock.results.spark.tables import columns

Say = Callable[[str], None]
Judgement = Verdict | EvidenceError


class Judge:
    """Judges runs in one Spark session: ``with Judge(log, None, say) as judge: judge(run_dir)``, or many at once.

    The session starts with the first run that needs it and ends with the block; between two runs it may idle for as
    long as it takes. A run whose evidence is bad raises EvidenceError and harms no other: after one that Spark failed
    on, the next gets a new session. ``exhaustive``: the gate clears nothing.
    """

    def __init__(self, log: Path, master: str | None, say: Say, *, exhaustive: bool = False) -> None:
        self._log, self._master, self._say, self._exhaustive = log, master, say, exhaustive
        self._open = ExitStack()
        self._spark: SparkSession | None = None
        self._load = UNKNOWN

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, broken: BaseException | None, at: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, broken, at)

    def __call__(self, run_dir: Path) -> Verdict:
        """Judges the run in ``run_dir``, and writes its verdict and what belongs to it there.

        Raises EvidenceError where the evidence is missing, truncated or of the wrong shape.
        """
        return _given(self.many([run_dir])[run_dir])

    def evidence(self, one: Evidence) -> Verdict:
        """Judges what was read already, and writes to its ``home``. Raises EvidenceError likewise."""
        return _given(self._together([one])[0])

    def many(self, run_dirs: Iterable[Path]) -> dict[Path, Judgement]:
        """Judges runs by one set of queries: the verdict of each, or why there is none."""
        told: dict[Path, Judgement] = {}
        found: dict[Path, Evidence] = {}
        for run_dir in dict.fromkeys(run_dirs):
            try:
                found[run_dir] = read(run_dir, columns())
            except EvidenceError as broken:
                told[run_dir] = broken
        told |= _twins(found)
        whole = {run_dir: one for run_dir, one in found.items() if run_dir not in told}
        told |= dict(zip(whole, self._together(list(whole.values())), strict=True))
        return told

    @property
    def spark(self) -> SparkSession:
        """The session, started where there is none: for evidence that only Spark can reach, so it may be large."""
        return self._session(UNKNOWN)

    def _together(self, runs: Sequence[Evidence]) -> list[Judgement]:
        """The verdicts in order. Where Spark fails on several, each half is tried, until the bad one is alone."""
        if not runs:
            return []
        try:
            spark = self._session(load_of(part for one in runs for parts in one.parquet.values() for part in parts))
            self._say("judging: measuring")
            return [*judge_in(spark, runs, exhaustive=self._exhaustive)]
        except EvidenceError as broken:
            why = broken
        except (PySparkException, *JVM_LOST) as broken:
            why = EvidenceError(f"{runs[0].home}: Spark could not read it: {reason(broken)}; see {self._log}")
            self._end()  # whether the JVM outlived this is not to be known for sure
        if len(runs) == 1:
            return [why]
        half = len(runs) // 2
        return [*self._together(runs[:half]), *self._together(runs[half:])]

    def _session(self, load: Load) -> SparkSession:
        if self._spark is None:
            self._say("judging: starting Spark")
            self._load = load
            self._spark = self._open.enter_context(session(self._log, self._master, load))
        return self._spark

    def _end(self) -> None:
        self._spark = None
        self._open.close()


def judge(run_dir: Path, master: str | None, say: Say, *, exhaustive: bool = False) -> Verdict:
    """Judges one run with Spark at ``master`` (None: local); files and errors as of ``Judge``."""
    with Judge(run_dir / "logs" / "spark.log", master, say, exhaustive=exhaustive) as one:
        return one(run_dir)


def judge_at(
    uri: str, run_id: str | None, out: Path, master: str | None, say: Say, *, exhaustive: bool = False
) -> tuple[Path, Verdict]:
    """Judges evidence on another filesystem (``remote.py: read_at``); what comes of it is written to ``out``.

    The folder there, and the verdict. Raises EvidenceError as ``Judge``, and where ``uri`` is not of run ``run_id``.
    """
    with Judge(out / "spark.log", master, say, exhaustive=exhaustive) as one:
        evidence = read_at(one.spark, uri, out, columns(), run_id)
        return evidence.home, one.evidence(evidence)


def judge_in(spark: SparkSession, runs: Sequence[Evidence], *, exhaustive: bool = False) -> list[Verdict]:
    """Measures ``runs`` together, judges each, and writes what belongs to its verdict to its home.

    Raises as Spark does; EvidenceError where the SLOs of one can't be read.
    """
    asked = {str(one.run["run_id"]): wanted(one) for one in runs}
    facts = measure(spark, runs, asked, exhaustive=exhaustive, keep=lambda run, rows: write_silver(rows, runs[run]))
    return [_written(one, facts[str(one.run["run_id"])]) for one in runs]


def _written(evidence: Evidence, facts: Facts) -> Verdict:
    verdict, home = judged(evidence, facts), evidence.home
    write_whole(home / "analysis.json", json.dumps(document(facts)) + "\n")
    write_gold(home, verdict.checks)
    write_whole(home / "verdict.json", verdict.text())
    verdict_formats.write(home, verdict)
    return verdict


def _given(one: Judgement) -> Verdict:
    if isinstance(one, EvidenceError):
        raise one
    return one


def _twins(found: Mapping[Path, Evidence]) -> dict[Path, Judgement]:
    """Why not, for runs that share an id: their records could not be told apart."""
    homes: dict[str, list[Path]] = {}
    for run_dir, one in found.items():
        homes.setdefault(str(one.run["run_id"]), []).append(run_dir)
    return {
        run_dir: EvidenceError(f"{' and '.join(map(str, same))}: both are run {run_id!r}; judge one of them")
        for run_id, same in homes.items()
        if len(same) > 1
        for run_dir in same
    }


def judged(evidence: Evidence, facts: Facts) -> Verdict:
    """The verdict on what was measured. Pure."""
    faults = [[witness(evidence, step), exposure(evidence, facts, step)] for step in evidence.steps]
    trust = harness(evidence, facts)
    doubts = Doubts(unproven=_unproven(faults), harness=_untrusted(trust))
    checks = [
        *objectives(evidence, facts, doubts),
        *integrity(evidence, facts),
        *obligations(evidence, facts, doubts.harness),
        *[check for pair in faults for check in pair],
        *trust,
    ]
    arms = dict.fromkeys(client.arm for client in evidence.clients)
    name = str(evidence.timeline.get("name", evidence.run.get("plan", "")))
    return Verdict(str(evidence.run["run_id"]), name, evidence.run.get("seed"), tuple(arms), tuple(checks))


def _unproven(faults: Sequence[Sequence[Check]]) -> dict[str, str]:
    """The first reason to doubt each fault, by its id."""
    doubted = [check for pair in reversed(faults) for check in reversed(pair) if check.status is not Status.PASS]
    return {check.id.split("/", 1)[1]: f"{check.id}: {check.why}" for check in doubted}


def _untrusted(trust: Sequence[Check]) -> str | None:
    return next((f"{check.id}: {check.why}" for check in trust if check.status is not Status.PASS), None)
