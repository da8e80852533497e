"""Stalls of clients.

A stall is a time in which records waited and no record succeeded, for a client or a partition::

    success        record B wanted        record C wanted         success (B or C)
       |-----------------|----------- stall ------------------------|
       |------------------------- silence --------------------------|

Rules. A stall begins with the last success or, if no record was waiting then, when the next record starts to wait (is
*wanted*). A stall ends with the next success, or with the failure of the last waiting record if no record is wanted
within the next second. An idle client never stalls, but a client with only failing records does. A produced record is
wanted from its intended time until it is acknowledged, a delivery from the producer's acknowledgement, a commit from
its intended time. A delivery of a record in doubt, which was never acknowledged, is not known to have waited. Records
of unknown partition (failed before they were sent) are assigned to the client as a whole, which is partition null. A
record that a consumer never got waited until the end of the load; if the consumer stopped reading before it (event
``drain_incomplete``), until then. An input of a service that stood still when the run ended waited until the end of the
run. A record that is sent in a transaction waits for its partition from the begin of the transaction: until then it
waited for the transactions before, as the client as a whole did.

A stall lies within a silence, the time between two successes. Spark aggregates records by time slot and partition
(``slots``), from which NumPy derives the silences without sorting records; only records that waited in a silence are
examined individually.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.evidence.groups import reader_events
from aftershock.results.measure.samples import client, ok
from aftershock.results.model.check import SAMPLES_MAX
from aftershock.results.spark.tables import beside, lowest
from aftershock.results.tables.dims import Dims, firsts, longs
from aftershock.results.tables.names import CLIENT_COLUMNS, hash_of

SECOND_US = 1_000_000
JOINED_US = 1_000_000
_WHO = ("run", "side", "client", "topic", "partition")
_LANE = ("run", "client_hash", "topic_hash", "partition")
_RECORD = ("run", "producer_id", "seq")
_CHUNK = 64
_NULL = -(1 << 63)
_KEYS = {name: f"key_{name}" for name in ("client_hash", "topic_hash", "partition", "slot")}


def waits(samples: DataFrame, dims: Dims) -> DataFrame:
    """Return the times from which and until which each record waited, in columns ``wanted_us done_us``.

    If a record has no final status, ``done_us`` is the end of the load, or that of the drain if its reader had not
    reached the record when it stopped reading. The ``wanted_us`` of a delivery is the record's intended time, which is
    too early; ``acknowledged`` corrects that time for the few rows in silences.
    """
    judged = samples.join(beside(dims.ends), "run")
    gave_up: dict[tuple[int, str, str], int] = {}
    positions: dict[tuple[int, str, str, str, int], int] = {}
    for run, evidence in enumerate(dims.evidences):
        for reader, line in reader_events(evidence, "drain_incomplete"):
            key = (run, reader.workload, reader.arm)
            gave_up[key] = max(int(line["t_us"]), gave_up.get(key, 0))
            for topic, number, position, _ in line["positions"]:
                place = (*key, topic, number)
                positions[place] = max(position, positions.get(place, 0))
    read = [
        (run, workload, arm, "consume", topic, number, position, gave_up[run, workload, arm])
        for (run, workload, arm, topic, number), position in positions.items()
    ]
    if read:
        key_types = "run int, workload string, arm string, op string, topic string, partition int"
        table = dims.table(read, f"{key_types}, position bigint, gave_up_us bigint")
        judged = judged.join(beside(table), ["run", "workload", "arm", "op", "topic", "partition"], "left")
        behind = F.coalesce(F.col("offset") >= F.col("position"), ~F.col("timed"))
        unread = F.col("due") & F.col("done_us").isNull() & behind
        end_us = F.when(unread, F.greatest("end_us", "gave_up_us")).otherwise(F.col("end_us"))
        judged = judged.withColumn("end_us", end_us).drop("gave_up_us", "position")
    piped = [
        (run, *client_key.split("/", 1), "pipe", at_us)
        for run, scene in enumerate(dims.scenes)
        for client_key, at_us in scene.stood_still_until_us.items()
    ]
    if piped:
        table = dims.table(piped, "run int, workload string, arm string, op string, stood_us bigint")
        judged = judged.join(beside(table), ["run", "workload", "arm", "op"], "left")
        end_us = F.when(F.col("due") & F.col("done_us").isNull(), F.greatest("end_us", "stood_us"))
        judged = judged.withColumn("end_us", end_us.otherwise(F.col("end_us"))).drop("stood_us")
    wanted = F.when(F.col("due"), F.col("intended_us"))
    placed = (F.col("op") != "commit") & F.col("partition").isNotNull()
    return judged.select(
        *("run", F.col("op").alias("side"), hash_of(*CLIENT_COLUMNS).alias("client_hash"), client().alias("client")),
        F.when(placed, F.col("topic")).alias("topic"),
        F.when(placed, hash_of("topic")).alias("topic_hash"),
        F.when(placed, F.col("partition")).alias("partition"),
        *("producer_id", "seq", wanted.alias("wanted_us"), F.coalesce("done_us", "end_us").alias("done_us")),
        ok().alias("ok"),
    )


def slots(waits: DataFrame, slot_us: int) -> DataFrame:
    """Aggregate the waits of records by time slots of ``slot_us``; ``delivered`` is True for consumed records."""
    delivered, slot = (F.col("side") == "consume").alias("delivered"), F.expr(f"done_us div {slot_us}").alias("slot")
    good = F.when(F.col("ok"), F.col("done_us"))
    return waits.groupBy("run", "client_hash", delivered, "topic_hash", "partition", slot).agg(
        F.min(good).alias("first_us"),
        F.max(good).alias("last_us"),
        F.min("wanted_us").alias("wanted_us"),
        F.max("done_us").alias("done_us"),
        F.count(F.when(_failed(), True)).alias("failed"),
    )


def _in_lanes(rows: DataFrame) -> DataFrame:
    """Repeat each produced record without a partition (for the client as a whole); a commit has none."""
    whole, part = F.array(F.lit(None).cast("int")), F.array("partition")
    lanes = F.when((F.col("side") == "commit") | F.col("partition").isNull(), whole)
    lanes = lanes.when(F.col("side").isin("produce", "pipe"), F.concat(part, whole)).otherwise(part)
    exploded = rows.where("side <> 'consume' or partition is not null").withColumn("partition", F.explode(lanes))
    own = F.col("partition").isNotNull()
    return exploded.withColumns({name: F.when(own, F.col(name)) for name in ("topic", "topic_hash")})


def during(waits: DataFrame, silences: DataFrame, slot_us: int) -> DataFrame:
    """Return the records that waited in a silence (time between successes ``since_us until_us``) or ended it.

    ``silences`` has the rows of ``in_slots``. A record that waited at most ``slot_us`` can only have waited in the
    silences of the slot in which its wait ended; a longer wait is compared with every silence of its lane.
    """
    wait_us = F.col("done_us") - F.coalesce("wanted_us", "done_us")
    slot = F.when(wait_us <= slot_us, F.expr(f"done_us div {slot_us}"))
    lane = _keyed(silences).select("run", *_KEYS.values(), "since_us", "until_us")
    moments = beside(lane.select("run", _KEYS["slot"]).distinct())
    near = _keyed(waits.withColumn("slot", slot)).join(moments, ["run", _KEYS["slot"]], "left_semi")
    candidates = _keyed(_in_lanes(near)).join(beside(lane), ["run", *_KEYS.values()])
    return candidates.drop("slot", *_KEYS.values()).where(_waited())


def _keyed(rows: DataFrame) -> DataFrame:
    """Add the keys of a join, in which a number stands for null: Sail compares nullable keys pair by pair."""
    return rows.withColumns({key: F.coalesce(F.col(name).cast("bigint"), F.lit(_NULL)) for name, key in _KEYS.items()})


def _waited() -> Column:
    after = F.coalesce(F.col("done_us") > F.col("since_us"), F.lit(True))
    until = F.col("until_us")
    ended = F.coalesce(F.col("done_us") <= until, F.lit(False))
    before = F.coalesce(F.col("wanted_us") < until, until.isNull()) | ended
    return after & before & (F.col("ok") | F.col("wanted_us").isNotNull())


def acknowledged(waiting: DataFrame, samples: DataFrame) -> DataFrame:
    """Set ``wanted_us`` of each delivery in ``waiting`` to the time when the record's producer got the acknowledgement.

    Of the produced records only chunks (64 consecutive records) with a record in ``waiting`` are read.
    """
    chunk = {"chunk": F.expr(f"seq div {_CHUNK}")}
    delivered = waiting.where(_received())
    chunks = delivered.withColumns(chunk).select("run", "producer_id", "chunk").distinct()
    produced = samples.where((F.col("op") == "produce") & ok()).withColumns(chunk)
    near = produced.join(beside(chunks), ["run", "producer_id", "chunk"], "left_semi")
    acks = near.select(*_RECORD, F.col("done_us").alias("acked_us"))
    acked = F.when(F.col("wanted_us").isNotNull(), F.col("acked_us"))
    since = F.when(_received(), acked).otherwise(F.col("wanted_us"))
    return waiting.join(acks, [*_RECORD], "left").withColumn("wanted_us", since).drop("acked_us").where(_waited())


def begun(waiting: DataFrame, transactions: DataFrame) -> DataFrame:
    """Set ``wanted_us`` of each produced record in a partition's lane to the begin of its transaction."""
    chunks = F.explode(F.sequence(F.expr(f"first_seq div {_CHUNK}"), F.expr(f"last_seq div {_CHUNK}"))).alias("chunk")
    own = transactions.where("begin_us is not null").select(
        "run", "producer_id", "first_seq", "last_seq", "begin_us", chunks
    )
    placed = (F.col("side") == "produce") & F.col("partition").isNotNull()
    needed = waiting.where(placed).select("run", "producer_id", F.expr(f"seq div {_CHUNK}").alias("chunk")).distinct()
    near = own.join(beside(needed), ["run", "producer_id", "chunk"], "left_semi")
    in_chunk = waiting.withColumn("chunk", F.when(placed, F.expr(f"seq div {_CHUNK}")))
    keys = [in_chunk[name] == near[name] for name in ("run", "producer_id", "chunk")]
    within = in_chunk["seq"].between(near["first_seq"], near["last_seq"])
    joined = in_chunk.join(near, [*keys, within], "left")
    since = F.when(F.col("wanted_us").isNotNull(), F.greatest("wanted_us", "begin_us"))
    rows = joined.select(*(since.alias(name) if name == "wanted_us" else in_chunk[name] for name in waiting.columns))
    return rows.where(_waited())


