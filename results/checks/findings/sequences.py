"""Integrity findings that compare consecutive rows (order, repeated deliveries, decreasing epochs and high watermarks).

Within a **lane** of a reader's deliveries from a partition (``deliveries.py``), offsets must rise without gaps or
repetitions.

**Sequences** of rows are of three kinds (a producer's log records by offset, in which sequence numbers must rise and
leader epochs must not fall; a reader's lanes by time, in which offsets must rise; a producer's acknowledgements by
offset, in which leader epochs must not fall).

Rules. A row of a sequence is late if a row with a higher value (offset or seq) precedes the row. In a sequence with a
late row, only the first row of a value can break the rule ``order``; further deliveries of an offset break
``duplicate``. Leader epochs are compared only between rows with rising offsets. A high watermark may decrease when the
leader changes, because a new leader learns the high watermark late, so high watermarks are compared only between two
responses of the same broker in the newest epoch of the partition. A broker notes the high watermark before it reads the
records (``Partition.readRecords``), and the next response has the watermark up to which it has read at least. So a
record is ``beyond`` only if its offset is not below any high watermark that the reader received from the assignment to
one second after the delivery, or with the next delivery if that comes later; without a delivery a second later nothing
is said. A later attempt may be acknowledged for a record that an earlier attempt wrote, so its leader epoch may be
higher than that of its record: only first attempts are ``sure``, and a row's epoch is compared with that of the last
sure row before it.

The function ``in_doubt`` first reads far less data to select sequences that may contain a broken row, and counts the
rows of the others; only the selected sequences are examined row by row. Acknowledgements need no sorting, because the
sure offsets of a leader epoch in a partition must lie above all acknowledged offsets of earlier epochs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.findings.records import (
    AT_FIELDS,
    LOG_READER,
    Fact,
    explode_facts,
    no_record,
    place_of,
    record,
)
from aftershock.results.spark.tables import Tables, beside, union
from aftershock.results.tables.dims import Dims

LANE = ("client", "topic", "partition", "lane", "member")
PRINTS = "print bigint"
SIDES = ("log", "read", "acks")


def in_doubt(read: Tables, dims: Dims, delivered: DataFrame) -> DataFrame:
    """Return, by ``run side client``, the hashes of the sequences that may have a broken row, as the array ``doubted``.

    The columns ``n epochs marks`` count the rows of all other sequences. Sequences of clients that the plans lack have
    no name here and are all doubted.
    """
    rows = _rows(read, dims, delivered)
    acks = F.col("side") == "acks"
    # lanes in which a value, epoch or high watermark falls, or a value lies beyond the high watermark of its response
    value, mark = F.col("value"), F.col("mark")
    numbers = rows.where(~acks).select(
        *("owner", "print", "at", "value", "epoch", "broker_id"),
        F.when(F.col("own"), F.col("high_watermark")).alias("mark"),
        _corrupt().alias("corrupt"),
    )
    order = Window.partitionBy("print").orderBy("at", "value", "epoch")
    before = {name: F.lag(name).over(order) for name in ("value", "epoch", "mark", "broker_id")}
    paired = numbers.withColumns({f"{name}_before": column for name, column in before.items()})
    lower = (F.col("broker_id") == F.col("broker_id_before")) & (mark < F.col("mark_before"))
    back = (value <= F.col("value_before")) | (F.col("epoch") < F.col("epoch_before")) | lower
    suspect = back | F.col("corrupt") | (value >= mark)
    of_lanes = paired.groupBy("print").agg(
        F.max("owner").alias("owner"),
        F.max(F.coalesce(suspect, F.lit(False))).alias("suspect"),
        *(F.count("*").alias("n"), F.count("epoch").alias("epochs"), F.count("mark").alias("marks")),
    )
    # acknowledgements with a sure offset that is not above all offsets of earlier leader epochs
    ranges = (
        rows.where(acks)
        .groupBy("owner", "print", "epoch")
        .agg(
            F.min(F.when(F.col("sure"), F.col("value"))).alias("first"),
            *(F.max("value").alias("last"), F.count("*").alias("n")),
        )
    )
    earlier = Window.partitionBy("print").orderBy("epoch").rowsBetween(Window.unboundedPreceding, -1)
    mixed = F.coalesce(F.col("first") <= F.col("before"), F.lit(False))
    of_acks = (
        ranges.withColumn("before", F.max("last").over(earlier))
        .groupBy("print")
        .agg(
            F.max("owner").alias("owner"),
            F.max(mixed).alias("suspect"),
            *(F.sum("n").alias("n"), F.sum("n").alias("epochs"), F.lit(0).cast("bigint").alias("marks")),
        )
    )
    clients = {
        (run, side, client)
        for run, scene in enumerate(dims.scenes)
        for client in {*(client.key for client in scene.evidence.clients), *scene.evidence.producers.values()}
        for side in SIDES
    }
    names = dims.table(sorted(clients), "run int, side string, client string")
    named = of_lanes.unionByName(of_acks).join(beside(names.withColumn("owner", _owner())), "owner", "left")
    doubted = F.col("suspect") | F.col("client").isNull()
    return named.groupBy("run", "side", "client").agg(
        F.collect_list(F.when(doubted, F.col("print"))).alias("doubted"),
        *[F.sum(F.when(~doubted, F.col(name))).alias(name) for name in ("n", "epochs", "marks")],
    )


_SEQUENCE = ("run", "side", *LANE)
_ALL, _BACKWARD, _BEYOND, _CORRUPT = "all", "backward", "beyond", "corrupt"
VALUE_CORRUPT = "VALUE_CORRUPT"
SECOND_US = 1_000_000
GIVEN_UP_US = 30_000_000
"""Time after which a client closes a connection with a request that it has given up: Kafka's ``request.timeout.ms``."""


