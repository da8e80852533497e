"""How long nothing succeeded, and how long it took until all was well again. Both exact, from every record.

::

      inject            first 2 s in which all succeed and p95 <= 2 x steady
        |  x  x x  x  xx |. . . . . . . . .|
        |----recovery--->|

Rules: a gap is clipped to its window, whose ends count as successes would; recovery looks at windows that start at a
record's intended time and end before the load does.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.evidence import Client
from aftershock.results.ledger import acked
from aftershock.results.phases import Windows, moment

CALM_US = 2_000_000
SLOWER_THAN_STEADY = 2


def successes(ledger: DataFrame, readers: Sequence[Client]) -> DataFrame:
    """``metric client done_us``: every acknowledgement (produce.gap) and every first delivery (consume.gap)."""
    moments = [_moment("produce.gap", F.col("client"), F.when(acked(), F.col("done_us")))]
    for index, reader in enumerate(readers):
        moments.append(_moment("consume.gap", F.lit(reader.key), F.col(f"first_us_{index}")))
    exploded = ledger.select(F.explode(F.array(*moments)).alias("moment")).select("moment.*")
    return exploded.where(F.col("done_us").isNotNull() & F.col("client").isNotNull())


def commit_successes(outcomes: DataFrame) -> DataFrame:
    """``metric client done_us``: every acknowledged commit (commit.gap)."""
    acknowledged = outcomes.where((F.col("op") == "commit") & acked() & F.col("done_us").isNotNull())
    return acknowledged.select(
        F.lit("commit.gap").alias("metric"), F.concat_ws("/", "workload", "arm").alias("client"), "done_us"
    )


def _moment(metric: str, client: Column, done_us: Column) -> Column:
    return F.struct(F.lit(metric).alias("metric"), client.alias("client"), done_us.alias("done_us"))


def gaps(moments: DataFrame, windows: Windows) -> DataFrame:
    """``metric client window n longest_us``: the longest time without a success within each window.

    A window in which a client never succeeded has no row.
    """
    spans = F.array_compact(F.array(*[_span(name, span) for name, all_ in windows.items() for span in all_]))
    one = Window.partitionBy("metric", "client", "window", "start").orderBy("done_us")
    before = F.coalesce(F.lag("done_us").over(one), F.col("start"))
    return (
        moments.select("*", F.explode(spans).alias("span"))
        .select("metric", "client", "done_us", "span.*")
        .withColumn("gap_us", F.col("done_us") - before)
        .groupBy("metric", "client", "window", "start", "end")
        .agg(F.count("*").alias("n"), F.max("gap_us").alias("gap_us"), F.max("done_us").alias("last_us"))
        .withColumn("gap_us", F.greatest("gap_us", F.col("end") - F.col("last_us")))
        .groupBy("metric", "client", "window")
        .agg(F.sum("n").alias("n"), F.max("gap_us").alias("longest_us"), F.collect_set("start").alias("starts"))
    )


def _span(name: str, span: tuple[int, int]) -> Column:
    start, end = span
    inside = (F.col("done_us") >= start) & (F.col("done_us") < end)
    told = F.struct(F.lit(name).alias("window"), moment(start).alias("start"), moment(end).alias("end"))
    return F.when(inside, told)


def recoveries(
    ledger: DataFrame, injects_us: Mapping[str, int], steady_p95_us: Mapping[str, int], load_end_us: int
) -> DataFrame:
    """``fault client n recovered_us``: time from inject to the start of the first calm 2 s, null if there was none.

    ``injects_us`` by fault id, ``steady_p95_us`` by client key. Clients without a steady p95 have no row.
    """
    begun = [F.when(F.col("intended_us") >= at, _fault(name, at)) for name, at in injects_us.items()]
    allowed = [F.when(F.col("client") == key, p95 * SLOWER_THAN_STEADY) for key, p95 in steady_p95_us.items()]
    ahead = Window.partitionBy("fault", "client").orderBy("intended_us").rangeBetween(0, CALM_US - 1)
    in_time = acked() & (F.col("done_us") - F.col("intended_us") <= F.coalesce(F.lit(None).cast("bigint"), *allowed))
    records = ledger.where(F.col("client").isin(list(steady_p95_us)) & (F.col("intended_us") < load_end_us))
    judged = records.select("client", "intended_us", acked().alias("ok"), in_time.alias("fast"), _faults(begun))
    counted = judged.select("client", "intended_us", "ok", "fast", "begun.*").withColumns(
        {
            "records": F.count("*").over(ahead),
            "succeeded": F.count(F.when(F.col("ok"), True)).over(ahead),
            "quick": F.count(F.when(F.col("fast"), True)).over(ahead),
        }
    )
    # nearest-rank p95 <= limit is the same as: at least ceil(0.95 n) are within it
    calm = (F.col("succeeded") == F.col("records")) & (F.col("quick") * 20 >= F.col("records") * 19)
    calm = calm & (F.col("intended_us") + CALM_US <= load_end_us)
    return counted.groupBy("fault", "client").agg(
        F.count("*").alias("n"), F.min(F.when(calm, F.col("intended_us") - F.col("at"))).alias("recovered_us")
    )


def _fault(name: str, at_us: int) -> Column:
    return F.struct(F.lit(name).alias("fault"), moment(at_us).alias("at"))


def _faults(begun: Sequence[Column]) -> Column:
    return F.explode(F.array_compact(F.array(*begun))).alias("begun")
