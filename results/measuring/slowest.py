"""The slowest records and commits of each client, for the story of the run: failed ones first, then by latency."""

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.measuring.dims import Dims
from aftershock.results.measuring.samples import client, ok, with_segment
from aftershock.results.phases import RUN

SLOWEST_MAX = 10
Limit = tuple[int, str, str, int]
"""Run, op, client, and the latency in microseconds that the slowest took at least."""


def slowest(samples: DataFrame, limits: Sequence[Limit], dims: Dims) -> DataFrame:
    """Ten rows of ``samples`` a run, op and client, of those intended after warm-up, with ``place`` from 1.

    ``limits`` spare the sort the rows that can't be among them.
    """
    took = F.when(ok(), F.col("done_us") - F.col("intended_us"))

    def slow(least_us: Column | int) -> Column:
        return F.coalesce(F.col("took_us") >= least_us, F.lit(True))

    least = {op: min(at_least_us for _, one, _, at_least_us in limits if one == op) for _, op, *_ in limits}
    some = reduce(or_, [(F.col("op") == op) & slow(least_us) for op, least_us in least.items()], F.lit(False))
    named = samples.where("owed").withColumn("took_us", took).where(some).withColumn("client", client())
    told = F.broadcast(dims.table(limits, "run int, op string, client string, at_least_us bigint"))
    few = with_segment(named.join(told, ["run", "op", "client"]).where(slow(F.col("at_least_us"))), "intended_us", dims)
    judged = dims.segment_windows.where(F.col("window") == RUN).select("run", "segment")
    after = few.join(F.broadcast(judged), ["run", "segment"], "left_semi")
    order = Window.partitionBy("run", "op", "client").orderBy(
        F.col("took_us").desc_nulls_first(), "intended_us", "producer_id", "seq"
    )
    ranked = after.withColumn("place", F.row_number().over(order)).where(F.col("place") <= SLOWEST_MAX)
    return ranked.drop("workload", "arm", "segment", "took_us", "at_least_us", "owed")
