"""The tables of runs as temporary views: their evidence, what judging made of it, and the documents beside it.

Rules: every view begins with ``run``, the run's id, whether there is one run or a hundred; what a run lacks has no
rows. Nothing is copied: a query reads the files.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import StringType, StructField, StructType

from aftershock.results.evidence import Evidence
from aftershock.results.schema import CHECKS, LATENCY_HIST
from aftershock.results.spark.paths import literal
from aftershock.results.spark.small import small
from aftershock.results.spark.tables import tables

JUDGED = {"latency_hist": ("silver/latency.parquet", LATENCY_HIST), "checks": ("gold/checks.parquet", CHECKS)}
"""The views of what judging left in a run's directory, each with its file and its columns."""

PHASES = "run string, name string, fault string, block int, start_us bigint, end_us bigint"
JOURNAL = (
    "run string, t_us bigint, fault string, kind string, state string, why string, "
    "targets string, undo string, witness string"
)
EVENTS = "run string, t_us bigint, arm string, workload string, event string, detail string"


def create_views(spark: SparkSession, runs: Sequence[Evidence]) -> None:
    """Every view of these runs, by its name."""
    for name, rows in _views(spark, runs):
        rows.createOrReplaceTempView(name)


def unjudged(runs: Sequence[Evidence], text: str) -> list[str]:
    """What a query speaks of and a run has not, since it was not judged: ``checks of 20261121-…``."""
    asked = [(name, file) for name, (file, _) in JUDGED.items() if name in text]
    return [f"{name} of {one.home.name}" for name, file in asked for one in runs if not (one.home / file).exists()]


def _views(spark: SparkSession, runs: Sequence[Evidence]) -> Iterator[tuple[str, DataFrame]]:
    ids = [(number, run_id(one)) for number, one in enumerate(runs)]
    named = F.broadcast(small(spark, ids, "run int, id string"))
    for name, rows in vars(tables(spark, runs)).items():
        columns = [column for column in rows.columns if column != "run"]
        yield name, rows.join(named, "run").select(F.col("id").alias("run"), *columns)
    for name, (file, schema) in JUDGED.items():
        yield name, _judged(spark, [(run_id(one), one.home / file) for one in runs], schema)
    yield "phases", small(spark, [row for one in runs for row in _phases(one)], PHASES)
    yield "journal", small(spark, [row for one in runs for row in _journal(one)], JOURNAL)
    yield "events", small(spark, [row for one in runs for row in _events(one)], EVENTS)


def run_id(one: Evidence) -> str:
    """The run's id."""
    return str(one.run["run_id"])


def _judged(spark: SparkSession, files: Iterable[tuple[str, Path]], schema: StructType) -> DataFrame:
    """One read a run: these tables are small, and few look at a hundred runs that were not archived."""
    fields = [field for field in schema if field.name != "run"]
    columns = [field.name for field in fields]
    rows = spark.createDataFrame([], StructType([StructField("run", StringType()), *fields]))
    for run, file in files:
        if file.exists():
            read = spark.read.schema(schema).parquet(literal(str(file.resolve())))
            rows = rows.unionByName(read.select(F.lit(run).alias("run"), *columns))
    return rows


def _phases(one: Evidence) -> Iterator[Sequence[Any]]:
    for phase in one.phases:
        yield run_id(one), phase.name, phase.fault, phase.block, phase.start_us, phase.end_us


def _journal(one: Evidence) -> Iterator[Sequence[Any]]:
    for line in one.journal:
        told = [line.get(name) for name in ("t_us", "fault", "kind", "state", "why")]
        yield run_id(one), *told, *(_text(line.get(name)) for name in ("targets", "undo", "witness"))


def _events(one: Evidence) -> Iterator[Sequence[Any]]:
    known = ("t_us", "arm", "workload", "event")
    for line in one.events:
        rest = {name: value for name, value in line.items() if name not in known}
        yield run_id(one), *(line.get(name) for name in known), _text(rest)


def _text(told: Mapping[str, Any] | None) -> str | None:
    """A document's part as JSON, for ``get_json_object``."""
    return json.dumps(told) if told else None
