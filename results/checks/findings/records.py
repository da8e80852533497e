"""Integrity findings about single records and their offsets.

A finding is the number of records that an integrity rule examined, and the number of records that broke the rule.

**Records** may be lost, duplicated, misplaced, or never sent. Records in clean blocks (blocks of 2,048 records with
equal fingerprints, see ``tables/gate.py``) are only counted; all other records are rows of the ledger and are examined
individually. Readers must get every record that is in the log, also if its producer is in doubt; a record that is not
in the log is a loss of its producer, and no reader can get it. A record whose producer got no offset can't be
misplaced. A failed record was certainly not written (otherwise the record is in doubt), so a failed record in the log
is a phantom.

**Offsets:** two records at one offset are a ``collision``; a record whose offset a reader passed over is ``skipped``. A
partition's offsets are divided into buckets of 32,768; only buckets in which the log and a reader's deliveries differ
are examined. If the log and the deliveries of a reader have the same count and the same xor of 64-bit hashes of each
record with its offset, the reader got exactly the log's records; if the log has as many distinct offsets (counted as
bits) as rows, no two records share an offset. If all blocks are clean, each reader got every record at one offset, so
only the log is examined for records that share an offset. A record that a reader should get and never got is ``lost``,
not ``skipped``. A record without producer id and seq is a phantom, not a collision.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from aftershock.results.checks.explanations.model import AT, Explanation, explained_by
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.groups import reader_events
from aftershock.results.evidence.transactions import held_back, reads_committed
from aftershock.results.model.check import SAMPLES_MAX
from aftershock.results.spark.tables import Tables, beside, lowest, once, union
from aftershock.results.tables.dims import Dims
from aftershock.results.tables.gate import acked

LOG_READER = "log"
"""Client name of findings about the log, which concern no client."""

_KEY = ("run", "rule", "side", "client")
AT_FIELDS = (
    *("topic", "partition", "offset", "from_us", "until_us", "epoch", "worker", "attempts", "group", "occupied"),
    "sent_us",
    "output",
)


def place_of(**values: Column | str | None) -> Column:
    """Return the place and time of an anomaly (``AT``) from columns; an absent value is unknown."""
    return F.struct(
        *[
            (F.col(v) if isinstance(v := values.get(n), str) else F.lit(None) if v is None else v).alias(n)
            for n in AT_FIELDS
        ]
    ).cast(AT)


def record() -> Column:
    """Return the id of a row's record, a struct ``producer_id seq``; null if the row lacks either column."""
    named = F.col("producer_id").isNotNull() & F.col("seq").isNotNull()
    return F.when(named, F.struct("producer_id", "seq"))


def no_record() -> Column:
    return F.lit(None).cast("struct<producer_id:int,seq:bigint>")


class Fact(NamedTuple):
    """Numbers of records that an integrity rule examined, and found ``broken``, in one row of a Spark table.

    ``examined`` is absent (None) if another ``Fact`` already counts the record as examined. ``at`` is the place and
    time (``place_of``) that an explanation of the breach must match; without it nothing explains the breach.
    """

    rule: str
    side: str | Column
    client: str | Column
    examined: Column | int | None
    broken: Column | int
    at: Column | None = None

    def sql(self, named: Callable[[Column], str]) -> str:
        """Return SQL for a struct ``rule side client examined broken``; ``named`` returns the alias of a column."""

        def text(value: str | Column) -> str:
            return f"'{value}'" if isinstance(value, str) else named(value)

        def number(value: Column | int) -> str:
            return f"{value}L" if isinstance(value, int) else f"coalesce(cast({named(value)} as bigint), 0L)"

        examined, broken = number(0 if self.examined is None else self.examined), number(self.broken)
        counted = broken if self.examined is None else f"if({examined} > 0, {broken}, 0L)"
        at = f"cast(null as {AT})" if self.at is None else f"if({counted} > 0, {named(self.at)}, null)"
        return (
            f"named_struct('rule', '{self.rule}', 'side', {text(self.side)}, 'client', {text(self.client)}, "
            f"'examined', {examined}, 'broken', {counted}, 'at', {at})"
        )


