"""Small tables made of plain values, for joins: what differs from run to run is in them, and not in expressions.

Spark holds them as local relations: a join with one needs no job, and one that is empty cuts off all that hangs on it.
Give them to ``F.broadcast``.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, DoubleType, IntegerType, LongType, StringType, StructField, StructType

_TYPES = {
    "int": (IntegerType(), pa.int32()),
    "bigint": (LongType(), pa.int64()),
    "double": (DoubleType(), pa.float64()),
    "string": (StringType(), pa.string()),
    "boolean": (BooleanType(), pa.bool_()),
}


def small(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: str) -> DataFrame:
    """``rows`` as a table of ``schema`` (``run int, window string, start_us bigint``)."""
    named = [(name.strip("`"), *_TYPES[kind]) for name, kind in map(str.split, schema.split(", "))]
    columns = list(zip(*rows, strict=True)) or [()] * len(named)
    arrays = [pa.array(column, kind) for column, (_, _, kind) in zip(columns, named, strict=True)]
    table = pa.Table.from_arrays(arrays, [name for name, *_ in named])
    # told by its types, for Spark would parse the text; the names of an empty one are not enough for Spark Connect
    return spark.createDataFrame(table, StructType([StructField(name, kind) for name, kind, _ in named]))
