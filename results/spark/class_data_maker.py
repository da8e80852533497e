"""Creation of the class-data archive: typical queries of the judge in a JVM that dumps its loaded classes at exit.

Rules: one process creates the archive, another one does not wait for it. The archive appears only when it is complete.
A Java that creates no archive is tried once.
"""

import fcntl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from aftershock.results.spark.conf import SMALL
from aftershock.results.spark.session import archive_here, quoted, refusal_of, session
from aftershock.results.spark.tables import small

DUMP_DEADLINE_S = 300.0


def ensure_archive(log: Callable[[str], None]) -> None:
    """Create the archive of this Java and PySpark if missing. Raises EvidenceError if Spark can't start."""
    archive = archive_here()
    if archive is None or archive.exists() or refusal_of(archive).exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with _alone(archive.with_suffix(".lock")) as alone:
        if alone and not archive.exists():
            log("archiving the classes that Spark loads, for a quicker start (half a minute, once)")
            _make(archive)


def _make(archive: Path) -> None:
    draft, log = archive.with_suffix(".draft"), archive.with_suffix(".log")
    draft.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    options = (quoted("-XX:ArchiveClassesAtExit", draft),)
    with tempfile.TemporaryDirectory(prefix="class-data-", dir=archive.parent) as folder:
        part = Path(folder) / "part.parquet"
        pq.write_table(pa.table({"who": ["a", "b"] * 50, "at": range(100)}), part)
        with session(log, "local[2]", SMALL, options, DUMP_DEADLINE_S) as spark:
            for query in _queries(spark, part):
                query.collect()
    if draft.exists():
        draft.replace(archive)
    else:
        refusal_of(archive).touch()


def _queries(spark: SparkSession, part: Path) -> Iterator[DataFrame]:
    rows = spark.read.schema("who string, at bigint").parquet(str(part)).where("at is not null")
    known = small(spark, [("a", 1)], "who string, number int")
    hist = (
        rows.join(F.broadcast(known), "who", "left")
        .groupBy("who", F.expr("at div 7").alias("slot"))
        .agg(
            F.count("*").alias("n"),
            F.bit_xor(F.xxhash64("who", "at")).alias("print"),
            F.min("at").alias("first"),
            F.max(F.when(F.col("at") > 3, F.col("at"))).alias("last"),  # noqa: PLR2004 - any number
            F.collect_list(F.struct("at", "number")).alias("all"),
        )
    )
    kept = hist.persist()
    lane = Window.partitionBy("who").orderBy("first")
    yield kept.withColumn("gap", F.col("first") - F.lag("last").over(lane)).withColumn("upto", F.sum("n").over(lane))
    yield kept.select("who", F.explode("all").alias("one")).unionByName(
        rows.select("who", F.struct("at").alias("one")), True
    )
    yield kept.join(F.broadcast(known), "who", "left_anti").selectExpr("inline(all)").groupBy("number").count()


@contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
