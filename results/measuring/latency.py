"""Exact quantiles. Latency is integer microseconds, so the histogram of distinct values is small and loses nothing.

Rules: latency counts from the intended send time (no coordinated omission). A record that failed, is in doubt, or was
acknowledged and never consumed is censored: null, and slower than any threshold. Quantiles are nearest-rank, an
observed value; no sketches (they miss the tail of a fault by 12-100 %). The records are counted once, by elementary
segment: that histogram is *silver*, and every window is a sum over it.
"""

from collections.abc import Sequence
from fractions import Fraction

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.measuring.dims import Dims
from aftershock.results.measuring.samples import client, ok, with_segment

SILVER = ("run", "client", "metric", "segment", "client_rack", "broker_rack", "latency_us", "n", "bytes")
RANKS = "run int, metric string, client string, window string, rank bigint"
BINS = "run int, bin_us bigint"
_BY_WINDOW = ("run", "metric", "client", "window")
_OF = ("run", "workload", "arm", "metric", "segment", "client_rack", "broker_rack", "latency_us")


def silver(samples: DataFrame, dims: Dims) -> DataFrame:
    """``run client metric segment client_rack broker_rack latency_us n bytes``; null latency is censored.

    Metrics: ``produce.latency`` (done - intended), ``produce.service`` (done - sent), ``produce.lateness`` (sent -
    intended: the generator's own fault), the same of ``commit``, and ``consume.latency`` (first delivery - intended).
    Racks are told of latency alone; of a record that a reader never saw, where the plan wants the reader to stand.
    """
    counted = measured(with_segment(samples.where("owed"), "intended_us", dims)).groupBy(*_OF)
    hist = counted.agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes")).withColumn("client", client())
    return excused(hist, dims).select(*SILVER)


def measured(rows: DataFrame) -> DataFrame:
    """Samples once for each metric: with ``metric latency_us``, and racks and bytes where they are told."""
    of_op = [F.when(F.col("op") == op, _metrics(op)) for op in ("produce", "consume", "commit")]
    each = rows.select("*", F.explode(F.coalesce(*of_op)).alias("sample"))
    kept = [name for name in rows.columns if name not in ("client_rack", "broker_rack", "bytes")]
    return each.select(*kept, "sample.*")


def _metrics(op: str) -> Column:
    intended, sent, done = F.col("intended_us"), F.col("sent_us"), F.col("done_us")
    told = [_sample(f"{op}.latency", F.when(ok(), done - intended), whole=True)]
    if op != "consume":
        told += [_sample(f"{op}.service", F.when(ok(), done - sent)), _sample(f"{op}.lateness", sent - intended)]
    return F.array(*told)


def _sample(metric: str, latency_us: Column, *, whole: bool = False) -> Column:
    """``whole``: with what else is counted of it."""
    named = {"metric": F.lit(metric), "latency_us": latency_us}
    for name, kind in (("client_rack", "string"), ("broker_rack", "string"), ("bytes", "int")):
        named[name] = F.col(name) if whole else F.lit(None).cast(kind)
    return F.struct(*[column.alias(name) for name, column in named.items()])


def excused(hist: DataFrame, dims: Dims) -> DataFrame:
    """Without what is no measurement of the client (``Dims.excused``), by segment."""
    return hist.join(F.broadcast(dims.excused), ["run", "metric", "client", "segment"], "left_anti")


def histogram(rows: DataFrame, dims: Sequence[str]) -> DataFrame:
    """``dims`` and ``latency_us`` with ``n``, how often that value was seen: exact, and mergeable."""
    return rows.groupBy(*dims, "latency_us").agg(F.count("*").alias("n"))


def by_window(hist: DataFrame, dims: Dims) -> DataFrame:
    """``run metric client window latency_us n bytes upto total`` of silver: what lies in several windows is in each.

    ``upto`` of its window's ``total`` took no longer; the censored come last.
    """
    named = hist.join(F.broadcast(dims.segment_windows.drop("start_us", "end_us")), ["run", "segment"])
    whole = named.groupBy(*_BY_WINDOW, "latency_us").agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes"))
    return cumulative(whole, _BY_WINDOW)


def cumulative(hist: DataFrame, dims: Sequence[str]) -> DataFrame:
    """``hist`` with ``upto``, how many of its ``dims`` took no longer, and ``total``; the censored come last."""
    upto = Window.partitionBy(*dims).orderBy(F.col("latency_us").asc_nulls_last())
    total = F.sum("n").over(Window.partitionBy(*dims))
    return hist.withColumn("upto", F.sum("n").over(upto)).withColumn("total", total)


def quantiles(hist: DataFrame, dims: Sequence[str], qs: Sequence[float]) -> DataFrame:
    """``dims n censored slowest_us mean_us q0 q1 ...``: the nearest-rank quantile of each of ``qs``, null if censored.

    ``q`` 1.0 is the maximum. The rank is ceil(q * n) in whole numbers: as floats 0.07 * 100 is more than 7.
    """
    return ranked(cumulative(hist, dims), dims, qs)