def explode_facts(rows: DataFrame, facts: Iterable[Fact]) -> DataFrame:
    """Return a row ``run record rule side client examined broken at`` for each row and ``Fact`` that examined a record.

    One SQL expression computes all facts, because each column built in Python calls the JVM a dozen times.
    """
    columns: list[Column] = []

    def named(column: Column) -> str:
        number = next((at for at, earlier in enumerate(columns) if earlier is column), len(columns))
        if number == len(columns):
            columns.append(column)
        return f"fact_{number}"

    expression = f"inline(array({', '.join([row_fact.sql(named) for row_fact in facts])}))"
    values = rows.select("run", "record", *[column.alias(f"fact_{number}") for number, column in enumerate(columns)])
    return values.selectExpr("run", "record", expression).where("(examined > 0 or broken > 0) and client is not null")


def summed(findings: DataFrame, spark: SparkSession, explanations: Sequence[Sequence[Explanation]]) -> DataFrame:
    """Sum findings to one row per (run, rule, side, client, explanation), with the lowest broken records as samples.

    ``explanations`` are those of each run; ``explanation`` is the number of the one that matches, null for breaches
    that none matches and for intact records. A first aggregation leaves a row per breach and one for all intact
    records, so that Spark sorts and compares few rows.
    """
    broken = F.when(F.col("broken") > 0, F.col("record"))
    few = findings.groupBy(*_KEY, broken.alias("record"), "at").agg(
        F.sum("examined").alias("examined"), F.sum("broken").alias("broken")
    )
    return (
        explained_by(few, spark, explanations)
        .groupBy(*_KEY, "explanation")
        .agg(
            F.sum("examined").alias("examined"),
            F.sum("broken").alias("broken"),
            lowest("record", SAMPLES_MAX).alias("samples"),
        )
    )


def of_blocks(blocks: DataFrame, dims: Dims) -> DataFrame:
    """Return findings that count the records of clean blocks (``tables/gate.py``) as examined, and none as broken."""
    clean = (
        blocks.where("clean")
        .groupBy("run", "producer_id")
        .agg(*[F.sum(name).alias(name) for name in ("n", "acked_offsets", "failed", "in_doubt")])
        .join(beside(dims.producers), ["run", "producer_id"])
        .withColumn("record", no_record())
    )
    client, n = F.col("client"), F.col("n")
    sent = [Fact(rule, "produce", client, n, 0) for rule in ("lost", "duplicate")]
    untaken = {"misplaced": "acked_offsets", "in_doubt": "in_doubt", "phantom": "failed"}
    sent += [Fact(rule, "produce", client, F.col(examined), 0) for rule, examined in untaken.items()]
    audiences = dims.audiences.select("run", "producer_id", F.col("client").alias("reader"))
    read = [Fact(rule, "consume", F.col("reader"), n, 0) for rule in ("lost", "redelivered", "phantom")]
    of_readers = explode_facts(clean.join(beside(audiences), ["run", "producer_id"]), read)
    return explode_facts(clean, [*sent, Fact("phantom", "consume", LOG_READER, n, 0)]).unionByName(of_readers)


_SPOT = ("topic", "partition", "offset")


def _gone() -> Column:
    """True for a record of the run that a reader had, that the log does not have, and that was not acknowledged."""
    return F.col("client").isNotNull() & ~acked() & (F.col("logged") == 0) & (F.size("placed") > 0)


def _with_occupied(ledger: DataFrame, log: DataFrame) -> DataFrame:
    """Add ``occupied``: True if the log holds another record at a record's place, or ends before it.

    The place is the acknowledged one; of a record that is gone (``_gone``) that at which it was delivered. This is what
    a truncation leaves behind; a gap in the log is not.
    """
    place = ("run", "topic", "partition")
    had = F.get("placed", F.lit(0))
    ledger = ledger.withColumns({name: F.when(_gone(), had[name]).otherwise(F.col(name)) for name in _SPOT})
    elsewhere = ~F.array_contains("held", F.struct(*_SPOT))
    missing = beside(ledger.where((acked() | _gone()) & elsewhere).select(*place, "offset").distinct())
    taken = log.join(missing, [*place, "offset"], "left_semi").select(*place, "offset", F.lit(True).alias("taken"))
    ends = log.groupBy(*place).agg(F.max("offset").alias("end"))
    joined = ledger.join(beside(taken.distinct()), [*place, "offset"], "left")
    joined = joined.join(beside(ends), [*place], "left")
    beyond = F.coalesce(F.col("offset") > F.col("end"), F.lit(True))
    return joined.withColumn("occupied", F.coalesce("taken", beyond)).drop("taken", "end")


