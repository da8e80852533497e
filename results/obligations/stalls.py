"""The stalls: how long records waited while nothing at all succeeded, for each client, partition by partition.

::

    success        record B wanted        record C wanted         success (B or C)
       |-----------------|----------- stall ------------------------|
       |------------------------- silence --------------------------|

Rules. A stall begins with the last success or, if nothing was wanted then, with the first record that was; it ends with
the next success, or the failure of the last record that waited, when no other is wanted within a second. So an idle
client never stalls, and one whose records all fail does. Wanted is: to be acknowledged, from the intended time on; to
be delivered, from the acknowledgement on; to be committed, from the intended time on. Records whose partition nobody
knows (they failed unsent) count for the client as a whole, which is partition null.

A stall lies in a silence, the time between two successes. Silences are found by slots of time (``silences.py``), and no
records are sorted for that; only those that waited in one are looked at one by one. Both steps are exact.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.measuring.dims import Dims
from aftershock.results.measuring.names import WHOSE, number
from aftershock.results.measuring.samples import client, ok

SECOND_US = 1_000_000
JOINED_US = 1_000_000
_WHO = ("run", "side", "client", "partition")
_LANE = ("run", "whose", "partition")
_RECORD = ("run", "producer_id", "seq")
_CHUNK = 64


def waits(samples: DataFrame, dims: Dims) -> DataFrame:
    """``run side whose client partition producer_id seq wanted_us done_us ok``: every record for its partition.

    What never got a final status is done when the load ends. A delivery is wanted since it was intended, which is too
    early: ``acknowledged`` mends that, once few are left. What a reader was not owed is not wanted.
    """
    judged = samples.join(F.broadcast(dims.ends), "run")
    wanted = F.when(F.col("owed"), F.col("intended_us"))
    return judged.select(
        *("run", F.col("op").alias("side"), number(*WHOSE).alias("whose"), client().alias("client")),
        F.when(F.col("op") != "commit", F.col("partition")).alias("partition"),
        *("producer_id", "seq", wanted.alias("wanted_us"), F.coalesce("done_us", "end_us").alias("done_us")),
        ok().alias("ok"),
    )


def slots(waits: DataFrame, slot_us: int) -> DataFrame:
    """``run whose delivered partition slot first_us last_us wanted_us done_us failed`` by slots of when they were done.

    The first and the last success of each, when the first was wanted, when the last was done, and how many are
    ``failures``. ``delivered`` tells a reader's from all others.
    """
    delivered, slot = (F.col("side") == "consume").alias("delivered"), F.expr(f"done_us div {slot_us}").alias("slot")
    good = F.when(F.col("ok"), F.col("done_us"))
    return waits.groupBy("run", "whose", delivered, "partition", slot).agg(
        F.min(good).alias("first_us"),
        F.max(good).alias("last_us"),
        F.min("wanted_us").alias("wanted_us"),
        F.max("done_us").alias("done_us"),
        F.count(F.when(_failed(), True)).alias("failed"),
    )


def _in_lanes(rows: DataFrame) -> DataFrame:
    """Rows once for each lane: what was produced for its partition and its client, a commit for its client alone."""
    whole, part = F.array(F.lit(None).cast("int")), F.array("partition")
    lanes = F.when((F.col("side") == "commit") | F.col("partition").isNull(), whole)
    lanes = lanes.when(F.col("side") == "produce", F.concat(part, whole)).otherwise(part)
    return rows.where("side <> 'consume' or partition is not null").withColumn("partition", F.explode(lanes))


def during(waits: DataFrame, silences: DataFrame) -> DataFrame:
    """``waits`` with ``since_us until_us``: those that waited in one of ``silences`` (``SILENCES``), or ended it.

    Once for each.
    """
    lane = silences.select(*[F.col(name).alias(f"lane_{name}") for name in _LANE], "since_us", "until_us")
    same = [F.col(name).eqNullSafe(F.col(f"lane_{name}")) for name in _LANE]
    met = _in_lanes(waits).join(F.broadcast(lane), same).drop(*[f"lane_{name}" for name in _LANE])
    return met.where(_waited())


def _waited() -> Column:
    after = F.coalesce(F.col("done_us") > F.col("since_us"), F.lit(True))
    until = F.col("until_us")
    before = F.coalesce(F.col("wanted_us") < until, until.isNull()) | F.coalesce(
        F.col("done_us") <= until, F.lit(False)
    )
    return after & before & (F.col("ok") | F.col("wanted_us").isNotNull())


def acknowledged(waiting: DataFrame, samples: DataFrame) -> DataFrame:
    """``during`` with deliveries wanted since their acknowledgement, which the producer's row tells.

    Of those rows only the chunks of 64 records are looked at that some delivery lies in.
    """
    chunk = {"chunk": F.expr(f"seq div {_CHUNK}")}
    delivered = waiting.where("side = 'consume'")
    chunks = delivered.withColumns(chunk).select("run", "producer_id", "chunk").distinct()
    produced = samples.where((F.col("op") == "produce") & ok()).withColumns(chunk)
    near = produced.join(F.broadcast(chunks), ["run", "producer_id", "chunk"], "left_semi")
    acks = near.select(*_RECORD, F.col("done_us").alias("acked_us"))
    acked = F.when(F.col("wanted_us").isNotNull(), F.col("acked_us"))
    since = F.when(F.col("side") == "consume", acked).otherwise(F.col("wanted_us"))
    return waiting.join(acks, [*_RECORD], "left").withColumn("wanted_us", since).drop("acked_us").where(_waited())


def stalls(waiting: DataFrame, at_least_us: int) -> DataFrame:
    """``run side client partition start_us end_us`` of every stall that lasted as long, of what ``during`` gives."""
    silence = (*_WHO, "since_us", "until_us")
    # from the end backwards: Spark grows such a frame row by row, and recounts one that reaches forwards
    onwards = Window.partitionBy(*silence).orderBy(F.col("done_us").desc())
    order = Window.partitionBy(*silence).orderBy("done_us")
    begun = waiting.withColumn("start_us", F.greatest("since_us", F.min("wanted_us").over(onwards)))
    inside = begun.where(F.coalesce(F.col("done_us") <= F.col("until_us"), F.lit(True)))
    before = F.lag("done_us").over(order)
    anew = F.coalesce(F.col("start_us") > before + JOINED_US, F.lit(False))
    number = F.sum(F.col("anew").cast("int")).over(order.rowsBetween(Window.unboundedPreceding, 0))
    numbered = inside.withColumn("anew", anew).withColumn("number", number)
    found = numbered.groupBy(*silence, "number").agg(
        F.min("start_us").alias("start_us"), F.max("done_us").alias("end_us")
    )
    return found.where(F.col("end_us") - F.col("start_us") >= at_least_us).select(*_WHO, "start_us", "end_us")


def failures(waits: DataFrame) -> DataFrame:
    """``run side client from_s to_s n``: what failed, by the seconds in which it was wanted and was given up."""
    failed = waits.where(_failed())
    seconds = [
        F.expr(f"{time} div {SECOND_US}").alias(name) for time, name in (("wanted_us", "from_s"), ("done_us", "to_s"))
    ]
    return (
        failed.select("run", "side", "client", *seconds)
        .groupBy("run", "side", "client", "from_s", "to_s")
        .agg(F.count("*").alias("n"))
    )


def _failed() -> Column:
    """Of ``waits``: what was given up. A delivery that never was is not: it is lost, or was not owed."""
    return ~F.col("ok") & (F.col("side") != "consume")
