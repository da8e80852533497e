"""What crossed the links, what was produced where, and how the host fared: sums over the runs' tables.

Rules: a counter's bytes between two samples are counted for a span only if both samples lie in it (with the grace its
caller allows); a counter never shrinks by us, so a negative difference is none.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.measuring.dims import Dims
from aftershock.results.measuring.samples import with_segment

SENT = "client.sent_bytes/"  # counted by the clients: Toxiproxy counts a connection's bytes only when it closes
TICK_LATE_US = 50_000
PASSAGES = "run int, fault string, proxies string, start_us bigint, end_us bigint"


@dataclass(frozen=True)
class Passage:
    """Which proxies (a regular expression over whole names) to look at, and from when to when, for one fault."""

    fault: str
    proxies: str
    from_us: int
    to_us: int


def crossed(metrics: DataFrame, passages: DataFrame) -> DataFrame:
    """``run fault bytes n``: what clients sent into each passage's proxies (``PASSAGES``) within its time.

    ``n`` are samples of counters.
    """
    one = Window.partitionBy("run", "name").orderBy("t_us")
    counters = metrics.where(F.col("name").startswith(SENT)).select(
        "run",
        F.split_part("name", F.lit("/"), F.lit(2)).alias("proxy"),
        F.lag("t_us").over(one).alias("from_us"),
        F.col("t_us").alias("to_us"),
        F.greatest(F.col("value") - F.lag("value").over(one), F.lit(0.0)).alias("bytes"),
    )
    within = (F.col("from_us") >= F.col("start_us")) & (F.col("to_us") <= F.col("end_us"))
    named = F.expr("proxy rlike concat('^(?:', proxies, ')$')")
    met = counters.join(F.broadcast(passages), "run").where(within & named)
    return met.groupBy("run", "fault").agg(F.sum("bytes").cast("bigint").alias("bytes"), _n())


def produced(samples: DataFrame, dims: Dims) -> DataFrame:
    """``run window topic partition n``: records that were produced, by the fault's window they were meant for."""
    rows = with_segment(samples.where("op = 'produce' and partition is not null"), "intended_us", dims)
    counted = rows.groupBy("run", "segment", "topic", "partition").agg(_n())
    of_faults = dims.segment_windows.where(F.col("window").startswith("fault/"))
    named = counted.join(F.broadcast(of_faults), ["run", "segment"])
    return named.groupBy("run", "window", "topic", "partition").agg(F.sum("n").alias("n"))


def _n() -> Column:
    return F.count("*").alias("n")


def host(metrics: DataFrame, dims: Dims) -> DataFrame:
    """``run ticks late_ticks cpu_busy steal`` (means, 0..1, null where not sampled) after warm-up; no row if none."""
    judged = metrics.join(F.broadcast(dims.ends), "run").where("t_us >= judged_from_us and t_us < end_us")

    def value_of(name: str) -> Column:
        return F.when(F.col("name") == name, F.col("value"))

    late_us = value_of("host.tick_late_us")
    return judged.groupBy("run").agg(
        F.count(late_us).alias("ticks"),
        F.count(F.when(late_us > TICK_LATE_US, True)).alias("late_ticks"),
        *[_mean(value_of(f"host.{name}")).alias(name) for name in ("cpu_busy", "steal")],
    )


def _mean(share: Column) -> Column:
    """Of decimals: a sum of floats hangs on the order of the rows."""
    return F.avg(share.cast("decimal(18,9)")).cast("double")
