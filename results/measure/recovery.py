"""Gaps between successes and time to recovery, both exact, from every record.

::

      injection         first 2 s in which every record succeeds and p95 <= 2 x steady
        |  x  x x  x  xx |. . . . . . . . .|
        |----recovery--->|

A gap between successes is clipped to its window, whose ends are taken as successes. A calm period starts at a
record's intended time and ends before the load does. Gaps are measured between successes or, in large runs, between the
first and the last success of slots of a millisecond, because sorting 40 million records is too slow; a gap of a
millisecond or more is exact, a shorter gap is reported as a millisecond (``answers.longest``).
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.measure.names import CLIENT_COLUMNS, hash_of
from aftershock.results.measure.samples import client, ok, slot_of, with_segment
from aftershock.results.measure.tables import KINDS, Dims

GAP_SLOT_US = 1_000
PACES = "run int, pace int, client string, end_us bigint, limit_us bigint"
LOOKS = (
    "run int, calm int, client string, end_us bigint, limit_us bigint, num bigint, den bigint, "
    "at_us bigint, look_us bigint, until_us bigint, slot bigint"
)
_LANE, _ENDS = ("run", "client_hash", "segment"), ("first_us", "last_us")
_CALM, _COUNTED = ("run", "calm", "client"), ("n", "failed", "slow")
_LOOK = (*_CALM, "look_us")


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


def pace_slots(samples: DataFrame, paces: DataFrame, dims: Dims, slot_us: int) -> DataFrame:
    """Count records, ``failed`` and ``slow`` records, by row of ``paces``, segment and slot of the intended time.

    A row of the table ``paces`` (``PACES``) has a client, an end time, and the latency above which a record is slow.
    """
    slot = F.expr(f"intended_us div {slot_us}").alias("slot")
    rows = with_segment(_paced(samples, paces), "intended_us", dims)
    return rows.groupBy("run", "pace", "segment", slot).agg(*_counts())


def first_calm(samples: DataFrame, looks: DataFrame, for_us: int) -> DataFrame:
    """Return the time from ``at_us`` to the first calm period of ``for_us``, as ``run calm client recovered_us``.

    A calm period may start at each record intended in an interval (``look_us`` to ``until_us``) of ``looks``, a table
    with a row for each second of the interval and the ``for_us`` after it (``slot``), so that a record is compared with
    few of hundreds of intervals. A period is calm if no record in it fails, at most a share of 1 - ``num / den`` of its
    records is slow, and the period ends before the load.
    """
    intended, until = F.col("intended_us"), F.col("until_us")
    rows = _paced(samples.withColumn("slot", slot_of("intended_us")), looks, "slot").where(
        (intended >= F.col("look_us")) & (intended < until + for_us)
    )
    # records that lie in all periods of a look are counted once
    common = (intended >= until) & (intended < F.col("look_us") + for_us)
    moment = F.when(common, until).otherwise(intended).alias("intended_us")
    moments = rows.groupBy(*_LOOK, moment, (intended < until).alias("begins")).agg(*_counts())
    # nearest-rank quantile <= limit: at least ceil(q n) records are within the limit
    calm = (F.col("failed") == 0) & (F.col("slow") <= F.expr("(n * (den - num)) div den"))
    calm = calm & (F.col("intended_us") + for_us <= F.col("end_us"))
    of_looks = F.broadcast(looks.drop("slot").distinct())
    periods = _ahead(moments, for_us).join(of_looks, list(_LOOK)).where(calm)
    return periods.groupBy(*_CALM).agg(F.min(F.col("intended_us") - F.col("at_us")).alias("recovered_us"))


def _ahead(moments: DataFrame, for_us: int) -> DataFrame:
    """Return each moment at which a calm period may begin, and the counts of records in the next ``for_us``.

    The count of a period is the difference of two running sums, because Spark would sum a sliding window again for each
    row.
    """
    before, own, after = (
        F.struct((F.col("intended_us") + later_us).alias("sum_us"), F.lit(turn).alias("turn"))
        for turn, later_us in ((-1, 0), (0, 0), (1, for_us - 1))
    )
    turns = F.when(F.col("begins"), F.array(before, own, after)).otherwise(F.array(own))
    exploded = moments.select("*", F.inline(turns))
    upto = Window.partitionBy(*_LOOK).orderBy("sum_us", "turn").rowsBetween(Window.unboundedPreceding, 0)
    sums = {name: F.col("turn") * F.sum(F.when(F.col("turn") == 0, F.col(name))).over(upto) for name in _COUNTED}
    periods = exploded.withColumns(sums).where("begins and turn <> 0")
    return periods.groupBy(*_LOOK, "intended_us").agg(*[F.sum(name).alias(name) for name in _COUNTED])


def _paced(samples: DataFrame, paces: DataFrame, *slot: str) -> DataFrame:
    """Join the produced records with the rows of ``paces`` of their client, and add flags ``failed`` and ``slow``."""
    produced = samples.where("op = 'produce'").withColumn("client", client())
    columns = produced.select("run", "client", *slot, "intended_us", "done_us", ok().alias("ok"))
    paced = columns.join(F.broadcast(paces), ["run", "client", *slot]).where("intended_us < end_us")
    fast = F.col("ok") & (F.col("done_us") - F.col("intended_us") <= F.col("limit_us"))
    return paced.withColumns({"failed": ~F.col("ok"), "slow": ~F.coalesce(fast, F.lit(False))})


def _counts() -> list[Column]:
    return [F.count("*").alias("n"), *[F.count(F.when(F.col(flag), True)).alias(flag) for flag in ("failed", "slow")]]
