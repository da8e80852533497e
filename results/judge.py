"""Evidence in, verdict out: reads a run directory, measures, judges, writes ``verdict.json`` and ``analysis.json``.

Rules: the cluster is never needed; the same evidence gives the same verdict; bad evidence is an EvidenceError before
Spark is started wherever a look at the files can tell. ``analysis.json`` keeps what the report draws.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from aftershock.errors import EvidenceError
from aftershock.results.check import Check, Status
from aftershock.results.evidence import Evidence, read
from aftershock.results.exposure import exposure
from aftershock.results.facts import Facts
from aftershock.results.harness import harness
from aftershock.results.measure import measure
from aftershock.results.objectives import Doubts, objectives
from aftershock.results.promises import integrity
from aftershock.results.session import session
from aftershock.results.slo import Compare, Quantile, SloSyntaxError, parse
from aftershock.results.tables import columns
from aftershock.results.verdict import Verdict
from aftershock.results.witness import witness

Say = Callable[[str], None]


def judge(run_dir: Path, master: str | None, say: Say) -> Verdict:
    """Judges the run in ``run_dir`` with Spark at ``master`` (None: local) and writes the verdict there.

    Raises EvidenceError where the evidence is missing, truncated or of the wrong shape.
    """
    evidence = read(run_dir, columns())
    qs = _quantiles(evidence)
    facts = _measured(evidence, master, qs, say)
    verdict = judged(evidence, facts)
    _write(run_dir / "analysis.json", json.dumps(_analysis(facts), indent=1) + "\n")
    _write(run_dir / "verdict.json", verdict.text())
    return verdict


def judged(evidence: Evidence, facts: Facts) -> Verdict:
    """The verdict on what was measured. Pure."""
    faults = [[witness(evidence, step), exposure(evidence, facts, step)] for step in evidence.steps]
    trust = harness(evidence, facts)
    doubts = Doubts(unproven=_unproven(faults), harness=_untrusted(trust))
    checks = [
        *objectives(evidence, facts, doubts),
        *integrity(evidence, facts),
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


def _measured(evidence: Evidence, master: str | None, qs: Sequence[float], say: Say) -> Facts:
    logs = evidence.home / "logs"
    logs.mkdir(exist_ok=True)
    say("judging: starting Spark")
    try:
        with session(logs / "spark.log", master) as spark:
            say("judging: measuring")
            return measure(spark, evidence, qs)
    except PySparkException as broken:
        first = str(broken).splitlines()[0]
        raise EvidenceError(f"{evidence.home}: Spark could not read it: {first}; see {logs / 'spark.log'}") from broken


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


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.inprogress")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