def sequences(
    read: Tables, dims: Dims, delivered: DataFrame, screened: Sequence[Mapping[str, Any]] | None
) -> DataFrame:
    """Return findings about the order of rows; for the rules ``collision`` and ``skipped`` only the number examined.

    ``screened`` holds the rows of ``in_doubt``, None to examine all sequences row by row.
    """
    examined = [*_facts(), *_breaches()]
    if screened is None:
        return explode_facts(_exactly(_rows(read, dims, delivered), read, delivered), examined)
    # no row of an intact sequence is broken: one row per client
    names = ("run", "side", "client", "n", "epochs", "marks")
    intact = [[row[name] for name in names] for row in screened if row["n"]]
    counts = dims.table(intact, "run int, side string, client string, n bigint, epochs bigint, marks bigint")
    found = explode_facts(counts.withColumns({"rule": F.lit(_ALL), "record": no_record()}), _facts())
    doubted = [(sequence,) for row in screened for sequence in row["doubted"]]
    if not doubted:
        return found
    suspects = _rows(read, dims, delivered).join(beside(dims.table(doubted, PRINTS)), "print", "left_semi")
    return found.unionByName(explode_facts(_exactly(suspects, read, delivered), examined))


def _exactly(rows: DataFrame, read: Tables, delivered: DataFrame) -> DataFrame:
    by_partition = ("run", "client", "topic", "partition")
    # the newest leader epoch of each partition, from readers that report the high watermark of each response
    own_epochs = delivered.where(F.col("own") & F.col("epoch").isNotNull())
    newest = own_epochs.groupBy(*by_partition).agg(F.max("epoch").alias("newest"))
    return _examined(_flagged(_with_attempts(rows, read)).join(beside(newest), [*by_partition], "left"))


