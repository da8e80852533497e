"""How long nothing succeeded, and how long it took until all was well again. Both exact, from every record.

::

      inject            first 2 s in which all succeed and p95 <= 2 x steady
        |  x  x x  x  xx |. . . . . . . . .|
        |----recovery--->|

Rules: a gap is clipped to its window, whose ends count as successes would; recovery looks at windows that start at a
record's intended time and end before the load does. A gap is looked for between successes or, where these are many,
between slots of a millisecond, of which only the first and the last success count: a gap of a millisecond or more is
exact, and a shorter one counts as one (``answers.longest``), for nobody sorts 40 million records. Where calm may begin
is known from counts (``calms.py``), and only there are the records looked at one by one.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.measure.names import WHOSE, number
from aftershock.results.measure.samples import client, ok, with_segment
from aftershock.results.measure.tables import KINDS, Dims

GAP_SLOT_US = 1_000
PACES = "run int, pace int, client string, end_us bigint, limit_us bigint"
LOOKS = (
    "run int, calm int, client string, end_us bigint, limit_us bigint, num bigint, den bigint, "
    "at_us bigint, look_us bigint, until_us bigint"
)
_LANE, _ENDS = ("run", "whose", "segment"), ("first_us", "last_us")
_CALM, _COUNTED = ("run", "calm", "client"), ("n", "failed", "slow")
_LOOK = (*_CALM, "look_us")


def successes(samples: DataFrame, dims: Dims, slot_us: int | None) -> DataFrame:
    """``run whose segment first_us last_us n`` by slots, none of which reaches over a segment; None: each by itself."""
    rows = with_segment(samples.where(ok() & F.col("done_us").isNotNull()), "done_us", dims)
    named = rows.withColumn("whose", number(*WHOSE))
    if slot_us is None:
        return named.select(*_LANE, *[F.col("done_us").alias(name) for name in _ENDS], F.lit(1).alias("n"))
    slots = named.groupBy(*_LANE, F.expr(f"done_us div {slot_us}").alias("slot"))
    first, last = _ENDS
    return slots.agg(F.min("done_us").alias(first), F.max("done_us").alias(last), F.count("*").alias("n")).drop("slot")


def stretches(slots: DataFrame) -> DataFrame:
    """``run whose kind segment first_us last_us n gap_us`` (``names.py: named``): what each segment has of successes.

    ``gap_us`` is the longest time between two of them.
    """
    # sorted by one number, which tells apart what three columns do
    told = longest(slots.withColumn("lane", F.xxhash64(*_LANE)), ("lane", *_LANE)).drop("lane")
    return told.withColumn("kind", F.lit(KINDS.index("gap")))


def longest(stretches: DataFrame, by: tuple[str, ...]) -> DataFrame:
    """Stretches of time (``first_us last_us n``, and their own longest ``gap_us``) joined to one for each ``by``."""
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
    """``run pace segment slot n failed slow``: the records of the load by slots of their intended time.

    ``paces`` (``PACES``): a client, until when it is looked at, and the latency over which a record is slow.
    """
    slot = F.expr(f"intended_us div {slot_us}").alias("slot")
    rows = with_segment(_paced(samples, paces), "intended_us", dims)
    return rows.groupBy("run", "pace", "segment", slot).agg(*_counts())


def first_calm(samples: DataFrame, looks: DataFrame, for_us: int) -> DataFrame:
    """``run calm client recovered_us``: the first record from which on all is calm ``for_us`` long, since ``at_us``.

    ``looks`` (``LOOKS``): that record is looked for from ``look_us`` until ``until_us``, one by one, in each look of a
    calm; what lies within ``for_us`` of all of these is counted at once. Calm is: none fails, of n at most
    ``n * (den - num) div den`` are slow, and the load goes on until then.
    """
    intended, until = F.col("intended_us"), F.col("until_us")
    rows = _paced(samples, looks).where((intended >= F.col("look_us")) & (intended < until + for_us))
    common = (intended >= until) & (intended < F.col("look_us") + for_us)
    moment = F.when(common, until).otherwise(intended).alias("intended_us")
    moments = rows.groupBy(*_LOOK, moment, (intended < until).alias("begins")).agg(*_counts())
    # nearest-rank quantile <= limit is the same as: at least ceil(q n) are within it
    calm = (F.col("failed") == 0) & (F.col("slow") <= F.expr("(n * (den - num)) div den"))
    calm = calm & (F.col("intended_us") + for_us <= F.col("end_us"))
    begun = _ahead(moments, for_us).join(F.broadcast(looks), list(_LOOK)).where(calm)
    return begun.groupBy(*_CALM).agg(F.min(F.col("intended_us") - F.col("at_us")).alias("recovered_us"))


def _ahead(moments: DataFrame, for_us: int) -> DataFrame:
    """Those ``moments`` at which calm may have begun (``begins``), with what was counted in the ``for_us`` from there.

    It is the difference of two running sums, before the first of them and after the last: over a frame that slides,
    Spark would add up all of it again for every row.
    """
    before, its, after = (
        F.struct((F.col("intended_us") + later_us).alias("sum_us"), F.lit(turn).alias("turn"))
        for turn, later_us in ((-1, 0), (0, 0), (1, for_us - 1))
    )
    turns = F.when(F.col("begins"), F.array(before, its, after)).otherwise(F.array(its))
    asked = moments.withColumn("ask", F.explode(turns)).select("*", "ask.*")
    until_here = Window.partitionBy(*_LOOK).orderBy("sum_us", "turn").rowsBetween(Window.unboundedPreceding, 0)
    sums = {name: F.col("turn") * F.sum(F.when(F.col("turn") == 0, F.col(name))).over(until_here) for name in _COUNTED}
    begun = asked.withColumns(sums).where("begins and turn <> 0")
    return begun.groupBy(*_LOOK, "intended_us").agg(*[F.sum(name).alias(name) for name in _COUNTED])


def _paced(samples: DataFrame, paces: DataFrame) -> DataFrame:
    """Every produced record of the load, for each pace of its client: whether it failed, and whether it was slow."""
    produced = samples.where("op = 'produce'").withColumn("client", client())
    kept = produced.select("run", "client", "intended_us", "done_us", ok().alias("ok"))
    met = kept.join(F.broadcast(paces), ["run", "client"]).where("intended_us < end_us")
    fast = F.col("ok") & (F.col("done_us") - F.col("intended_us") <= F.col("limit_us"))
    return met.withColumns({"failed": ~F.col("ok"), "slow": ~F.coalesce(fast, F.lit(False))})


def _counts() -> list[Column]:
    """Of ``_paced``: how many there are, and how many of them failed and were slow."""
    return [F.count("*").alias("n"), *[F.count(F.when(F.col(flag), True)).alias(flag) for flag in ("failed", "slow")]]
