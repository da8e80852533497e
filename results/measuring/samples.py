"""Every record produced, delivered and owed, every commit: one row each, whatever was asked of it later.

Rules: produce and commit rows are taken as they were recorded. A delivery counts once, the first: in a block that the
gate cleared there is no other, and its row is taken as it is; elsewhere the ledger tells. An acknowledged record that a
reader was owed and never got is a row too, without ``done_us``. Nothing else is dropped.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.measuring.dims import Dims
from aftershock.results.measuring.ledger import acked, cleared
from aftershock.results.measuring.segments import SLOT_US
from aftershock.results.spark.tables import Tables

MISSING = "missing"
"""The status of a delivery that never was."""

_COLUMNS = (
    *("run", "op", "workload", "arm", "producer_id", "seq", "topic", "partition", "offset", "broker_id"),
    *("leader_epoch", "client_rack", "broker_rack", "intended_us", "sent_us", "done_us", "bytes", "status", "error"),
    "attempts",
)


def samples(read: Tables, dims: Dims, blocks: DataFrame, book: DataFrame | None) -> DataFrame:
    """The rows, with the columns of ``OUTCOMES`` that tell of one; ``book`` (the ledger) is None where all is clean.

    ``owed`` is false for what a reader got and was not owed: it is a success, and no measurement.
    """
    if book is None:
        return read.outcomes.select(*_COLUMNS, F.lit(True).alias("owed"))
    told = F.col("op").isin("produce", "commit")
    taken = read.outcomes.where(told).unionByName(cleared(read.outcomes.where(~told), blocks))
    owed = taken.select(*_COLUMNS, F.lit(True).alias("owed"))
    return owed.unionByName(_of_book(book, dims), allowMissingColumns=True)


def _of_book(book: DataFrame, dims: Dims) -> DataFrame:
    """The first deliveries of suspect records, and what never was delivered."""
    readers = dims.readers.select(
        *("run", "client", F.col("topic").alias("reads"), "from_us", F.col("rack").alias("stands"), "workload", "arm")
    )
    each = book.drop("client").join(F.broadcast(readers), "run")
    due = acked() & (F.col("topic") == F.col("reads")) & (F.col("intended_us") >= F.col("from_us"))
    first = F.col("delivery.first")
    return (
        each.withColumn("owed", F.coalesce(due, F.lit(False)))
        .withColumn("delivery", F.get(F.filter("deliveries", lambda one: one["reader"] == F.col("client")), F.lit(0)))
        .where(F.col("owed") | F.col("delivery").isNotNull())
        .select(
            *(
                "run",
                F.lit("consume").alias("op"),
                "workload",
                "arm",
                "producer_id",
                "seq",
                "topic",
                "intended_us",
                "owed",
            ),
            F.coalesce(first["partition"], "partition").alias("partition"),
            F.coalesce(first["offset"], "offset").alias("offset"),
            first["broker_id"].alias("broker_id"),
            first["leader_epoch"].alias("leader_epoch"),
            F.coalesce(first["client_rack"], "stands").alias("client_rack"),
            first["broker_rack"].alias("broker_rack"),
            F.col("delivery.first_us").alias("done_us"),
            F.coalesce(first["bytes"], "bytes").alias("bytes"),
            F.when(F.col("delivery").isNull(), F.lit(MISSING)).otherwise(F.lit("ok")).alias("status"),
        )
    )


def ok() -> Column:
    """Whether it succeeded: acknowledged, delivered, committed."""
    return (F.col("op") == "consume") & F.col("done_us").isNotNull() | acked()


def client() -> Column:
    """``workload/arm``: how clients are named."""
    return F.concat_ws("/", "workload", "arm")


def slot_of(time: str) -> Column:
    """The slot of a second that a moment lies in."""
    return F.expr(f"try_cast({time} div {SLOT_US} as int)")


def with_segment(rows: DataFrame, time: str, dims: Dims) -> DataFrame:
    """``rows`` with ``segment``, the one that column ``time`` lies in; null outside of all."""
    slots = dims.slots.select(
        F.col("run").alias("slot_run"),
        "slot",
        "segment",
        F.col("start_us").alias("from_us"),
        F.col("end_us").alias("to_us"),
    )
    within = (F.col(time) >= F.col("from_us")) & (F.col(time) < F.col("to_us"))
    here = (F.col("run") == F.col("slot_run")) & (slot_of(time) == F.col("slot")) & within
    return rows.join(F.broadcast(slots), here, "left").drop("slot_run", "slot", "from_us", "to_us")