def _rows(read: Tables, dims: Dims, delivered: DataFrame) -> DataFrame:
    """Return rows of the log, of deliveries and of acknowledgements, with the 64-bit hash ``print`` of their sequence.

    Another hash, ``owner``, stands for ``run side client``.
    """
    # the log: the value is the seq, ``at`` the offset
    producers = dims.producers.select("run", "producer_id", "client")
    lane = F.col("producer_id").cast("bigint").alias("lane")
    with_ids = read.log.where(F.col("seq").isNotNull() & F.col("offset").isNotNull())
    logged = with_ids.join(beside(producers), ["run", "producer_id"]).select(
        *("run", F.lit("log").alias("side"), "client", "topic", "partition", lane),
        *(F.col("seq").alias("value"), F.col("offset").alias("at"), "error", "producer_id", "seq", "offset"),
        F.col("leader_epoch").alias("epoch"),
    )
    # deliveries: the value is the offset, ``at`` the time
    marks = ("epoch", "high_watermark", "broker_id", "own", "error")
    reads = delivered.withColumns({"side": F.lit("read"), "value": F.col("offset")})
    times = {"from_us": F.col("at"), "until_us": F.col("at")}
    reads = reads.withColumns(times).select(*_SEQUENCE, "value", "at", *marks, "producer_id", "seq", "offset", *times)
    # acknowledgements: value and ``at`` are the offset
    acked = (F.col("op") == "produce") & (F.col("status") == "ok")
    acks = read.outcomes.where(acked & F.col("leader_epoch").isNotNull() & F.col("offset").isNotNull()).select(
        *("run", F.lit("acks").alias("side"), F.concat_ws("/", "workload", "arm").alias("client")),
        *("topic", "partition", lane, F.col("offset").alias("value"), F.col("offset").alias("at")),
        *(F.col("leader_epoch").alias("epoch"), "producer_id", "seq", "offset"),
        F.coalesce(F.col("attempts") == 1, F.lit(False)).alias("sure"),
        *(F.col("done_us").alias("from_us"), F.col("done_us").alias("until_us")),
    )
    rows = union(logged, reads, acks)
    owned = rows.withColumn("owner", _owner())
    return owned.withColumn("print", F.xxhash64("owner", "topic", "partition", "lane", "member"))


def _owner() -> Column:
    return F.xxhash64("run", "side", "client")


def _flagged(rows: DataFrame) -> DataFrame:
    """Add ``late`` (a row with a higher value precedes), ``before`` (last sure row) and ``dirty`` (any row is late).

    A record of the log that was acknowledged before a record before it was sent was certainly written in another order
    than the log shows, so nothing explains that: it loses its times.
    """
    lane = Window.partitionBy(*_SEQUENCE)
    order = lane.orderBy("at", "value", "epoch", "producer_id", "seq")
    highest = F.max(F.struct("value", "sent_us")).over(order.rowsBetween(Window.unboundedPreceding, -1))
    late = (F.col("side") != "acks") & F.coalesce(F.col("value") <= highest["value"], F.lit(False))
    sure = F.when(F.coalesce("sure", F.lit(True)), F.struct("value", "epoch", "high_watermark", "broker_id"))
    before = F.last(sure, ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, -1))
    soon = lane.orderBy("at").rangeBetween(Window.unboundedPreceding, SECOND_US)
    top = F.greatest(F.max("high_watermark").over(soon), F.lead("high_watermark").over(order))
    flagged = rows.withColumns({"late": late, "before": before, "top": top})
    possible = ~F.coalesce(late & (highest["sent_us"] > F.col("until_us")), F.lit(False))
    times = {name: F.when(possible, F.col(name)) for name in ("from_us", "until_us", "attempts")}
    return flagged.withColumns({"dirty": F.max("late").over(lane), "until": F.max("at").over(lane), **times})


def _with_attempts(rows: DataFrame, read: Tables) -> DataFrame:
    """Add to rows of the log when the record was sent, and the times in which it may have been sent again.

    A record that was sent once has no such times (null). One that was given up may be written later, because its
    request may wait in a connection that the client closes only then.
    """
    in_doubt, until_us = F.col("status") == "in_doubt", F.coalesce("done_us", "deadline_us")
    again = in_doubt | F.coalesce(F.col("attempts") > 1, F.lit(True))
    until_us = F.when(in_doubt, until_us + GIVEN_UP_US).otherwise(until_us)
    sent = read.outcomes.where(F.col("op") == "produce").select(
        *("run", "producer_id", "seq", F.lit("log").alias("side"), "attempts", "sent_us"),
        *(F.when(again, F.col("sent_us")).alias("log_from_us"), F.when(again, until_us).alias("log_until_us")),
    )
    joined = rows.join(sent, ["run", "producer_id", "seq", "side"], "left")
    of_log = {name: F.coalesce(name, f"log_{name}") for name in ("from_us", "until_us")}
    return joined.withColumns(of_log).drop("log_from_us", "log_until_us")


def _corrupt() -> Column:
    return F.col("error") == VALUE_CORRUPT


