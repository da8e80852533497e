"""The stalls: how long records waited while nothing at all succeeded, for each client, partition by partition.

::

    success        record B wanted        record C wanted         success (B or C)
       |-----------------|----------- stall ------------------------|

Rules. A stall begins with the last success or, if nothing was wanted then, with the first record that was; it ends with
the next success, or the failure of the last record that waited, when no other is wanted within a second. So an idle
client never stalls, and one whose records all fail does. Wanted is: to be acknowledged, from the intended time on; to
be delivered, from the acknowledgement on; to be committed, from the intended time on. Records whose partition nobody
knows (they failed unsent) count for the client as a whole, which is partition null.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.evidence import Client
from aftershock.results.ledger import acked, owed

_WHO = ("side", "client", "partition")
SECOND_US = 1_000_000
JOINED_US = 1_000_000


def wanted(ledger: DataFrame, readers: Sequence[Client], judged_from_us: int, end_us: int) -> DataFrame:
    """``side client partition wanted_us done_us ok``, each record once for its partition and once for its client.

    What never got a final status is done at ``end_us``. A reader is asked for each partition alone.
    """
    done = F.coalesce("done_us", F.lit(end_us))
    told = [_wanted("produce", F.col("client"), F.col("intended_us"), done, acked())]
    told += [_of_reader(index, reader, judged_from_us, end_us) for index, reader in enumerate(readers)]
    each = ledger.where(F.col("client").isNotNull()).select("partition", F.explode(F.array(*told)).alias("one"))
    of_partitions = F.when(F.col("partition").isNotNull(), F.array("partition")).otherwise(F.array().cast("array<int>"))
    whole = F.when(F.col("one.side") == "produce", F.array(F.lit(None).cast("int")))
    places = F.concat(of_partitions, F.coalesce(whole, F.array().cast("array<int>")))
    return each.select("one.*", F.explode(places).alias("partition")).where("ok or wanted_us is not null")


def _of_reader(index: int, reader: Client, judged_from_us: int, end_us: int) -> Column:
    first = F.col(f"first_us_{index}")
    due = F.when(acked() & owed(reader, judged_from_us), F.col("done_us"))
    return _wanted("consume", F.lit(reader.key), due, F.coalesce(first, F.lit(end_us)), first.isNotNull())


def wanted_commits(outcomes: DataFrame, end_us: int) -> DataFrame:
    """The same of commits, which have no partition."""
    client, done = F.concat_ws("/", "workload", "arm"), F.coalesce("done_us", F.lit(end_us))
    one = _wanted("commit", client, F.col("intended_us"), done, acked())
    commits = outcomes.where(F.col("op") == "commit").select(one.alias("one"))
    return commits.select("one.*", F.lit(None).cast("int").alias("partition"))


def _wanted(side: str, client: Column, wanted_us: Column, done_us: Column, ok: Column) -> Column:
    named = {"side": F.lit(side), "client": client, "wanted_us": wanted_us, "done_us": done_us, "ok": ok}
    return F.struct(*[column.alias(name) for name, column in named.items()])


def stalls(rows: DataFrame, at_least_us: int) -> DataFrame:
    """``side client partition start_us end_us`` of every stall of ``wanted`` rows that lasted as long."""
    # from the end backwards: Spark grows such a frame row by row, and recounts one that reaches forwards
    onwards = Window.partitionBy(*_WHO).orderBy(F.col("done_us").desc())
    order = Window.partitionBy(*_WHO).orderBy("done_us")
    earlier = order.rowsBetween(Window.unboundedPreceding, -1)
    waits = rows.withColumn("first_us", F.min("wanted_us").over(onwards)).withColumns(
        {
            "last_us": F.max(F.when(F.col("ok"), F.col("done_us"))).over(earlier),
            "before_us": F.lag("done_us").over(order),
            "after_ok": F.lag("ok", 1, True).over(order),
        }
    )
    waits = waits.withColumn("start_us", F.greatest("last_us", "first_us"))
    anew = F.col("after_ok") | (F.col("start_us") > F.col("before_us") + JOINED_US)
    numbered = waits.withColumn("number", F.sum(anew.cast("int")).over(order.rowsBetween(Window.unboundedPreceding, 0)))
    found = numbered.groupBy(*_WHO, "number").agg(F.min("start_us").alias("start_us"), F.max("done_us").alias("end_us"))
    return found.where(F.col("end_us") - F.col("start_us") >= at_least_us).drop("number")


def failures(rows: DataFrame) -> DataFrame:
    """``side client from_s to_s n``: what failed, by the seconds in which it was wanted and was given up."""
    failed = rows.where(~F.col("ok") & (F.col("side") != "consume") & F.col("partition").isNull())
    seconds = [
        F.expr(f"{time} div {SECOND_US}").alias(name) for time, name in (("wanted_us", "from_s"), ("done_us", "to_s"))
    ]
    return (
        failed.select("side", "client", *seconds)
        .groupBy("side", "client", "from_s", "to_s")
        .agg(F.count("*").alias("n"))
    )