def of_ledger(ledger: DataFrame, log: DataFrame, dims: Dims) -> DataFrame:
    rows = _with_occupied(ledger, log).withColumn("record", record())
    client, logged, placed = F.col("client"), F.col("logged") > 0, F.col("placed")
    lost = acked() & ~logged
    gone = _gone() & _in_no_log(dims)
    in_doubt, failed = (F.coalesce(F.col("status") == status, F.lit(False)) for status in ("in_doubt", "failed"))
    acknowledged_place = F.struct("topic", "partition", "offset")
    comparable = acked() & F.col("offset").isNotNull() & F.col("partition").isNotNull()
    elsewhere = (F.size(placed) > 0) & ~F.array_contains(placed, acknowledged_place)
    known = {"epoch": "leader_epoch", "attempts": "attempts"}
    place = {"topic": "topic", "partition": "partition", "offset": "offset"}
    when_acked = place_of(
        **place, **known, from_us="done_us", until_us="done_us", occupied="occupied", sent_us="sent_us"
    )
    # an attempt writes one copy, in the partition of the first; no second one was possible of a record sent once
    partitions = F.array_distinct(F.transform(placed, lambda one: F.struct(one["topic"], one["partition"])))
    by_attempts = (F.size(placed) <= F.coalesce("attempts", F.size(placed))) & (F.size(partitions) == 1)
    sent_us = F.when(by_attempts & (F.coalesce(F.col("attempts"), F.lit(2)) > 1), F.col("sent_us"))
    copy = F.try_element_at(placed, F.lit(-1))
    at_copy = place_of(
        **{name: copy[name] for name in place},
        epoch="leader_epoch",
        attempts=F.when(by_attempts, F.col("attempts")),
        from_us=sent_us,
        until_us=F.coalesce("done_us", "deadline_us"),
    )
    # of two copies an acknowledgement may have the offset of the later one only, of which a truncation left the earlier
    lower = F.exists(placed, lambda one: (one["partition"] == F.col("partition")) & (one["offset"] < F.col("offset")))
    when_misplaced = place_of(
        **place,
        epoch="leader_epoch",
        attempts=F.when(lower, F.col("attempts")),
        from_us="done_us",
        until_us="done_us",
        occupied="occupied",
        sent_us="sent_us",
    )
    had_us = F.array_min(F.transform("deliveries", lambda one: one["first_us"]))
    when_had = place_of(**place, from_us=had_us, until_us=had_us, occupied="occupied", sent_us="sent_us")
    of_producers = [
        Fact("lost", "produce", client, acked(), lost, when_acked),
        Fact("lost", "produce", client, None, F.when(gone, 1), when_had),
        Fact("delivered", "produce", client, lost, F.size(placed) > 0),
        Fact("duplicate", "produce", client, F.size(placed) > 0, F.size(placed) > 1, at_copy),
        Fact("misplaced", "produce", client, comparable, elsewhere, when_misplaced),
        Fact("in_doubt", "produce", client, in_doubt, logged),
        Fact("premature", "produce", client, F.size("deliveries") > 0, had_us < F.col("sent_us")),
        Fact("phantom", "produce", client, failed, logged),
        _foreign(LOG_READER, F.col("logged")),
    ]
    reader, deliveries = F.col("reader"), F.col("deliveries")
    due, unreached = _deliverable(), F.col("unreached")
    read = due | _own() & (deliveries > 0)
    awaited = acked() & F.array_contains("reads", F.col("topic")) & (F.col("intended_us") >= F.col("from_us"))
    first = F.try_element_at(placed, F.lit(1))
    at_log = place_of(
        **{name: first[name] for name in place}, epoch="leader_epoch", from_us="done_us", until_us="done_us"
    )
    of_readers = [
        Fact("lost", "consume", reader, read & ~unreached, due & (deliveries == 0), at_log),
        Fact("unreached", "consume", reader, due & unreached, 0),
        Fact("undeliverable", "consume", reader, awaited & undeliverable(dims, deliveries == 0), 0),
        Fact("redelivered", "consume", reader, deliveries > 0, deliveries > 1),
        _foreign(reader, deliveries),
    ]
    return explode_facts(rows, of_producers).unionByName(explode_facts(_with_readers(rows, dims), of_readers))