def _examined(rows: DataFrame) -> DataFrame:
    """Return the numbers of rows and broken rows by client and rule; by value too in sequences with a late row.

    If rows have the same value, only the first of these rows decides whether the value is ``late``.
    """
    value, mark, epoch = F.col("value"), F.col("high_watermark"), F.col("epoch")
    older = (value > F.col("before.value")) & (epoch < F.col("before.epoch"))
    same = (F.col("broker_id") == F.col("before.broker_id")) & (F.col("before.epoch") == F.col("newest"))
    lower = F.col("own") & same & (mark < F.col("before.high_watermark"))
    backward = F.coalesce(older, F.lit(False)) | F.coalesce(lower, F.lit(False))
    beyond = F.col("own") & (value >= mark) & (value >= F.col("top")) & (F.col("at") <= F.col("until") - SECOND_US)
    broken = {_BACKWARD: backward, _BEYOND: beyond, _CORRUPT: _corrupt()}
    rules = F.array(F.lit(_ALL), *[F.when(is_broken, F.lit(rule)) for rule, is_broken in broken.items()])
    exact = F.col("dirty") | (F.col("rule") != _ALL)
    lane = F.when(exact, F.struct("topic", "partition", "lane", "member"))
    exploded = rows.withColumn("rule", F.explode(F.array_compact(rules)))
    return (
        exploded.withColumns({"exact": lane, "point": F.when(exact, F.col("value"))})
        .groupBy("run", "side", "client", "rule", "exact", "point")
        .agg(
            *_counts(),
            (F.min(2 * F.col("at") + F.col("late").cast("int")) % 2 == 1).alias("late"),
            F.min("producer_id").alias("producer_id"),
            F.min("seq").alias("seq"),
            # the place and time of the breach: of an intact sequence they mean nothing
            *[F.first(F.col("exact")[name]).alias(name) for name in ("topic", "partition")],
            *[F.min(name).alias(name) for name in ("offset", "from_us", "epoch")],
            *[F.max(name).alias(name) for name in ("until_us", "attempts")],
        )
        .withColumn("record", record())
    )


def _counts() -> list[Column]:
    marks = F.count(F.when(F.col("own"), F.col("high_watermark")))
    return [F.count("*").alias("n"), F.count("epoch").alias("epochs"), marks.alias("marks")]


def _side() -> Column:
    return F.when(F.col("side") == "read", F.lit("consume")).otherwise(F.lit("produce"))


def _facts() -> list[Fact]:
    """Return the numbers of examined rows, which also intact sequences have."""
    side, client, n = _side(), F.col("client"), F.col("n")
    reader = F.when(F.col("side") == "read", client).otherwise(LOG_READER)
    is_all, of_log = F.col("rule") == _ALL, F.col("side") == "log"
    ordered, read = F.when(is_all & (F.col("side") != "acks"), n), F.when(is_all & (F.col("side") == "read"), n)
    return [
        Fact("order", side, client, ordered, 0),
        Fact("duplicate", side, client, read, 0),
        Fact("collision", "consume", reader, ordered, 0),
        Fact("skipped", side, client, read, 0),
        Fact(_BACKWARD, side, client, F.when(is_all & ~of_log, F.col("epochs")), 0),
        Fact(_BEYOND, side, client, F.when(is_all, F.col("marks")), 0),
    ]


def _breaches() -> list[Fact]:
    side, client, n = _side(), F.col("client"), F.col("n")
    reader = F.when(F.col("side") == "read", client).otherwise(LOG_READER)
    of_reader = (F.col("rule") == _ALL) & (F.col("side") == "read")
    exact, of_log = F.col("point").isNotNull(), F.col("side") == "log"
    late = (F.col("rule") == _ALL) & (F.col("side") != "acks") & exact & F.col("late")
    at = place_of(
        **{name: name for name in AT_FIELDS if name not in ("worker", "group", "occupied", "sent_us", "output")}
    )
    # nothing explains leader epochs of the log that go back
    backward_log = F.when((F.col("rule") == _BACKWARD) & of_log, n)
    return [
        Fact("order", side, client, None, late, at),
        Fact("duplicate", side, client, None, F.when(of_reader & exact, n - 1), at),
        Fact(_BACKWARD, side, client, backward_log, backward_log),
        Fact(_BACKWARD, side, client, None, F.when((F.col("rule") == _BACKWARD) & ~of_log, n), at),
        Fact(_BEYOND, side, client, None, F.when(F.col("rule") == _BEYOND, n), at),
        Fact(_CORRUPT, "consume", reader, None, F.when(F.col("rule") == _CORRUPT, n)),
    ]
