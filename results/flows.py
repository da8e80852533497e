"""What crossed the links and how the host fared, from the sampled metrics.

Rules: a counter's bytes between two samples are counted for a span only if both samples lie in it (with the grace its
caller allows); a counter never shrinks by us, so a negative difference is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.phases import Windows, with_windows

SENT = "client.sent_bytes/"  # counted by the clients: Toxiproxy counts a connection's bytes only when it closes
TICK_LATE_US = 50_000


@dataclass(frozen=True)
class Passage:
    """Which proxies (a regular expression over whole names) to look at, and from when to when, for one fault."""

    fault: str
    proxies: str
    from_us: int
    to_us: int


def crossed(metrics: DataFrame, passages: Sequence[Passage]) -> DataFrame:
    """``fault bytes n``: bytes that clients sent into each passage's proxies within its time, n samples of counters."""
    one = Window.partitionBy("name").orderBy("t_us")
    counters = metrics.where(F.col("name").startswith(SENT)).select(
        F.split_part("name", F.lit("/"), F.lit(2)).alias("proxy"),
        F.lag("t_us").over(one).alias("from_us"),
        F.col("t_us").alias("to_us"),
        F.greatest(F.col("value") - F.lag("value").over(one), F.lit(0.0)).alias("bytes"),
    )
    met = F.explode(F.array_compact(F.array(*map(_met, passages))))
    return counters.select("bytes", met.alias("fault")).groupBy("fault").agg(F.sum("bytes").alias("bytes"), _n())


def produced(outcomes: DataFrame, windows: Windows) -> DataFrame:
    """``window topic partition n``: records that were produced, by the fault's window they were meant for."""
    of_faults = {name: spans for name, spans in windows.items() if name.startswith("fault/")}
    rows = with_windows(outcomes.where(F.col("op") == "produce"), "intended_us", of_faults)
    return (
        rows.select(F.explode("windows").alias("window"), "topic", "partition")
        .groupBy("window", "topic", "partition")
        .agg(_n())
    )


def _met(passage: Passage) -> Column:
    when = (F.col("from_us") >= passage.from_us) & (F.col("to_us") <= passage.to_us)
    return F.when(when & F.col("proxy").rlike(f"^(?:{passage.proxies})$"), F.lit(passage.fault))


def _n() -> Column:
    return F.count("*").alias("n")


def host(metrics: DataFrame, from_us: int, to_us: int) -> DataFrame:
    """One row: ``ticks late_ticks cpu_busy steal`` (means, 0..1, null where not sampled) between the two moments."""
    judged = metrics.where((F.col("t_us") >= from_us) & (F.col("t_us") < to_us))

    def value_of(name: str) -> Column:
        return F.when(F.col("name") == name, F.col("value"))

    late_us = value_of("host.tick_late_us")
    return judged.agg(
        F.count(late_us).alias("ticks"),
        F.count(F.when(late_us > TICK_LATE_US, True)).alias("late_ticks"),
        F.avg(value_of("host.cpu_busy")).alias("cpu_busy"),
        F.avg(value_of("host.steal")).alias("steal"),
    )
