"""Gaps between successes, exact, from every record.

A gap between successes is clipped to its window, whose ends are taken as successes. Gaps are measured between successes
or, in large runs, between the first and the last success of slots of a millisecond, because sorting 40 million records
is too slow; a gap of a millisecond or more is exact, a shorter gap is reported as a millisecond (``answers.longest``).
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.measure.samples import ok, with_segment
from aftershock.results.tables.dims import KINDS, Dims
from aftershock.results.tables.names import CLIENT_COLUMNS, hash_of

GAP_SLOT_US = 1_000
_LANE, _ENDS = ("run", "client_hash", "segment"), ("first_us", "last_us")


def successes(samples: DataFrame, dims: Dims, slot_us: int | None) -> DataFrame:
    """Return the first and last success by client, segment and time slot; without ``slot_us``, every success."""
    rows = with_segment(samples.where(ok() & F.col("done_us").isNotNull()), "done_us", dims)
    named = rows.withColumn("client_hash", hash_of(*CLIENT_COLUMNS))
    if slot_us is None:
        return named.select(*_LANE, *[F.col("done_us").alias(name) for name in _ENDS], F.lit(1).alias("n"))
    slots = named.groupBy(*_LANE, F.expr(f"done_us div {slot_us}").alias("slot"))
    first, last = _ENDS
    return slots.agg(F.min("done_us").alias(first), F.max("done_us").alias(last), F.count("*").alias("n")).drop("slot")


def success_stretches(slots: DataFrame) -> DataFrame:
    """Return ``first_us last_us n gap_us`` (first and last success, number, longest gap) by client and segment."""
    # sorting by one hash is faster than by three columns
    joined = longest(slots.withColumn("lane", F.xxhash64(*_LANE)), ("lane", *_LANE)).drop("lane")
    return joined.withColumn("kind", F.lit(KINDS.index("gap")))


def longest(stretches: DataFrame, by: tuple[str, ...]) -> DataFrame:
    """Merge rows ``first_us last_us n`` into one row per group ``by``, and add the longest gap between successes."""
    inner = F.col("gap_us") if "gap_us" in stretches.columns else F.lit(0).cast("bigint")
    between = F.col("first_us") - F.lag("last_us").over(Window.partitionBy(*by).orderBy("first_us"))
    return (
        stretches.withColumn("gap_us", F.greatest(inner, F.coalesce(between, inner)))
        .groupBy(*by)
        .agg(
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
            F.sum("n").alias("n"),
            F.max("gap_us").alias("gap_us"),
        )
    )