def _received() -> Column:
    """True for what a client waits for from the acknowledgement of a record: its delivery, or its output."""
    return F.col("side").isin("consume", "pipe")


def stalls(waiting: DataFrame, at_least_us: int) -> DataFrame:
    """Return ``run side client topic partition start_us end_us waited_us`` of each stall of ``at_least_us`` or more."""
    silence = (*_WHO, "since_us", "until_us")
    # in descending order, because Spark recomputes frames that reach forwards for every row
    onwards = Window.partitionBy(*silence).orderBy(F.col("done_us").desc())
    order = Window.partitionBy(*silence).orderBy("done_us")
    wait_us = F.col("done_us") - F.coalesce("wanted_us", "done_us")
    started = waiting.withColumns(
        {
            # a delivery whose producer got no acknowledgement may have been written just before
            "start_us": F.greatest("since_us", F.min(F.coalesce("wanted_us", "done_us")).over(onwards)),
            "waited_us": F.max(wait_us).over(onwards),
        }
    )
    inside = started.where(F.coalesce(F.col("done_us") <= F.col("until_us"), F.lit(True)))
    before = F.lag("done_us").over(order)
    anew = F.coalesce(F.col("start_us") > before + JOINED_US, F.lit(False))
    number = F.sum(F.col("anew").cast("int")).over(order.rowsBetween(Window.unboundedPreceding, 0))
    numbered = inside.withColumn("anew", anew).withColumn("number", number)
    start_us, end_us = F.min("start_us").alias("start_us"), F.max("done_us").alias("end_us")
    joined = numbered.groupBy(*silence, "number").agg(start_us, end_us, F.max("waited_us").alias("waited_us"))
    return joined.where(F.col("end_us") - F.col("start_us") >= at_least_us).select(
        *_WHO, "start_us", "end_us", "waited_us"
    )


