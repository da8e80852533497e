"""The evidence tables as DataFrames, read with the declared schemas. The only place that hands paths to Spark."""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from aftershock.results.evidence import Evidence
from aftershock.results.schema import TABLES


@dataclass(frozen=True)
class Tables:
    """The three tables of a run; one that the run did not get to is empty."""

    outcomes: DataFrame
    log: DataFrame
    metrics: DataFrame


def columns() -> dict[str, dict[str, str]]:
    """Each table's columns and their Spark types by name: what a file must have."""
    return {table: {field.name: field.dataType.simpleString() for field in schema} for table, schema in TABLES.items()}


def tables(spark: SparkSession, evidence: Evidence) -> Tables:
    """The tables of ``evidence``."""
    return Tables(**{name: _table(spark, evidence, name, schema) for name, schema in TABLES.items()})


def _table(spark: SparkSession, evidence: Evidence, name: str, schema: StructType) -> DataFrame:
    parts = [str(part.resolve()) for part in evidence.parquet[name]]
    return spark.read.schema(schema).parquet(*parts) if parts else spark.createDataFrame([], schema)
