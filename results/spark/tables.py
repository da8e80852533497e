"""The evidence tables of runs judged together, as DataFrames with the declared schemas; and small tables for joins.

Spark reads all files of an evidence table at once, no matter how many runs. Each row begins with ``run``, the position
of its run in the list of runs, because an int is a shorter key than a run's id.

Values that differ between runs are in small tables (``small``) rather than in expressions. Spark keeps small tables as
local relations, and removes a join with an empty relation from the query. A small table is joined as ``beside(table)``.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.schema import TABLES
from aftershock.results.spark.conf import ONE_TASK

SCRATCH = "aftershock.scratch"
"""Setting of a session with Sail: the folder for its files."""
_PATTERN = re.compile(r"[\\{}\[\]*?]")


def literal(path: str) -> str:
    """Escape ``path`` so that Hadoop treats no character as a wildcard."""
    return _PATTERN.sub(r"\\\g<0>", path)


_TYPES = {
    "int": (IntegerType(), pa.int32()),
    "bigint": (LongType(), pa.int64()),
    "double": (DoubleType(), pa.float64()),
    "string": (StringType(), pa.string()),
    "boolean": (BooleanType(), pa.bool_()),
    "array<string>": (ArrayType(StringType()), pa.list_(pa.string())),
    "array<bigint>": (ArrayType(LongType()), pa.list_(pa.int64())),
}


def small(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: str) -> DataFrame:
    """Return ``rows`` as a Spark table with a schema such as ``run int, window string, start_us bigint``."""
    named = [(name.strip("`"), *_TYPES[kind]) for name, kind in map(str.split, schema.split(", "))]
    columns = list(zip(*rows, strict=True)) or [()] * len(named)
    arrays = [pa.array(column, kind) for column, (_, _, kind) in zip(columns, named, strict=True)]
    table = pa.Table.from_arrays(arrays, [name for name, *_ in named])
    # The schema is given as types: Spark would parse a text, and names alone do not suffice for Spark Connect.
    return local(spark, table, StructType([StructField(name, kind) for name, kind, _ in named]))


LOCAL_BYTES_MAX = 1 << 16


def local(spark: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Return a PyArrow table as a Spark table; Sail gets a large one in a file: it refuses queries of 128 MB."""
    scratch = scratch_of(spark) if table.nbytes > LOCAL_BYTES_MAX else None
    if not scratch:
        return spark.createDataFrame(table, schema)
    folder = tempfile.mkdtemp(prefix="local-", dir=scratch)
    pq.write_table(table, f"{folder}/0.parquet")
    return spark.read.schema(schema).parquet(folder)


def union(*tables: DataFrame) -> DataFrame:
    """Return the rows of all tables; a column that a table lacks is null there, with its type in the other tables.

    ``unionByName(allowMissingColumns=True)`` leaves such a column without a type in Sail.
    """
    types = {field.name: field.dataType for rows in tables for field in rows.schema}
    present = ({*rows.columns} for rows in tables)
    return reduce(
        DataFrame.union,
        [
            rows.select(
                *[F.col(name) if name in own else F.lit(None).cast(kind).alias(name) for name, kind in types.items()]
            )
            for rows, own in zip(tables, present, strict=True)
        ],
    )


def lowest(value: Column | str, most: int) -> Column:
    """Return the aggregate of the ``most`` lowest values that are not null, in ascending order."""
    return F.slice(F.array_sort(F.collect_list(value)), 1, most)


def of_one_task(spark: SparkSession) -> bool:
    """Return True if Spark's tables are a single partition each, because the evidence is small (``Load.brief``)."""
    return bool(spark.conf.get("spark.sql.shuffle.partitions") == ONE_TASK)


def scratch_of(spark: SparkSession) -> str | None:
    """Return the folder for the files of a session with Sail; None if the engine is Spark."""
    return spark.conf.get(SCRATCH, None)


@contextmanager
def files_removed(spark: SparkSession) -> Iterator[None]:
    """Remove, at the end of a ``with`` block, what Sail's session has stored since its start."""
    scratch = scratch_of(spark)
    before = {*Path(scratch).iterdir()} if scratch else set()
    try:
        yield
    finally:
        for folder in {*Path(scratch).iterdir()} - before if scratch else ():
            shutil.rmtree(folder, ignore_errors=True)


def stores_tables(spark: SparkSession) -> bool:
    """Return True if tables are stored that several queries read: each query would contain their plan, or compute them.

    Planning takes Spark longer than few rows do. Sail computes a table that is only persisted for each query again.
    """
    return scratch_of(spark) is not None or of_one_task(spark)


def store(rows: DataFrame) -> DataFrame:
    """Compute a table once and return it without its plan; it is stored until the end of the measurement.

    PySpark's ``localCheckpoint`` of Spark Connect confuses sessions if a process has several.
    """
    scratch = scratch_of(rows.sparkSession)
    if not scratch:
        return rows.localCheckpoint()
    folder = tempfile.mkdtemp(prefix="stored-", dir=scratch)
    rows.write.mode("overwrite").parquet(folder)
    return rows.sparkSession.read.schema(rows.schema).parquet(folder)