def _with_readers(ledger: DataFrame, dims: Dims) -> DataFrame:
    """Return a row per record and reader, with the number of times that the record was delivered to the reader."""
    readers = dims.readers.select("run", F.col("client").alias("reader"), F.col("topics").alias("reads"), "from_us")
    own = F.filter("deliveries", lambda delivery: delivery["reader"] == F.col("reader"))
    joined = ledger.join(beside(readers), "run").withColumn(
        "deliveries", F.aggregate(own, F.lit(0).cast("bigint"), lambda n, delivery: n + delivery["n"])
    )
    return with_unreached(joined, dims, F.col("deliveries") == 0)


def with_unreached(records: DataFrame, dims: Dims, undelivered: Column) -> DataFrame:
    """Add the column ``unreached``, true if a reader was too slow to reach a record (event ``drain_incomplete``).

    If the reader stood still instead, it owes the record, unless it reads committed records and a transaction that
    never ends holds it back. ``records`` has a row per record of the ledger and reader (column ``reader``).
    """
    stops = [
        (run, client.key, f"{topic}/{number}", position)
        for run, evidence in enumerate(dims.evidences)
        for client, line in reader_events(evidence, "drain_incomplete")
        if not stood_still(evidence, client, line)
        for topic, number, position, _ in line["positions"]
    ]
    stops += [
        (run, client.key, f"{topic}/{number}", stable)
        for run, evidence in enumerate(dims.evidences)
        for topic, number, stable, _ in held_back(evidence)
        for client in evidence.clients
        if topic in client.consumes_from and reads_committed(evidence, client)
    ]
    if not stops:
        return records.withColumn("unreached", F.lit(False))
    key = ("run", "reader")
    table = dims.table(stops, "run int, reader string, stop string, position bigint")
    by_place = table.groupBy(*key, "stop").agg(F.max("position").alias("position"))
    entries = F.map_from_entries(F.collect_list(F.struct("stop", "position"))).alias("positions")
    stopped = records.join(beside(by_place.groupBy(*key).agg(entries)), list(key), "left")
    # the place in the log; for a record that is not in the log, the acknowledged place
    place = F.get("placed", F.lit(0))
    topic, number, offset = (F.coalesce(place[name], F.col(name)) for name in ("topic", "partition", "offset"))
    beyond = undelivered & (offset >= F.try_element_at("positions", F.concat(topic, F.lit("/"), number)))
    return stopped.withColumn("unreached", F.coalesce(beyond, F.lit(False))).drop("positions")


STILL_US = 30_000_000
"""Time without any progress after which a reader is not slow. The harness gives readers that long to read on."""

RECOVERY_US = 60_000_000
"""Time after the last fault in which a reader need not read: librdkafka's socket.timeout.ms, which is longer than the
request time-out of Kafka's client (30 s) and a group's default session (45 s)."""

_TIMEOUTS_MS = ("socket.timeout.ms", "request.timeout.ms", "session.timeout.ms")


def stood_still(evidence: Evidence, client: Client, line: Mapping[str, Any]) -> bool:
    """Return True if a reader that did not read to the end had read nothing for ``STILL_US``, though it could.

    That its brokers answered is known, because the harness itself read all topics to their ends before. Older evidence
    does not tell for how long the reader had stood still (``idle_us``), so it counts as slow.
    """
    if line.get("idle_us") is None:
        return False
    settings = evidence.arm_settings(client)
    timeouts_us = [int(settings[name]) * 1000 for name in _TIMEOUTS_MS if name in settings]
    fault_us = max((moment["t_us"] for moment in evidence.journal), default=0)
    could_us = fault_us + max([RECOVERY_US, *timeouts_us]) if fault_us else 0
    return bool(line["t_us"] - max(line["t_us"] - line["idle_us"], could_us) >= STILL_US)


def undeliverable(dims: Dims, undelivered: Column) -> Column:
    """Return True for records of the ledger that a reader did not get and nobody can get, as they are in no log.

    Whether their producer may lose them is a question of the producer's checks. Without a log nothing is known.
    """
    return undelivered & _in_no_log(dims)


