"""Measure several runs with one set of Spark queries."""

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from aftershock.results.checks.slo.checks import wanted
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.measure.measure import measure
from aftershock.results.model.facts import Facts, MeasurementRequest
from aftershock.results.spark.conf import load_of
from aftershock.results.spark.session import session
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import Made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QS = (0.5, 0.95, 0.99)
Told = TypeVar("Told")


def named(made: Mapping[str, Made], home: Path) -> dict[str, Evidence]:
    """Write runs and return their evidence by run id."""
    for name, one in made.items():
        one.run["run_id"] = name
    return {name: read(one.write(home / name), columns()) for name, one in made.items()}


def together(
    spark: "SparkSession", runs: Mapping[str, Evidence], *, exhaustive: bool = False, **more: MeasurementRequest
) -> dict[str, Facts]:
    """Return the facts of each run, judged with all others; ``more`` is measured in addition to the requests of
    the SLOs.
    """
    asked = {name: more.get(name) or replace(wanted(one), qs=QS) for name, one in runs.items()}
    return measure(spark, list(runs.values()), asked, exhaustive=exhaustive)


def measured(spark: "SparkSession", home: Path, qs: tuple[float, ...]) -> Facts:
    """Return the facts of one run."""
    evidence = read(home, columns())
    run_id = str(evidence.run["run_id"])
    return together(spark, {run_id: evidence}, **{run_id: MeasurementRequest(qs=qs)})[run_id]


def apart(work: "Callable[[SparkSession, Path], Told]", home: Path) -> "Told":
    """Call ``work`` on the run in ``home`` in a new process, because a process has only one Spark session."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_in_session, work, home).result()


def _in_session(work: "Callable[[SparkSession, Path], Told]", home: Path) -> "Told":
    load = load_of(home.glob("*/*.parquet"))
    assert load.large
    with tempfile.TemporaryDirectory() as folder, session(Path(folder) / "spark.log", load=load) as spark:
        return work(spark, home)
