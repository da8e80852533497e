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

from aftershock.results.measuring.dims import KINDS, SIDES, Dims
from aftershock.results.measuring.names import RACKS, WHOSE, number
from aftershock.results.measuring.plotted import PLOTTED_BITS
from aftershock.results.measuring.samples import client, ok, with_segment

BINS = "run int, bin_us bigint"
_BIN = "intended_us div bin_us"


def silver(samples: DataFrame, dims: Dims, bins: DataFrame | None = None) -> DataFrame:
    """``run whose kind segment racks bin latency_us n bytes`` (``names.py: named``); null latency is censored.

    Metrics: those of ``latencies``, and of ``sendings``. Racks, bins and bytes are told of latency alone.
    """
    return excused(latencies(samples, dims, bins).unionByName(sendings(samples, dims)), dims, "whose", "kind")


def latencies(samples: DataFrame, dims: Dims, bins: DataFrame | None = None) -> DataFrame:
    """Of ``silver`` the ``produce.latency`` and ``commit.latency`` (done - intended), and ``consume.latency``.

    That is of the first delivery; the racks of a record that a reader never saw are where the plan wants it to stand.
    With ``bins`` (``BINS``) those of a plot are told apart.
    """
    took, bin_ = F.when(ok(), F.col("done_us") - F.col("intended_us")), F.lit(None).cast("bigint")
    rows = _placed(samples.where(F.col("op").isin(*SIDES)), dims)
    if bins is not None:
        rows, bin_ = rows.join(F.broadcast(bins), "run"), F.expr(_BIN)
    told = rows.withColumns({"racks": number(*RACKS), "bin": bin_, "latency_us": took})
    counted = told.groupBy("run", "whose", "segment", "racks", "bin", "latency_us")
    return counted.agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes")).withColumn("kind", _number("latency"))


def sendings(samples: DataFrame, dims: Dims) -> DataFrame:
    """The others: ``produce.service`` (done - sent) and ``produce.lateness`` (sent - intended), the same of ``commit``.

    Counted apart, for half as much tells them apart. Lateness is the generator's own fault.
    """
    service, lateness = F.when(ok(), F.col("done_us") - F.col("sent_us")), F.col("sent_us") - F.col("intended_us")
    rows = _placed(samples.where(F.col("op").isin("produce", "commit")), dims)
    each = F.posexplode(F.array(service, lateness)).alias("second", "latency_us")
    both = rows.select("run", "whose", "segment", each)
    counted = both.groupBy("run", "whose", "segment", "second", "latency_us").agg(F.count("*").alias("n"))
    kind = F.when(F.col("second") == 0, _number("service")).otherwise(_number("lateness"))
    untold = {name: F.lit(None).cast("bigint") for name in ("bin", "bytes")}
    nowhere = number(F.lit(None), F.lit(None))
    return counted.withColumns({"kind": kind, "racks": nowhere, **untold}).drop("second")


def _placed(samples: DataFrame, dims: Dims) -> DataFrame:
    """The measurements, each with its segment and ``whose`` it is."""
    return with_segment(samples.where("owed"), "intended_us", dims).withColumn("whose", number(*WHOSE))


def _number(kind: str) -> Column:
    return F.lit(KINDS.index(kind))


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

    It is for plots, so latencies are rounded (``plotted.py``), which leaves few; null is censored.
    """
    rows = _placed(samples.where("intended_us is not null"), dims).join(F.broadcast(bins), "run")
    took = F.when(ok(), F.col("done_us") - F.col("intended_us"))
    halvings = F.floor(F.log2(F.greatest("took_us", F.lit(1)) + 0.5)) - PLOTTED_BITS
    finer = F.greatest(halvings, F.lit(0)).cast("int")
    hist = (
        rows.withColumn("took_us", took)
        .groupBy(
            *("run", "whose", number("client_rack", F.lit(None)).alias("racks"), "segment"),
            F.expr(_BIN).alias("bin"),
            F.call_function("shiftleft", F.call_function("shiftright", "took_us", finer), finer).alias("latency_us"),
        )
        .agg(F.count("*").alias("n"), F.max("took_us").alias("slowest_us"))
    )
    return excused(hist.withColumn("kind", _number("latency")), dims, "whose", "kind")