def _in_no_log(dims: Dims) -> Column:
    with_log = [run for run, evidence in enumerate(dims.evidences) if evidence.parquet["log"]]
    return (F.col("logged") == 0) & F.col("run").isin(with_log)


def _own() -> Column:
    """True for a record of a producer of the run in the log of a topic that the reader reads."""
    topic = F.try_element_at("placed", F.lit(1))["topic"]
    return F.col("client").isNotNull() & F.coalesce(F.array_contains("reads", topic), F.lit(False))


def _deliverable() -> Column:
    """True for a record that a reader must get: it is in the log, and not from before the reader began."""
    return _own() & (F.col("logged") > 0) & (F.col("intended_us") >= F.col("from_us"))


def _foreign(reader: str | Column, count: Column) -> Fact:
    """Return the fact for the rule ``phantom``, which counts records that no producer of the run sent."""
    foreign = F.col("record").isNull() | F.col("client").isNull()
    return Fact("phantom", "consume", reader, count, F.when(foreign, count))


BUCKET = 32_768
_PARTITION = ("run", "topic_id", "partition")
_BUCKET = (*_PARTITION, "bucket")
_LANE = ("client", "lane", "member")
_SUSPECTS = "array<struct<client:string,lane:bigint,member:string,first:bigint,last:bigint>>"


def places(read: Tables, delivered: DataFrame, ledger: DataFrame, dims: Dims) -> DataFrame:
    logged = _logged(read.log)
    columns = {"member": F.coalesce("member", F.lit("")), "record": record()}
    lanes = _placed(delivered.withColumns(columns), *_LANE, "at")
    compared = once(_side_by_side(logged, lanes, beside(once(_suspects(logged, lanes)))))
    # deliveries that differ from the log's record at their offset, and log records that share an offset; Spark may
    # evaluate an element before the condition that there is one
    differing = F.when(F.col("client") == LOG_READER, F.array_except("log", F.slice("log", 1, 1)))
    differing = F.coalesce(differing, F.array_except("had", "log"))
    differs = (F.size("log") > 0) & (F.size(differing) > 0)
    apart = compared.where(differs).withColumn("record", F.get(differing, F.lit(0)))
    # records that a reader passed over, without those that count as lost
    within = (F.col("offset") > F.col("first")) & (F.col("offset") < F.col("last"))
    passed = F.col("logged") & F.col("passed") & (F.col("client") != LOG_READER)
    rows = compared.where(passed & within).withColumn("record", F.get("log", F.lit(0)))
    lost = _with_readers(ledger, dims).where(_deliverable() & (F.col("deliveries") == 0))
    lost = lost.select("run", F.col("reader").alias("client"), "producer_id", "seq")
    named = rows.withColumns({"producer_id": F.col("record.producer_id"), "seq": F.col("record.seq")})
    skipped = named.join(lost, ["run", "client", "producer_id", "seq"], "left_anti")
    at = place_of(topic="topic_id", partition="partition", offset="offset", from_us="read_us", until_us="read_us")
    collisions = explode_facts(apart, [Fact("collision", "consume", F.col("client"), None, 1, at)])
    return collisions.unionByName(explode_facts(skipped, [Fact("skipped", "consume", F.col("client"), None, 1, at)]))


def shared(log: DataFrame) -> DataFrame:
    """Return findings on log records that share an offset, in a run whose readers all got exactly the log's records."""
    logged = _logged(log)
    crowded = _fingerprints(logged).where("n > offsets").select(*_BUCKET)
    at_place = logged.join(beside(crowded), [*_BUCKET]).groupBy(*_PARTITION, "offset")
    pairs = at_place.agg(F.min("record").alias("least"), F.max("record").alias("record")).where("least < record")
    return explode_facts(pairs, [Fact("collision", "consume", F.lit(LOG_READER), None, 1)])


def _logged(log: DataFrame) -> DataFrame:
    return _placed(log.withColumns({"topic_id": F.coalesce("topic_id", "topic"), "record": record()}))


def _placed(rows: DataFrame, *more: str) -> DataFrame:
    located = rows.where(F.col("offset").isNotNull()).withColumn("bucket", F.expr(f"offset div {BUCKET}"))
    return located.select(*_BUCKET, *more, "offset", "record")


