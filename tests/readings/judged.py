"""The figures that the judge gives for the SLOs that a second reading recounts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aftershock.results.checks.doubts import NO_DOUBTS
from aftershock.results.checks.integrity import integrity_results
from aftershock.results.checks.slo.checks import slo_checks, wanted
from aftershock.results.evidence.evidence import Evidence, Objective, read
from aftershock.results.measure.measure import measure
from aftershock.results.model.check import Check
from aftershock.results.spark.tables import columns
from aftershock.tests.readings.figure import Asked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ALL_ARMS = "all arms"


@dataclass(frozen=True)
class Judged:
    """The check of an SLO for one client, or of a count for ``ALL_ARMS``."""

    asked: Asked
    who: str
    check: Check


LIMITS = {"lag": "< 900000000 records", "success": ">= 0.000001%", "budget": "<= 100%", "count": "<= 900000000"}
LIMITS |= {"skew": "<= 900000000", "throughput": ">= 0.000001/s", "stable_offset.lag": "< 900h"}
"""Limits that nearly every value keeps, by metric or its kind; times have one of their own."""


def slo_text(asked: Asked) -> str:
    """Return an SLO that asks for the figure."""
    if not asked.kind:
        return f"{asked.metric} <= 900000000" + (f" for {asked.arm}" if asked.arm else "")
    words = (
        asked.metric,
        asked.aggregate,
        LIMITS.get(asked.metric, LIMITS.get(asked.kind, "< 900h")),
        "in",
        asked.window,
    )
    return " ".join(word for word in (*words, *(("for each", asked.by) if asked.by else ())) if word)


def judge(spark: "SparkSession", asked: Mapping[Path, Sequence[Asked]]) -> dict[Path, list[Judged]]:
    """Judge these SLOs of these runs, all with one set of Spark queries."""
    runs: dict[str, tuple[Path, Evidence]] = {}
    for home, slos in asked.items():
        objectives = tuple(Objective(slo_text(slo), f"slo:{number}:1") for number, slo in enumerate(slos))
        evidence = replace(read(home, columns()), objectives=objectives)
        runs[str(evidence.run["run_id"])] = (home, evidence)
    requests = {run_id: wanted(evidence) for run_id, (_, evidence) in runs.items()}
    facts = measure(spark, [evidence for _, evidence in runs.values()], requests)
    judged = {}
    for run_id, (home, evidence) in runs.items():
        integrity = integrity_results(evidence, facts[run_id])
        judged[home] = list(_checks(evidence, asked[home], slo_checks(evidence, facts[run_id], integrity, NO_DOUBTS)))
    return judged


def _checks(evidence: Evidence, asked: Sequence[Asked], checks: Iterable[Check]) -> Iterable[Judged]:
    names = {evidence.subject_of(client): client.key for client in evidence.clients}
    for check in checks:
        number = int(str(check.at).split(":")[1])
        who = next((key for name, key in names.items() if f"{check.subject} ".startswith(f"{name} ")), ALL_ARMS)
        yield Judged(asked[number], who, check)