def failures(waits: DataFrame) -> DataFrame:
    """Count failed records by the seconds in which they began to wait (``from_s``) and failed (``to_s``)."""
    from_s, to_s = (F.expr(f"{time} div {SECOND_US}") for time in ("wanted_us", "done_us"))
    by = ("run", "side", "client", from_s.alias("from_s"), to_s.alias("to_s"))
    return waits.where(_failed()).groupBy(*by).agg(F.count("*").alias("n"))


def given_up(outcomes: DataFrame) -> DataFrame:
    """Count the records that producers gave up, by ``run client error``.

    A record is given up ``early`` before half of the time from its intended time to its deadline has passed since the
    client had it.
    """
    ended = (F.col("op") == "produce") & F.col("status").isin("failed", "in_doubt")
    timed = F.col("done_us").isNotNull() & F.col("error").isNotNull()
    took_us = F.col("done_us") - F.coalesce("sent_us", "intended_us")
    early = F.coalesce(2 * took_us < F.col("deadline_us") - F.col("intended_us"), F.lit(False))
    record = F.when(early, F.struct("producer_id", "seq"))
    client = F.concat_ws("/", "workload", "arm")
    return _counted(outcomes.where(ended & timed).withColumns({"client": client, "took_us": took_us, "record": record}))


def given_up_transactions(transactions: DataFrame, limits: DataFrame) -> DataFrame:
    """Count the transactions that producers gave up, as ``given_up`` does for records, by ``run client error``.

    ``limits`` has half of the deadline of each client (``run client limit_us``); clients that it lacks are left out. A
    begin was given up at ``asked_us``; no record was sent after it. The time until a commit was given up includes what
    the producer needed to open again. Samples are first records.
    """
    begins = F.col("sent_us").isNull()
    given = F.col("outcome").isin("failed", "in_doubt") & (begins | F.col("commit_asked"))
    ended = given & F.col("done_us").isNotNull() & F.col("error").isNotNull()
    took_us = F.when(begins, F.col("asked_us") - F.col("begin_us")).otherwise(F.col("done_us") - F.col("asked_us"))
    early = F.coalesce(F.col("took_us") < F.col("limit_us"), F.lit(False))
    rows = transactions.where(ended).withColumns(
        {"client": F.concat_ws("/", "workload", "arm"), "took_us": took_us, "seq": F.col("first_seq")}
    )
    joined = rows.join(limits, ["run", "client"]).withColumn("record", F.when(early, F.struct("producer_id", "seq")))
    return _counted(joined)


