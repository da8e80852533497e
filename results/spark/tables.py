"""Names of files as Hadoop takes them: its paths are patterns, and are not percent-encoded.

Small tables made of plain values, for joins: what differs from run to run is in them, and not in expressions.

Spark holds them as local relations: a join with one needs no job, and one that is empty cuts off all that hangs on it.
Give them to ``F.broadcast``.

The evidence tables of runs judged together, as DataFrames, read with the declared schemas.

The only place that hands paths to Spark. Rules: one read of all files a table, however many runs; each row begins with
``run``, the number of its run in the order asked for: an int is a shorter key than a run's id.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DoubleType, IntegerType, LongType, StringType, StructField, StructType

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.schema import TABLES
from aftershock.results.spark.conf import ONE_TASK

_PATTERN = re.compile(r"[\\{}\[\]*?]")


def literal(path: str) -> str:
    """``path``, so that no letter of it is taken for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)


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


# what java.net.URI leaves as it is in a path; Spark names files that way, and other letters than ASCII's as they are
_KEPT = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_-!.~'()*,;:$&+=@")


@dataclass(frozen=True)
class Tables:
    """The tables; one that no run got to is empty."""

    outcomes: DataFrame
    log: DataFrame
    metrics: DataFrame
    replicas: DataFrame
    offsets: DataFrame


def columns() -> dict[str, dict[str, str]]:
    """Each table's columns and their Spark types by name: what a file must have."""
    return {table: {field.name: field.dataType.simpleString() for field in schema} for table, schema in TABLES.items()}


def tables(spark: SparkSession, runs: Sequence[Evidence]) -> Tables:
    """The tables of ``runs``, with the columns of the schema after ``run``."""
    return Tables(**{name: _table(spark, runs, name, schema) for name, schema in TABLES.items()})


def _table(spark: SparkSession, runs: Sequence[Evidence], name: str, schema: StructType) -> DataFrame:
    parts = {_told(part): number for number, one in enumerate(runs) for part in one.parquet[name]}
    if not parts:
        return small(spark, [], f"run int, {_ddl(schema)}")
    rows = spark.read.schema(schema).parquet(*map(literal, parts))
    if spark.conf.get("spark.sql.shuffle.partitions") == ONE_TASK:
        rows = rows.coalesce(1)  # of one partition, rows that belong together are: no shuffle is planned
    if len({*parts.values()}) == 1:
        return rows.select(F.lit(next(iter(parts.values()))).alias("run"), "*")
    named = [(name, number) for part, number in parts.items() for name in spelt(part)]
    files = small(spark, named, "name string, run int").select(F.xxhash64("name").alias("file"), "run")
    from_files = rows.withColumn("file", F.xxhash64("_metadata.file_path"))  # as a number it is found in half the time
    return from_files.join(F.broadcast(files), "file", "left").select("run", *schema.names)


def _told(part: Path | str) -> str:
    return str(part.resolve()) if isinstance(part, Path) else part


def _ddl(schema: StructType) -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema)


def spelt(path: str) -> list[str]:
    """A file's name as Spark may have it in ``_metadata.file_path``: a URI, ``file:///tmp/a%20run/part-0.parquet``."""
    if not path.startswith("/"):
        return [path]
    quoted = "".join(letter if letter in _KEPT or _foreign(letter) else _escaped(letter) for letter in path)
    return [f"file://{quoted}", f"file:{quoted}"]


def _foreign(letter: str) -> bool:
    """Beyond ASCII, and neither a space nor a control character."""
    return ord(letter) > 127 and letter.isprintable()  # noqa: PLR2004 - the end of ASCII


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())
