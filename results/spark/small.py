"""Small tables made of plain values, for joins: what differs from run to run is in them, and not in expressions.

Spark holds them as local relations: a join with one needs no job, and one that is empty cuts off all that hangs on it.
Give them to ``F.broadcast``.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

_ARROW = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}


def small(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: str) -> DataFrame:
    """``rows`` as a table of ``schema`` (``run int, window string, start_us bigint``)."""
    named = [column.split() for column in schema.split(", ")]
    arrow = pa.schema([(name.strip("`"), _ARROW[kind]) for name, kind in named])
    names = arrow.names
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], arrow)
    return spark.createDataFrame(table, schema)  # the names of an empty one are not enough for Spark Connect
