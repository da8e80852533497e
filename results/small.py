"""Small tables made of plain values, for joins: what differs from run to run is in them, and not in expressions.

They are a literal in the plan: no rows go through Python, and Spark Connect has it too. Give them to ``F.broadcast``.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom


def small(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: str) -> DataFrame:
    """``rows`` as a table of ``schema`` (``run int, window string, start_us bigint``)."""
    names = [column.split()[0].strip("`") for column in schema.split(", ")]
    told = json.dumps([dict(zip(names, row, strict=True)) for row in rows])
    one = spark.range(0, 1, 1, 1).select(
        F.explode(F.from_json(F.lit(told), f"array<struct<{_struct(schema)}>>")).alias("row")
    )
    return one.select("row.*")


def _struct(schema: str) -> str:
    return ", ".join(":".join(column.split(maxsplit=1)) for column in schema.split(", "))