def _counted(ended: DataFrame) -> DataFrame:
    return ended.groupBy("run", "client", "error").agg(
        F.count("*").alias("n"),
        F.count("record").alias("early"),
        F.min("took_us").alias("earliest_us"),
        lowest("record", SAMPLES_MAX).alias("samples"),
    )


def _failed() -> Column:
    return ~F.col("ok") & ~_received()


SILENCES = (
    "run int, client_hash bigint, delivered boolean, topic_hash bigint, partition int, since_us bigint, "
    "until_us bigint, slot bigint"
)
Silence: TypeAlias = tuple[int, int, bool, int | None, int | None, int | None, int | None]
SLOTS_MAX = 200_000

_SLOT_LANE = ("run", "client_hash", "delivered", "topic_hash", "partition")
_COUNTED = (("first_us", "min"), ("last_us", "max"), ("wanted_us", "min"), ("done_us", "max"))
_NONE, _NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def silences(slots: pa.Table, at_least_us: int) -> Iterator[Silence]:
    """Yield the silences (times between successes) of at least ``at_least_us``; ``slots`` must not be longer.

    The silence before the first success has no ``since_us``, and the silence after the last success no ``until_us``.
    """
    by, counted = ["run", "client_hash", "delivered", "slot"], dict(_COUNTED)
    whole = slots.filter(~pc.field("delivered")).group_by(by).aggregate(list(_COUNTED))
    whole = whole.select([*by, *map("_".join, _COUNTED)]).rename_columns([*by, *counted])
    part = slots.filter(pc.field("partition").is_valid()).select([*by, "topic_hash", "partition", *counted])
    unsorted = pa.concat_tables([part, whole], promote_options="default")
    rows = unsorted.sort_by([(name, "ascending") for name in (*_SLOT_LANE, "slot")])
    starts = firsts(longs(rows[name], _NONE) for name in _SLOT_LANE)
    if not len(starts):
        return
    lane, lanes = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows))), np.arange(len(starts))
    first_us, last_us = (longs(rows[name], _NONE) for name in ("first_us", "last_us"))
    good = first_us != _NONE
    # a silence ends with the first success of a slot, and with the lane
    after = np.searchsorted(lane[good], lanes, "right")
    lane_of, until_us = np.insert(lane[good], after, lanes), np.insert(first_us[good], after, _NONE)
    since_us = np.roll(np.insert(last_us[good], after, _NONE), 1)
    # before the first success records may wait since the first was wanted, after the last until all were done
    begun_us = np.minimum.reduceat(longs(rows["wanted_us"], _NEVER), starts)[lane_of]
    over_us = np.maximum.reduceat(longs(rows["done_us"]), starts)[lane_of]
    start_us, end_us = np.where(since_us == _NONE, begun_us, since_us), np.where(until_us == _NONE, over_us, until_us)
    for at in np.flatnonzero((start_us != _NEVER) & (end_us - start_us >= at_least_us)).tolist():
        run, owner, delivered, topic, partition = (rows[name][starts[lane_of[at]]].as_py() for name in _SLOT_LANE)
        yield run, owner, delivered, topic, partition, _or_none(since_us[at]), _or_none(until_us[at])


def _or_none(value: np.int64) -> int | None:
    return None if value == _NONE else int(value)


def in_slots(
    silences: Sequence[Silence], first_us: int, last_us: int, slot_us_min: int = SECOND_US
) -> tuple[int, list[tuple[Any, ...]]]:
    """Return the length of time slots, and the rows of ``SILENCES``: each silence with each slot that matters to it.

    Records end their waits between ``first_us`` and ``last_us``. A wait of at most a slot may end in the slot after the
    silence. A row without a slot is for longer waits. The slots are so long that there are at most some ``SLOTS_MAX``
    rows.
    """
    spans = [
        (first_us if since_us is None else since_us, last_us if until_us is None else until_us)
        for *_, since_us, until_us in silences
    ]
    slot_us = max(slot_us_min, sum(end - start for start, end in spans) // SLOTS_MAX)
    rows: list[tuple[Any, ...]] = [(*silence, None) for silence in silences]
    for silence, (start, end) in zip(silences, spans, strict=True):
        # Spark's ``div`` rounds towards zero; a slot more at both ends covers that
        rows += ((*silence, slot) for slot in range(start // slot_us, end // slot_us + 2))
    return slot_us, rows