def _fingerprints(rows: DataFrame, *by: str) -> DataFrame:
    """Return a hash of the records, the lowest and highest offset and the number of offsets per bucket of offsets.

    Distinct offsets are counted in bitmaps of 64 bits, because Spark can aggregate plain numbers without sorting.
    """
    bit = F.expr("shiftleft(1L, cast(offset & 63 as int))")
    words = rows.groupBy(*_BUCKET, *by, F.expr("offset div 64").alias("word")).agg(
        F.count("*").alias("n"),
        F.bit_xor(F.xxhash64("offset", "record")).alias("xor"),
        F.bit_or(bit).alias("bits"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
    )
    whole = words.groupBy(*_BUCKET, *by).agg(
        F.sum("n").alias("n"),
        F.bit_xor("xor").alias("xor"),
        F.sum(F.bit_count("bits")).alias("offsets"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )
    return whole.withColumn("print", F.struct("n", "xor"))


def _suspects(logged: DataFrame, lanes: DataFrame) -> DataFrame:
    """Return the offset buckets in which a reader's deliveries differ from the log, with the reader's offset range.

    If two records of the log share an offset, the log is examined like the deliveries of a reader.
    """
    of_lane = F.map_from_entries(F.collect_list(F.struct("bucket", "print"))).alias("prints")
    whole = (
        _fingerprints(lanes, *_LANE)
        .groupBy(*_PARTITION, *_LANE)
        .agg(of_lane, F.min("first").alias("first"), F.max("last").alias("last"))
    )
    every = whole.groupBy(*_PARTITION).agg(F.collect_list(F.struct(*_LANE, "first", "last", "prints")).alias("lanes"))
    unlike = F.filter(
        "lanes",
        lambda lane: (
            (F.col("last") >= lane["first"])
            & (F.col("first") <= lane["last"])
            & ~F.col("print").eqNullSafe(F.try_element_at(lane["prints"], F.col("bucket")))
        ),
    )
    of_lanes = F.transform(
        unlike, lambda lane: F.struct(*[lane[name].alias(name) for name in (*_LANE, "first", "last")])
    )
    log = (F.lit(LOG_READER).alias("client"), F.lit(0).cast("bigint").alias("lane"), F.lit("").alias("member"))
    of_log = F.when(F.col("print.n") > F.col("offsets"), F.array(F.struct(*log, "first", "last")))
    buckets = F.concat(*[F.coalesce(suspects, F.array().cast(_SUSPECTS)) for suspects in (of_lanes, of_log)])
    joined = _fingerprints(logged).join(beside(every), [*_PARTITION], "left")
    return joined.select(*_BUCKET, F.explode(buckets).alias("suspect")).select(*_BUCKET, "suspect.*")


def _side_by_side(logged: DataFrame, lanes: DataFrame, suspects: DataFrame) -> DataFrame:
    """Return the lowest and highest record id at each offset of the given buckets, of the log and of deliveries.

    ``read_us`` is the time at which the reader reached the offset.
    """
    log = logged.join(suspects, [*_BUCKET]).withColumn("of_log", F.lit(True))
    lane = lanes.join(suspects, [*_BUCKET, *_LANE]).withColumn("of_log", F.lit(False))
    columns = [*_PARTITION, "offset", *_LANE, "first", "last", "of_log", "record"]
    of_log, of_lane = F.when(F.col("of_log"), F.col("record")), F.when(~F.col("of_log"), F.col("record"))
    places = (
        union(log.select(*columns), lane.select(*columns, "at"))
        .groupBy(*_PARTITION, "offset", *_LANE, "first", "last")
        .agg(
            F.max("of_log").alias("logged"),
            F.min("of_log").alias("passed"),
            F.array_compact(F.array(F.min(of_log), F.max(of_log))).alias("log"),
            F.array_compact(F.array(F.min(of_lane), F.max(of_lane))).alias("had"),
            F.min("at").alias("at"),
        )
    )
    # an offset that was passed over has the time of the next delivery
    onwards = Window.partitionBy(*_PARTITION, *_LANE).orderBy(F.col("offset").desc())
    return places.withColumn("read_us", F.last("at", ignorenulls=True).over(onwards))
