"""Exact quantiles. Latency is integer microseconds, so the histogram of distinct values is small and loses nothing.

Rules: latency counts from the intended send time (no coordinated omission). A record that failed, is in doubt, or was
acknowledged and never consumed is censored: null, and slower than any threshold. Quantiles are nearest-rank, an
observed value; no sketches (they miss the tail of a fault by 12-100 %).
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.evidence import Client
from aftershock.results.ledger import acked, owed
from aftershock.results.phases import Interval, in_intervals


def samples(ledger: DataFrame, readers: Sequence[Client], judged_from_us: int) -> DataFrame:
    """``metric client rack intended_us latency_us``, one row a record and metric; null latency is a censored sample.

    Metrics: ``produce.latency`` (done - intended), ``produce.service`` (done - sent), ``produce.lateness`` (sent -
    intended: the generator's own fault), ``consume.latency`` (first delivery - intended) for each reader. The rack is
    the producer's or the reader's own; of a record that a reader never saw, where the plan wants the reader to stand.
    """
    intended, sent, done = F.col("intended_us"), F.col("sent_us"), F.col("done_us")
    client, rack = F.col("client"), F.col("client_rack")
    measured = [
        _sample("produce.latency", client, rack, F.when(acked(), done - intended)),
        _sample("produce.service", client, rack, F.when(acked(), done - sent)),
        _sample("produce.lateness", client, rack, sent - intended),
    ]
    for index, reader in enumerate(readers):
        stood = F.coalesce(F.col(f"rack_{index}"), F.lit(reader.consume_rack))
        sample = _sample("consume.latency", F.lit(reader.key), stood, F.col(f"first_us_{index}") - intended)
        measured.append(F.when(acked() & owed(reader, judged_from_us), sample))
    return (
        ledger.where(F.col("client").isNotNull())
        .select("intended_us", F.explode(F.array_compact(F.array(*measured))).alias("sample"))
        .select("sample.*", "intended_us")
    )


def commit_samples(outcomes: DataFrame) -> DataFrame:
    """Samples of commits, like those of records: ``commit.latency``, ``commit.service``, ``commit.lateness``.

    Commits are no records: they have no place in the log or the ledger, and are read off their outcome rows alone.
    """
    intended, sent, done = F.col("intended_us"), F.col("sent_us"), F.col("done_us")
    client, rack = F.concat_ws("/", "workload", "arm"), F.col("client_rack")
    measured = [
        _sample("commit.latency", client, rack, F.when(acked(), done - intended)),
        _sample("commit.service", client, rack, F.when(acked(), done - sent)),
        _sample("commit.lateness", client, rack, sent - intended),
    ]
    commits = outcomes.where(F.col("op") == "commit")
    return commits.select("intended_us", F.explode(F.array(*measured)).alias("sample")).select(
        "sample.*", "intended_us"
    )


def excused(rows: DataFrame, held: Mapping[tuple[str, str], Sequence[Interval]]) -> DataFrame:
    """Samples without the lateness of what was due while a fault held the very client that was to send it."""
    late = [
        (F.col("metric") == f"{side}.lateness") & (F.col("client") == key) & in_intervals(F.col("intended_us"), spans)
        for (side, key), spans in held.items()
    ]
    return rows.where(~reduce(or_, late)) if late else rows


def _sample(metric: str, client: Column, rack: Column, latency_us: Column) -> Column:
    named = {"metric": F.lit(metric), "client": client, "rack": rack, "latency_us": latency_us}
    return F.struct(*[column.alias(name) for name, column in named.items()])


def histogram(rows: DataFrame, dims: Sequence[str]) -> DataFrame:
    """``dims`` and ``latency_us`` with ``n``, how often that value was seen: exact, and mergeable."""
    return rows.groupBy(*dims, "latency_us").agg(F.count("*").alias("n"))


def quantiles(hist: DataFrame, dims: Sequence[str], qs: Sequence[float]) -> DataFrame:
    """``dims n censored slowest_us q0 q1 ...``: the nearest-rank quantile of each of ``qs``, null where censored.

    ``q`` 1.0 is the maximum. The rank is ceil(q * n) in whole numbers: as floats 0.07 * 100 is more than 7.
    """
    upto = Window.partitionBy(*dims).orderBy(F.col("latency_us").asc_nulls_last())
    total = F.sum("n").over(Window.partitionBy(*dims))
    ranked = hist.withColumn("upto", F.sum("n").over(upto)).withColumn("total", total)
    return ranked.groupBy(*dims).agg(
        F.sum("n").alias("n"),
        F.sum(F.when(F.col("latency_us").isNull(), F.col("n")).otherwise(0)).alias("censored"),
        F.max("latency_us").alias("slowest_us"),
        *[_at_rank(q).alias(f"q{index}") for index, q in enumerate(qs)],
    )


def _at_rank(q: float) -> Column:
    exact = Fraction(repr(q))
    rank = F.expr(f"(total * {exact.numerator} + {exact.denominator - 1}) div {exact.denominator}")
    return F.min(F.when(F.col("upto") >= rank, F.col("latency_us")))


def by_window(rows: DataFrame) -> DataFrame:
    """Samples with ``windows`` as one row a window: ``metric client window latency_us``."""
    return rows.select("metric", "client", F.explode("windows").alias("window"), "latency_us")


def by_bin(rows: DataFrame, bin_us: int) -> DataFrame:
    """Samples of latency as ``metric client rack bin latency_us``; bin 3 starts at ``3 * bin_us``."""
    drawn = rows.where(F.col("metric").isin("produce.latency", "consume.latency", "commit.latency"))
    return drawn.select("metric", "client", "rack", F.expr(f"intended_us div {bin_us}").alias("bin"), "latency_us")
