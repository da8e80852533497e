"""Evidence in, verdict out: reads a run directory, measures, judges, writes ``verdict.json`` and its company.

Rules: the cluster is never needed; the same evidence gives the same verdict; bad evidence is an EvidenceError before
Spark is started wherever a look at the files can tell. ``analysis.json`` keeps what the report draws,
``junit.xml`` what CI reads.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aftershock.errors import EvidenceError
from aftershock.results import junit
from aftershock.results.check import Check, Status
from aftershock.results.evidence import Evidence, read
from aftershock.results.exposure import exposure
from aftershock.results.facts import Facts
from aftershock.results.files import write_whole
from aftershock.results.harness import harness
from aftershock.results.measure import measure
from aftershock.results.objectives import Doubts, objectives
from aftershock.results.obligations.checks import obligations
from aftershock.results.promises import integrity
from aftershock.results.session import JVM_LOST, reason, session
from aftershock.results.slo import Compare, Quantile, SloSyntaxError, parse
from aftershock.results.tables import columns
from aftershock.results.verdict import Verdict
from aftershock.results.witness import witness

Say = Callable[[str], None]


class Judge:
    """Judges runs, one after the other, in one Spark session: ``with Judge(log, None, say) as judge: judge(run_dir)``.

    The session starts with the first run that needs it and ends with the block; between two runs it may idle for as
    long as it takes. A run whose evidence is bad raises EvidenceError and harms no other: after one that Spark failed
    on, the next gets a new session.
    """

    def __init__(self, log: Path, master: str | None, say: Say) -> None:
        self._log, self._master, self._say = log, master, say
        self._open = ExitStack()
        self._spark: SparkSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, broken: BaseException | None, at: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, broken, at)

    def __call__(self, run_dir: Path) -> Verdict:
        """Judges the run in ``run_dir``; writes ``verdict.json``, ``analysis.json`` and ``junit.xml`` there.

        Raises EvidenceError where the evidence is missing, truncated or of the wrong shape.
        """
        evidence = read(run_dir, columns())
        facts = self._measured(evidence, _quantiles(evidence))
        verdict = judged(evidence, facts)
        write_whole(run_dir / "analysis.json", json.dumps(_analysis(facts), indent=1) + "\n")
        write_whole(run_dir / "verdict.json", verdict.text())
        junit.write(run_dir, verdict)
        return verdict

    def _measured(self, evidence: Evidence, qs: Sequence[float]) -> Facts:
        spark = self._session()
        self._say("judging: measuring")
        try:
            return measure(spark, evidence, qs)
        except (PySparkException, *JVM_LOST) as broken:
            why = f"{evidence.home}: Spark could not read it: {reason(broken)}; see {self._log}"
            self._end()  # whether the JVM outlived this is not to be known for sure
            raise EvidenceError(why) from None

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._say("judging: starting Spark")
            self._spark = self._open.enter_context(session(self._log, self._master))
        return self._spark

    def _end(self) -> None:
        self._spark = None
        self._open.close()


def judge(run_dir: Path, master: str | None, say: Say) -> Verdict:
    """Judges one run with Spark at ``master`` (None: local); files and errors as of ``Judge``."""
    with Judge(run_dir / "logs" / "spark.log", master, say) as one:
        return one(run_dir)


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


def _quantiles(evidence: Evidence) -> list[float]:
    """The quantiles that the plan's SLOs ask for."""
    try:
        slos = [parse(objective.text) for objective in evidence.objectives]
    except SloSyntaxError as broken:
        where = evidence.home / "timeline.json"
        raise EvidenceError(f"{where}: an SLO can't be read: {broken}; restore the file") from broken
    return [slo.q for slo in slos if isinstance(slo, (Quantile, Compare)) and slo.q is not None]


def _analysis(facts: Facts) -> dict[str, Any]:
    """Measurements as rows, for the report: distributions, gaps, recoveries, bins, bytes, host."""
    spread = sorted(facts.distributions.items())
    return {
        "schema_version": 1,
        "distributions": [_named(key, _spread(asdict(seen))) for key, seen in spread],
        "gaps": [_named(key, asdict(seen)) for key, seen in sorted(facts.longest.items())],
        "recoveries": [
            {"fault": fault, "client": client, **asdict(seen)}
            for (fault, client), seen in sorted(facts.recoveries.items())
        ],
        "bin_us": facts.bin_us,
        "bins": [asdict(one) for one in facts.bins],
        "crossed": {fault: asdict(seen) for fault, seen in sorted(facts.crossed.items())},
        "host": asdict(facts.host),
    }


def _named(key: tuple[str, str, str], row: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(("metric", "client", "window"), key, strict=True)) | row


def _spread(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"at": {repr(q): value for q, value in row["at"].items()}}
