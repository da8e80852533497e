"""Exact quantiles. Latency is integer microseconds, so the histogram of distinct values is small and loses nothing.

Rules: latency counts from the intended send time (no coordinated omission). A record that failed, is in doubt, or was
acknowledged and never consumed is censored: null, and slower than any threshold. Quantiles are nearest-rank, an
observed value; no sketches (they miss the tail of a fault by 12-100 %). The records are counted once, by elementary
segment: that histogram is *silver*, every window is a sum over it, and ``silver.py`` reads it.
"""

from collections.abc import Sequence
from fractions import Fraction

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.measuring.dims import KINDS, Dims
from aftershock.results.measuring.names import RACKS, WHOSE, number
from aftershock.results.measuring.samples import client, ok, with_segment

BINS = "run int, bin_us bigint"
_PLOTTED_BITS = 8


def silver(samples: DataFrame, dims: Dims) -> DataFrame:
    """``run whose kind segment racks latency_us n bytes`` (``names.py: named``); null latency is censored.

    Metrics: ``produce.latency`` (done - intended), ``produce.service`` (done - sent), ``produce.lateness`` (sent -
    intended: the generator's own fault), the same of ``commit``, and ``consume.latency`` (first delivery - intended).
    Racks are told of latency alone; of a record that a reader never saw, where the plan wants the reader to stand.
    """
    rows = _timed(with_segment(samples.where("owed"), "intended_us", dims))
    whole = F.col("kind") == 0
    racks = F.when(whole, F.col("racks")).otherwise(number(F.lit(None), F.lit(None)))
    counted = rows.groupBy("run", "whose", "kind", "segment", racks.alias("racks"), "latency_us").agg(
        F.count("*").alias("n"), F.sum(F.when(whole, F.col("bytes"))).alias("bytes")
    )
    return excused(counted, dims, "whose", "kind")


def _timed(rows: DataFrame) -> DataFrame:
    """Samples once for each of ``KINDS`` that they have, with its number as ``kind`` and its ``latency_us``."""
    intended, sent, done = F.col("intended_us"), F.col("sent_us"), F.col("done_us")
    latency, service = F.when(ok(), done - intended), F.when(ok(), done - sent)
    of_op = F.when(F.col("op") == "consume", F.array(latency))
    of_op = of_op.when(F.col("op").isin("produce", "commit"), F.array(latency, service, sent - intended))
    numbered = rows.withColumns({"whose": number(*WHOSE), "racks": number(*RACKS)})
    return numbered.select("*", F.posexplode(of_op).alias("kind", "latency_us"))


def excused(hist: DataFrame, dims: Dims, *by: str) -> DataFrame:
    """Without what is no measurement of the client (``Dims.excused``), by segment and by names or their numbers."""
    metric = F.concat_ws(".", "op", F.elt(F.col("kind") + 1, *map(F.lit, KINDS)))
    spoilt = dims.excused.withColumns({"metric": metric, "client": client(), "whose": number(*WHOSE)})
    key = ["run", *by, "segment"]
    return hist.join(F.broadcast(spoilt.select(*key)), key, "left_anti")


def histogram(rows: DataFrame, dims: Sequence[str]) -> DataFrame:
    """``dims`` and ``latency_us`` with ``n``, how often that value was seen: exact, and mergeable."""
    return rows.groupBy(*dims, "latency_us").agg(F.count("*").alias("n"))


def quantiles(hist: DataFrame, dims: Sequence[str], qs: Sequence[float]) -> DataFrame:
    """``dims n censored slowest_us mean_us q0 q1 ...``: the nearest-rank quantile of each of ``qs``, null if censored.

    ``q`` 1.0 is the maximum. The rank is ceil(q * n) in whole numbers: as floats 0.07 * 100 is more than 7.
    """
    upto = Window.partitionBy(*dims).orderBy(F.col("latency_us").asc_nulls_last())
    total = F.sum("n").over(Window.partitionBy(*dims))
    ranked = hist.withColumn("upto", F.sum("n").over(upto)).withColumn("total", total)
    took, n = F.col("latency_us"), F.col("n")
    spent = F.sum(took.cast("decimal(19,0)") * n)
    return ranked.groupBy(*dims).agg(
        F.sum("n").alias("n"),
        F.sum(F.when(took.isNull(), n).otherwise(0)).alias("censored"),
        F.max(took).alias("slowest_us"),
        (spent / F.nullif(F.sum(F.when(took.isNotNull(), n)), F.lit(0))).cast("double").alias("mean_us"),
        *[_at_rank(q).alias(f"q{index}") for index, q in enumerate(qs)],
    )


def _at_rank(q: float) -> Column:
    exact = Fraction(repr(q))
    rank = F.expr(f"(total * {exact.numerator} + {exact.denominator - 1}) div {exact.denominator}")
    return F.min(F.when(F.col("upto") >= rank, F.col("latency_us")))


def by_bin(samples: DataFrame, dims: Dims, bins: DataFrame) -> DataFrame:
    """``run whose kind racks segment bin latency_us n slowest_us``; bin 3 starts at ``3 * bin_us`` of ``BINS``.

    It is for plots, so latencies are rounded down by half a percent at most, which leaves few; null is censored.
    """
    rows = with_segment(samples.where("owed"), "intended_us", dims).join(F.broadcast(bins), "run")
    took = F.when(ok(), F.col("done_us") - F.col("intended_us"))
    finer = F.greatest(F.floor(F.log2(F.greatest("took_us", F.lit(1)))) - _PLOTTED_BITS, F.lit(0)).cast("int")
    hist = (
        rows.withColumn("took_us", took)
        .groupBy(
            *("run", number(*WHOSE).alias("whose"), number("client_rack", F.lit(None)).alias("racks"), "segment"),
            F.expr("intended_us div bin_us").alias("bin"),
            F.call_function("shiftleft", F.call_function("shiftright", "took_us", finer), finer).alias("latency_us"),
        )
        .agg(F.count("*").alias("n"), F.max("took_us").alias("slowest_us"))
    )
    return excused(hist.withColumn("kind", F.lit(KINDS.index("latency"))), dims, "whose", "kind")
