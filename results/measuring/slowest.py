"""The slowest records and commits of each client, for the story of the run: failed ones first, then by latency."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.measuring.dims import Dims
from aftershock.results.measuring.samples import client, ok, with_segment
from aftershock.results.phases import RUN

SLOWEST_MAX = 10
LIMITS = "run int, op string, client string, at_least_us bigint"


def slowest(samples: DataFrame, limits: DataFrame, dims: Dims) -> DataFrame:
    """Ten rows of ``samples`` a run, op and client, of those intended after warm-up, with ``place`` from 1.

    ``limits`` (``LIMITS``) spare the sort the rows that can't be among them: those quicker than ``at_least_us``.
    """
    took = F.when(ok(), F.col("done_us") - F.col("intended_us"))
    named = samples.where("owed").withColumns({"client": client(), "took_us": took})
    slow = F.coalesce(F.col("took_us") >= F.col("at_least_us"), F.lit(True))
    few = with_segment(named.join(F.broadcast(limits), ["run", "op", "client"]).where(slow), "intended_us", dims)
    judged = dims.segment_windows.where(F.col("window") == RUN).select("run", "segment")
    after = few.join(F.broadcast(judged), ["run", "segment"], "left_semi")
    order = Window.partitionBy("run", "op", "client").orderBy(
        F.col("took_us").desc_nulls_first(), "intended_us", "producer_id", "seq"
    )
    ranked = after.withColumn("place", F.row_number().over(order)).where(F.col("place") <= SLOWEST_MAX)
    return ranked.drop("workload", "arm", "segment", "took_us", "at_least_us", "owed")