def once(rows: DataFrame) -> DataFrame:
    """Return a table that one query reads several times; Spark finds that out, and Sail would compute it each time."""
    return store(rows) if scratch_of(rows.sparkSession) else rows


def beside(rows: DataFrame) -> DataFrame:
    """Return a small table for a join that keeps it in memory as a whole.

    Spark broadcasts each table in a job of its own: the verdict on a demo took 79 jobs, 64 of them for broadcasts. If
    the other table is a single partition too, Spark builds the same hash table in the task that joins. Sail finds out
    itself which table is small.
    """
    if scratch_of(rows.sparkSession):
        return rows
    return rows.coalesce(1).hint("shuffle_hash") if of_one_task(rows.sparkSession) else F.broadcast(rows)


# Characters that java.net.URI does not escape in a path. Spark names files that way, and keeps non-ASCII letters.
_UNESCAPED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_-!.~'()*,;:$&+=@")


@dataclass(frozen=True)
class Tables:
    """The evidence tables of several runs; a table that no run has is empty.

    Rows of pipes are apart: ``piped`` are the outcomes of ``op`` pipe, ``outputs`` is the log of the topics that
    services write. Both are None if no run has a pipe.
    """

    outcomes: DataFrame
    log: DataFrame
    metrics: DataFrame
    replicas: DataFrame
    offsets: DataFrame
    transactions: DataFrame
    batches: DataFrame
    piped: DataFrame | None = None
    outputs: DataFrame | None = None

    @property
    def whole_log(self) -> DataFrame:
        return self.log if self.outputs is None else self.log.unionByName(self.outputs)

    @property
    def by_name(self) -> dict[str, DataFrame]:
        """Return each evidence table whole, as it is on the disk."""
        outcomes = self.outcomes if self.piped is None else self.outcomes.unionByName(self.piped)
        others = {name: rows for name, rows in vars(self).items() if name in TABLES}
        return others | {"outcomes": outcomes, "log": self.whole_log}


def columns() -> dict[str, dict[str, str]]:
    """Return each evidence table's columns with their Spark types, for the check of Parquet files."""
    return {table: {field.name: field.dataType.simpleString() for field in schema} for table, schema in TABLES.items()}


def tables(spark: SparkSession, runs: Sequence[Evidence]) -> Tables:
    frames, scratch = {}, scratch_of(spark)
    for name, schema in TABLES.items():
        parts = {
            str(part.resolve()) if isinstance(part, Path) else part: number
            for number, evidence in enumerate(runs)
            for part in evidence.parquet[name]
        }
        if not parts:
            columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema)
            frames[name] = small(spark, [], f"run int, {columns}")
            continue
        if scratch:
            with_run = StructType([*schema, StructField("run", IntegerType())])
            linked = spark.read.schema(with_run).parquet(_linked(name, runs, scratch))
            frames[name] = linked.select("run", *schema.names)
            continue
        rows = spark.read.schema(schema).parquet(*map(literal, parts))
        if of_one_task(spark):
            rows = rows.coalesce(1)  # with one partition no shuffle is planned
        if len({*parts.values()}) == 1:
            frames[name] = rows.select(F.lit(next(iter(parts.values()))).alias("run"), "*")
            continue
        numbers = [(uri, number) for part, number in parts.items() for uri in uris(part)]
        files = small(spark, numbers, "name string, run int").select(F.xxhash64("name").alias("file"), "run")
        from_files = rows.withColumn("file", F.xxhash64("_metadata.file_path"))  # joining a hash takes half the time
        frames[name] = from_files.join(beside(files), "file", "left").select("run", *schema.names)
    written = [
        (run, client.pipe.writes) for run, evidence in enumerate(runs) for client in evidence.clients if client.pipe
    ]
    if not written:
        return Tables(**frames)
    topics = beside(small(spark, written, "run int, topic string"))
    outcomes, log = frames.pop("outcomes"), frames.pop("log")
    return Tables(
        **frames,
        outcomes=outcomes.where("op <> 'pipe'"),
        piped=outcomes.where("op = 'pipe'"),
        log=log.join(topics, ["run", "topic"], "left_anti"),
        outputs=log.join(topics, ["run", "topic"], "left_semi"),
    )


def _linked(name: str, runs: Sequence[Evidence], scratch: str) -> str:
    """Link the files of an evidence table to a new folder as ``run=0/0.parquet``, and return the folder.

    Sail has no column for the name of a row's file; it reads the run from the folder instead.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=scratch))
    for run, evidence in enumerate(runs):
        for number, part in enumerate(evidence.parquet[name]):
            link = folder / f"run={run}" / f"{number}.parquet"
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(Path(part).resolve())
    return str(folder)


def uris(path: str) -> list[str]:
    """Return a file's possible names in Spark's ``_metadata.file_path``, such as ``file:///tmp/a%20run/p.parquet``."""
    if not path.startswith("/"):
        return [path]
    quoted = ""
    for char in path:
        unescaped = char in _UNESCAPED or (ord(char) > 127 and char.isprintable())  # noqa: PLR2004 - non-ASCII, no space
        quoted += char if unescaped else "".join(f"%{byte:02X}" for byte in char.encode())
    return [f"file://{quoted}", f"file:{quoted}"]
