"""Samples (one row per record produced, per delivery due, and per commit), and sums over other rows.

**Samples** of producing and committing are the rows as recorded. Of a record's deliveries to a reader only the first is
a sample; records of clean blocks (``tables/gate.py``) have no repeated deliveries, and for other records the ledger (a
table with a row per record) holds the first delivery. An acknowledged record that a reader should get and never got is
a row without ``done_us``.

**Sums** are computed of the bytes through the proxies of a fault, the records produced per partition, and the
punctuality of the host. The bytes between two readings of a proxy's counter belong to a span only if both readings lie
in the span; a negative difference, from a counter that was reset, is taken as 0.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.findings.records import undeliverable, with_unreached
from aftershock.results.evidence.phases import RUN
from aftershock.results.spark.tables import Tables, beside, union
from aftershock.results.tables.dims import SLOT_US, Dims
from aftershock.results.tables.gate import acked, cleared

MISSING = "missing"  # status of a delivery that never happened

_COLUMNS = (
    *("run", "op", "workload", "arm", "producer_id", "seq", "topic", "partition", "offset", "broker_id"),
    *("leader_epoch", "client_rack", "broker_rack", "intended_us", "sent_us", "done_us", "bytes", "status", "error"),
    *("attempts", "deadline_us"),
)


def samples(read: Tables, dims: Dims, blocks: DataFrame, ledger: DataFrame | None) -> DataFrame:
    """Return the samples with the columns of ``OUTCOMES`` and ``due``; there is no ``ledger`` if all blocks are clean.

    The column ``due`` is false for a delivery that the reader need not get. The column ``timed`` is false for a sample
    whose latency is not measured: it is not due, or the reader stopped reading before the record.
    """
    always = F.lit(True).alias("due"), F.lit(True).alias("timed")
    if ledger is None:
        return read.outcomes.select(*_COLUMNS, *always)
    as_recorded = F.col("op").isin("produce", "commit")
    rows = read.outcomes.where(as_recorded).unionByName(cleared(read.outcomes.where(~as_recorded), blocks))
    recorded = rows.select(*_COLUMNS, *always)
    # the first deliveries of suspect records, and their missing deliveries
    readers = dims.readers.select(
        *("run", F.col("client").alias("reader"), F.col("topics").alias("reads"), "from_us"),
        *(F.col("rack").alias("stands"), "workload", "arm"),
    )
    records = ledger.drop("client").join(beside(readers), "run")
    due = acked() & F.array_contains("reads", F.col("topic")) & (F.col("intended_us") >= F.col("from_us"))
    first = F.col("delivery.first")
    own = F.get(F.filter("deliveries", lambda delivery: delivery["reader"] == F.col("reader")), F.lit(0))
    delivered = records.withColumn("delivery", own)
    due = due & ~undeliverable(dims, F.col("delivery").isNull())
    delivered = delivered.withColumn("due", F.coalesce(due, F.lit(False)))
    of_ledger = (
        with_unreached(delivered, dims, F.col("delivery").isNull())
        .withColumn("timed", F.col("due") & ~F.col("unreached"))
        .where(F.col("due") | F.col("delivery").isNotNull())
        .select(
            *("run", "workload", "arm", "producer_id", "seq", "topic", "intended_us", "due", "timed"),
            F.lit("consume").alias("op"),
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
    return union(recorded, of_ledger)


def transactions(read: Tables) -> DataFrame:
    """Return a sample per transaction of a producer, which is ``ok`` if it ended as planned.

    Its intended time is that of its last record, before which the producer could not ask for its end.
    """
    planned = F.when(F.col("intended") == "abort", F.lit("aborted")).otherwise(F.lit("committed"))
    rows = read.transactions.where("due_us is not null").select(
        *("run", "workload", "arm", "producer_id", "done_us", "sent_us", "error"),
        F.lit("produce").alias("op"),
        F.col("number").alias("seq"),
        F.col("due_us").alias("intended_us"),
        F.when(F.col("outcome") == planned, F.lit("ok")).otherwise(F.lit("failed")).alias("status"),
        F.lit(True).alias("due"),
        F.lit(True).alias("timed"),
    )
    return union(read.outcomes.limit(0).select(*_COLUMNS), rows)


def ok() -> Column:
    """Return True for a sample that was acknowledged, delivered or committed."""
    return (F.col("op") == "consume") & F.col("done_us").isNotNull() | acked()


def of_pipes(read: Tables, dims: Dims) -> DataFrame | None:
    """Return the samples of pipes, None without a pipe.

    They are the first output of each input, and a row without ``done_us`` for each input that has none.
    """
    piped = read.piped
    if piped is None:
        return None
    record = ("run", "workload", "arm", "producer_id", "seq")
    named = piped.where(F.col("producer_id").isNotNull() & F.col("seq").isNotNull())
    order = Window.partitionBy(*record).orderBy("done_us", "topic", "partition", "offset")
    firsts = named.withColumn("turn", F.row_number().over(order)).where("turn = 1")
    owed = dims.pipes.where("outputs_min > 0").select("run", "workload", "arm", F.col("reads").alias("topic"))
    sent = read.outcomes.where("op = 'produce' and status = 'ok'").drop("workload", "arm", "client")
    missing = sent.join(beside(owed), ["run", "topic"]).join(firsts.select(*record), [*record], "left_anti")
    unset = {name: F.lit(None) for name in ("done_us", "sent_us", "partition", "offset", "broker_id", "leader_epoch")}
    missing = missing.withColumns({**unset, "op": F.lit("pipe"), "status": F.lit(MISSING), "error": F.lit(None)})
    rows = firsts.select(*_COLUMNS).unionByName(missing.select(*_COLUMNS))
    return rows.select(*_COLUMNS, F.lit(True).alias("due"), F.lit(True).alias("timed"))


def recovering(samples: DataFrame, dims: Dims) -> DataFrame:
    """Return the samples by which a client has recovered, with its name: outputs of a pipe, else produced records."""
    named = samples.where("op in ('produce', 'pipe')").withColumn("client", client())
    piped = {(run, one.key) for run, evidence in enumerate(dims.evidences) for one in evidence.clients if one.pipe}
    if not piped:
        return named.where("op = 'produce'")
    table = dims.table([(*one, True) for one in sorted(piped)], "run int, client string, has_pipe boolean")
    rows = named.join(beside(table), ["run", "client"], "left")
    return rows.where((F.col("op") == "pipe") == F.col("has_pipe").isNotNull()).drop("has_pipe")


def client() -> Column:
    return F.concat_ws("/", "workload", "arm")


def slot_of(time: str) -> Column:
    return F.expr(f"try_cast({time} div {SLOT_US} as int)")


def with_segment(rows: DataFrame, time: str, dims: Dims, *, alike: bool = False) -> DataFrame:
    """Add to each row the number of the segment of time that contains the column ``time``, or null.

    If ``alike``, the number is that of the first segment that is alike (``Scene.counted_as``).
    """
    slots = dims.counted_slots if alike else dims.slots
    slots = slots.withColumnsRenamed({"run": "slot_run", "start_us": "from_us", "end_us": "to_us"})
    within = (F.col(time) >= F.col("from_us")) & (F.col(time) < F.col("to_us"))
    same_slot = (F.col("run") == F.col("slot_run")) & (slot_of(time) == F.col("slot"))
    return rows.join(beside(slots), same_slot & within, "left").drop("slot_run", "slot", "from_us", "to_us")


_NEVER_US = 1 << 62
_OWNER = ("run", "op", "workload", "arm")


def without(samples: DataFrame, dims: Dims) -> DataFrame:
    """Return the samples of a second measurement, without the suspect times of their clients (``Scene.left_out``).

    A sample of whose time, from the intended send to the end, at least half is suspect is left out. From the others the
    suspect time is subtracted, so that a short stall in a long outage of Kafka does not hide the outage::

        intended            stall                      done
           |-----------|/////////////|------------------|
           |-----------|------------------|                    the sample without the suspect time

    Segments are also divided at the edges of suspect times, so the suspect time before any moment follows from the
    moment's segment.
    """
    columns = samples.columns
    rows = samples.withColumn("until_us", F.coalesce("done_us", F.lit(_NEVER_US)))
    for time, name in (("intended_us", "before"), ("sent_us", "before_sent"), ("until_us", "before_end")):
        placed = with_segment(rows, time, dims).withColumn("segment", F.coalesce("segment", F.lit(-1)))
        joined = placed.join(beside(dims.left_out), [*_OWNER, "segment"], "left")
        inside = F.when(F.col("inside"), F.col(time) - F.col("start_us")).otherwise(F.lit(0))
        rows = joined.withColumn(name, F.coalesce(F.col("earlier_us") + inside, F.lit(0)))
        rows = rows.drop("segment", "earlier_us", "inside", "start_us")
    rows = rows.join(beside(dims.ends), "run", "left")
    suspect_us = F.when(F.col("intended_us").isNotNull(), F.col("before_end") - F.col("before")).otherwise(F.lit(0))
    length_us = F.coalesce("done_us", "end_us") - F.col("intended_us")
    kept = rows.where((suspect_us == 0) | F.coalesce(2 * suspect_us < length_us, F.lit(False)))
    shortened = kept.withColumns(
        {
            "sent_us": F.col("sent_us") - F.coalesce(F.col("before_sent") - F.col("before"), F.lit(0)),
            "done_us": F.col("done_us") - suspect_us,
        }
    )
    return shortened.select(*columns)


SENT = "client.sent_bytes/"  # counted by the clients: Toxiproxy counts a connection's bytes only when it closes
TICK_LATE_US = 50_000
PASSAGES = "run int, fault string, proxies string, start_us bigint, end_us bigint"


def proxy_bytes(metrics: DataFrame, passages: DataFrame) -> DataFrame:
    """Return bytes that clients sent into the proxies of a fault (``PASSAGES``), as ``run fault bytes n``."""
    series = Window.partitionBy("run", "name").orderBy("t_us")
    counters = metrics.where(F.col("name").startswith(SENT)).select(
        "run",
        F.split_part("name", F.lit("/"), F.lit(2)).alias("proxy"),
        F.lag("t_us").over(series).alias("from_us"),
        F.col("t_us").alias("to_us"),
        F.greatest(F.col("value") - F.lag("value").over(series), F.lit(0.0)).alias("bytes"),
    )
    within = (F.col("from_us") >= F.col("start_us")) & (F.col("to_us") <= F.col("end_us"))
    named = F.expr("proxy rlike concat('^(?:', proxies, ')$')")
    matched = counters.join(beside(passages), "run").where(within & named)
    return matched.groupBy("run", "fault").agg(F.sum("bytes").cast("bigint").alias("bytes"), F.count("*").alias("n"))


def produced(samples: DataFrame, dims: Dims) -> DataFrame:
    """Return the number of records intended in each fault's window by partition (``run window topic partition n``)."""
    rows = with_segment(samples.where("op = 'produce' and partition is not null"), "intended_us", dims)
    counted = rows.groupBy("run", "segment", "topic", "partition").agg(F.count("*").alias("n"))
    of_faults = dims.segment_windows.where(F.col("window").startswith("fault/"))
    named = counted.join(beside(of_faults), ["run", "segment"])
    return named.groupBy("run", "window", "topic", "partition").agg(F.sum("n").alias("n"))


