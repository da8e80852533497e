"""What group coordinators have of the commits of a ``commit`` workload, whose groups read nothing: their log tells.

Rules: an acknowledged commit is *lost* if the log of the offsets topic has no entry of its group and partition with its
position or a later one since the last that was taken back (null): a commit may be superseded, and is acknowledged with
what superseded it. An entry goes *backward* if it is below the one before it of the same group and partition, unless
that was taken back. A share coordinator writes no position down, and of an attached cluster that log isn't read.
"""

from collections.abc import Iterator

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.evidence import Client, Evidence
from aftershock.results.integrity.finding import fact, found, no_record, record
from aftershock.results.measuring.dims import Dims
from aftershock.results.spark.tables import Tables

SIDE = "commit"
_PLACE = ("run", "group", "topic", "partition")


def committers(evidence: Evidence) -> Iterator[Client]:
    """The clients whose commits are to be found there."""
    if "attach" in evidence.timeline.get("cluster", {}):
        return
    for client in evidence.clients:
        if client.commits_to and not evidence.arm_settings(client).get("share"):
            yield client


def offsets(read: Tables, dims: Dims) -> DataFrame | None:
    """``lost`` (of commits acknowledged) and ``backward`` (of entries), by client; None where there is no such log."""
    logged = [(run, one) for run, one in enumerate(dims.evidences) if one.parquet["offsets"]]
    rows = [(run, client.workload, client.arm, client.key) for run, one in logged for client in committers(one)]
    if not rows:
        return None
    theirs = F.broadcast(dims.table(rows, "run int, workload string, arm string, client string"))
    told = (
        read.outcomes.drop("client")
        .where((F.col("op") == SIDE) & (F.col("status") == "ok"))
        .join(theirs, ["run", "workload", "arm"])
        .select(*_PLACE, "client", F.col("offset").alias("committed"), record().alias("record"))
    )
    log = read.offsets.select(
        *("run", "group", "topic", F.col("topic_partition").alias("partition"), "committed"),
        F.struct("partition", "offset").alias("place"),
    )
    return _lost(told, log).unionByName(_backward(told, log))


def _lost(told: DataFrame, log: DataFrame) -> DataFrame:
    taken_back = F.max(F.when(F.col("committed").isNull(), F.col("place"))).over(Window.partitionBy(*_PLACE))
    stands = log.withColumn("gone", taken_back).where(F.col("gone").isNull() | (F.col("place") > F.col("gone")))
    rows = told.join(stands.groupBy(*_PLACE).agg(F.max("committed").alias("reached")), list(_PLACE), "left")
    kept = F.coalesce(F.col("reached") >= F.col("committed"), F.lit(False))
    return found(rows, [fact("lost", SIDE, F.col("client"), 1, ~kept)])


def _backward(told: DataFrame, log: DataFrame) -> DataFrame:
    before = F.lag("committed").over(Window.partitionBy(*_PLACE).orderBy("place"))
    rows = log.withColumn("back", F.coalesce(F.col("committed") < before, F.lit(False)))
    mine = rows.join(told.select(*_PLACE, "client").distinct(), list(_PLACE)).withColumn("record", no_record())
    return found(mine, [fact("backward", SIDE, F.col("client"), 1, F.col("back"))])