def ranked(cumulated: DataFrame, dims: Sequence[str], qs: Sequence[float], *more: Column) -> DataFrame:
    """The same of what ``cumulative`` gave, with ``more`` aggregates."""
    took, n = F.col("latency_us"), F.col("n")
    spent = F.sum(took.cast("decimal(19,0)") * n)
    return cumulated.groupBy(*dims).agg(
        F.sum("n").alias("n"),
        F.sum(F.when(took.isNull(), n).otherwise(0)).alias("censored"),
        F.max(took).alias("slowest_us"),
        (spent / F.nullif(F.sum(F.when(took.isNotNull(), n)), F.lit(0))).cast("double").alias("mean_us"),
        *[_at_rank(q).alias(f"q{index}") for index, q in enumerate(qs)],
        *more,
    )


def _at_rank(q: float) -> Column:
    exact = Fraction(repr(q))
    rank = F.expr(f"(total * {exact.numerator} + {exact.denominator - 1}) div {exact.denominator}")
    return F.min(F.when(F.col("upto") >= rank, F.col("latency_us")))


SPECTRA = ("run", "steady", "fault", "recovery")
"""The windows of which a whole spectrum is told, and what went between racks."""


def summary(windows: DataFrame, qs: Sequence[float]) -> DataFrame:
    """``run metric client window n censored slowest_us mean_us bytes backwards q0 ... points`` of ``by_window``.

    ``bytes`` are of what succeeded, ``backwards`` what took less than no time. ``points`` (``upto latency_us``, of the
    windows ``SPECTRA`` and of latency alone) draw the distribution, four for each halving of what is slower. Each is
    exact: ``upto`` of n took no longer. The slowest that is not censored is always there, and so is the end.
    """
    last = F.max("latency_us").over(Window.partitionBy(*_BY_WINDOW))
    step = _halvings(F.col("upto")) > _halvings(F.col("upto") - F.col("n"))
    told = F.col("window").isin(*SPECTRA) & F.col("metric").endswith(".latency")
    chosen = told & (step | (F.col("upto") == F.col("total")) | (F.col("latency_us") == F.col("last")))
    return ranked(
        windows.withColumn("last", last),
        _BY_WINDOW,
        qs,
        F.sum(F.when(F.col("latency_us").isNotNull(), F.col("bytes"))).alias("bytes"),
        F.sum(F.when(F.col("latency_us") < 0, F.col("n")).otherwise(0)).alias("backwards"),
        F.collect_list(F.when(chosen, F.struct("upto", "latency_us"))).alias("points"),
    )


def _halvings(upto: Column) -> Column:
    """How often the slower part has halved, in quarters; of none that is slower, more than any."""
    slower = F.greatest(F.col("total") - upto, F.lit(0.5))
    return F.floor(4 * F.log2(F.col("total") / slower))


def rack_flows(hist: DataFrame, dims: Dims) -> DataFrame:
    """``run metric client window client_rack broker_rack n bytes p50_us p99_us`` of silver."""
    by = (*_BY_WINDOW, "client_rack", "broker_rack")
    told = dims.segment_windows.drop("start_us", "end_us").where(F.col("window").isin(*SPECTRA))
    of_latency = hist.where(F.col("metric").endswith(".latency")).join(F.broadcast(told), ["run", "segment"])
    whole = of_latency.groupBy(*by, "latency_us").agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes"))
    flows = ranked(cumulative(whole, by), by, (0.5, 0.99), F.sum("bytes").alias("bytes"))
    return flows.withColumnsRenamed({"q0": "p50_us", "q1": "p99_us"})


def at_ranks(windows: DataFrame, ranks: DataFrame) -> DataFrame:
    """``run metric client window rank latency_us``: of ``by_window`` the value at each of ``ranks``, from 1."""
    here = (F.col("rank") > F.col("upto") - F.col("n")) & (F.col("rank") <= F.col("upto"))
    met = windows.join(F.broadcast(ranks), [*_BY_WINDOW]).where(here)
    return met.select(*_BY_WINDOW, "rank", "latency_us")


def by_bin(samples: DataFrame, dims: Dims, bins: DataFrame) -> DataFrame:
    """Histogram of latency by ``run metric client rack bin``; bin 3 starts at ``3 * bin_us`` of ``BINS``."""
    rows = with_segment(samples.where("owed"), "intended_us", dims).join(F.broadcast(bins), "run")
    metric = F.concat("op", F.lit(".latency"))
    hist = rows.groupBy(
        *("run", "workload", "arm", metric.alias("metric"), F.col("client_rack").alias("rack"), "segment"),
        F.expr("intended_us div bin_us").alias("bin"),
        F.when(ok(), F.col("done_us") - F.col("intended_us")).alias("latency_us"),
    ).agg(F.count("*").alias("n"))
    seen = excused(hist.withColumn("client", client()), dims)
    return seen.groupBy("run", "metric", "client", "rack", "bin", "latency_us").agg(F.sum("n").alias("n"))
