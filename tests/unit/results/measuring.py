"""Measures made-up runs, all together: one set of queries for as many as a test file needs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from evidence_factory import Made

from aftershock.results.evidence import Evidence, read
from aftershock.results.facts import Facts
from aftershock.results.measuring.measure import measure
from aftershock.results.objectives import wanted
from aftershock.results.spark.tables import columns
from aftershock.results.wanted import Wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QS = (0.5, 0.95, 0.99)


def named(made: Mapping[str, Made], home: Path) -> dict[str, Evidence]:
    """The evidence of made-up runs, each with its name for an id."""
    for name, one in made.items():
        one.run["run_id"] = name
    return {name: read(one.write(home / name), columns()) for name, one in made.items()}


def together(
    spark: "SparkSession", runs: Mapping[str, Evidence], *, exhaustive: bool = False, **more: Wanted
) -> dict[str, Facts]:
    """The facts of each run, judged with all the others; ``more`` is asked of it besides what its SLOs ask."""
    asked = {name: more.get(name) or replace(wanted(one), qs=QS) for name, one in runs.items()}
    return measure(spark, list(runs.values()), asked, exhaustive=exhaustive)
