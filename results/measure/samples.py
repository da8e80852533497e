"""Every record produced, delivered and owed, every commit: one row each, whatever was asked of it later.

Rules: produce and commit rows are taken as they were recorded. A delivery counts once, the first: in a block that the
gate cleared there is no other, and its row is taken as it is; elsewhere the ledger tells. An acknowledged record that a
reader was owed and never got is a row too, without ``done_us``. Nothing else is dropped.

What crossed the links, what was produced where, and how the host fared: sums over the runs' tables.

Rules: a counter's bytes between two samples are counted for a span only if both samples lie in it (with the grace its
caller allows); a counter never shrinks by us, so a negative difference is none.

The slowest records and commits of each client, for the story of the run: failed ones first, then by latency.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.evidence.phases import RUN
from aftershock.results.measure.gate import acked, cleared
from aftershock.results.measure.tables import SLOT_US, Dims
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


SLOWEST_MAX = 10
Limit = tuple[int, str, str, int]
"""Run, op, client, and the latency in microseconds that the slowest took at least."""


def slowest(samples: DataFrame, limits: Sequence[Limit], dims: Dims) -> DataFrame:
    """Ten rows of ``samples`` a run, op and client, of those intended after warm-up, with ``place`` from 1.

    ``limits`` spare the sort the rows that can't be among them.
    """
    took = F.when(ok(), F.col("done_us") - F.col("intended_us"))

    def slow(least_us: Column | int) -> Column:
        return F.coalesce(F.col("took_us") >= least_us, F.lit(True))

    least = {op: min(at_least_us for _, one, _, at_least_us in limits if one == op) for _, op, *_ in limits}
    some = reduce(or_, [(F.col("op") == op) & slow(least_us) for op, least_us in least.items()], F.lit(False))
    named = samples.where("owed").withColumn("took_us", took).where(some).withColumn("client", client())
    told = F.broadcast(dims.table(limits, "run int, op string, client string, at_least_us bigint"))
    few = with_segment(named.join(told, ["run", "op", "client"]).where(slow(F.col("at_least_us"))), "intended_us", dims)
    judged = dims.segment_windows.where(F.col("window") == RUN).select("run", "segment")
    after = few.join(F.broadcast(judged), ["run", "segment"], "left_semi")
    order = Window.partitionBy("run", "op", "client").orderBy(
        F.col("took_us").desc_nulls_first(), "intended_us", "producer_id", "seq"
    )
    ranked = after.withColumn("place", F.row_number().over(order)).where(F.col("place") <= SLOWEST_MAX)
    return ranked.drop("workload", "arm", "segment", "took_us", "at_least_us", "owed")