def host(metrics: DataFrame, dims: Dims) -> DataFrame:
    """Return ``run ticks late_ticks cpu_busy steal`` of the host after warm-up (means 0..1, null if not sampled)."""
    judged = metrics.join(beside(dims.ends), "run").where("t_us >= judged_from_us and t_us < end_us")

    def value_of(name: str) -> Column:
        return F.when(F.col("name") == name, F.col("value"))

    late_us = value_of("host.tick_late_us")

    def mean_of(name: str) -> Column:
        # decimals, because a sum of floats depends on the order of the rows
        total = F.sum(value_of(name).cast("decimal(18,9)"))
        return F.round(total.cast("double") / F.nullif(F.count(value_of(name)), F.lit(0)), 13)

    return judged.groupBy("run").agg(
        F.count(late_us).alias("ticks"),
        F.count(F.when(late_us > TICK_LATE_US, True)).alias("late_ticks"),
        *[mean_of(f"host.{name}").alias(name) for name in ("cpu_busy", "steal")],
    )


SLOWEST_MAX = 10
Limit = tuple[int, str, str, int]
"""Run, operation, client, and a latency (us) that the slowest records reach."""


def slowest(samples: DataFrame, limits: Sequence[Limit], dims: Dims) -> DataFrame:
    """Return the ten slowest ``samples`` per run, operation and client after warm-up, with ``place`` from 1.

    Failed records come before slow records. Rows faster than ``limits`` are excluded before the sort.
    """
    took = F.when(ok(), F.col("done_us") - F.col("intended_us"))

    def slow(least_us: Column | int) -> Column:
        return F.coalesce(F.col("took_us") >= least_us, F.lit(True))

    least: dict[str, int] = {}
    for _, op, _, least_us in limits:
        least[op] = min(least_us, least.get(op, least_us))
    slow_rows = reduce(or_, [(F.col("op") == op) & slow(least_us) for op, least_us in least.items()], F.lit(False))
    named = samples.where("timed").withColumn("took_us", took).where(slow_rows).withColumn("client", client())
    table = beside(dims.table(limits, "run int, op string, client string, at_least_us bigint"))
    reaching = named.join(table, ["run", "op", "client"]).where(slow(F.col("at_least_us")))
    few = with_segment(reaching, "intended_us", dims)
    judged = dims.segment_windows.where(F.col("window") == RUN).select("run", "segment")
    after = few.join(beside(judged), ["run", "segment"], "left_semi")
    order = Window.partitionBy("run", "op", "client").orderBy(
        F.col("took_us").desc_nulls_first(), "intended_us", "producer_id", "seq"
    )
    ranked = after.withColumn("place", F.row_number().over(order)).where(F.col("place") <= SLOWEST_MAX)
    return ranked.drop("workload", "arm", "segment", "took_us", "at_least_us", "due", "timed", "deadline_us")
