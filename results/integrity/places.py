"""What is where: two records at one place, and records that a reader passed over.

A gate of its own, by place: a bucket is 32,768 offsets of a partition. Where the count and the xor of a 64-bit hash of
each record and its offset are the same in the log and in a reader's lane, the lane had exactly the log's records there;
where the log has as many offsets as rows (counted as bits), no two share one. Only other buckets are looked at.

Rules: where the gate of the records cleared all, every lane has the log's records at the log's places, and only the log
itself can hold two at one. A lane is judged between its first and its last offset. What the reader was owed and never
got is ``lost``, not ``skipped``: one planted loss raises one alarm. A record without our ids collides with nothing: it
is a phantom.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.integrity.finding import LOG_READER, breach, found, record
from aftershock.results.integrity.records import lost_by_readers
from aftershock.results.measuring.dims import Dims
from aftershock.results.spark.tables import Tables

BUCKET = 32_768
_PARTITION = ("run", "topic_id", "partition")
_BUCKET = (*_PARTITION, "bucket")
_LANE = ("client", "lane", "member")
_SUSPECTS = "array<struct<client:string,lane:bigint,member:string,first:bigint,last:bigint>>"


def places(read: Tables, delivered: DataFrame, book: DataFrame, dims: Dims) -> DataFrame:
    """The findings ``collision`` and ``skipped``; how many were examined is told by ``sequences``."""
    logged = _logged(read.log)
    lanes = _placed(delivered.withColumns({"member": F.coalesce("member", F.lit("")), "record": record()}), *_LANE)
    seen = _side_by_side(logged, lanes, F.broadcast(_suspects(logged, lanes)))
    return _collisions(seen).unionByName(_skipped(seen, book, dims))


def shared(log: DataFrame) -> DataFrame:
    """``collision`` of a log that all readers agree with."""
    logged = _logged(log)
    crowded = _fingerprints(logged).where("n > offsets").select(*_BUCKET)
    at_place = logged.join(F.broadcast(crowded), [*_BUCKET]).groupBy(*_PARTITION, "offset")
    pairs = at_place.agg(F.min("record").alias("least"), F.max("record").alias("record")).where("least < record")
    return _told(pairs, "collision", F.lit(LOG_READER))


def _logged(log: DataFrame) -> DataFrame:
    return _placed(log.withColumns({"topic_id": F.coalesce("topic_id", "topic"), "record": record()}))


def _placed(rows: DataFrame, *more: str) -> DataFrame:
    known = rows.where(F.col("offset").isNotNull()).withColumn("bucket", F.expr(f"offset div {BUCKET}"))
    return known.select(*_BUCKET, *more, "offset", "record")


def _fingerprints(rows: DataFrame, *by: str) -> DataFrame:
    """By bucket: ``print``, its ``first`` and ``last`` offset, and ``offsets``, how many there are.

    First by words of 64 offsets, each a bit: plain numbers, which Spark sums up without sorting.
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
    """The buckets to look at, by lane: ``client lane member first last``, the latter of the whole lane.

    The log is in it as its own reader where two of its records share an offset.
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
    told = F.transform(unlike, lambda lane: F.struct(*[lane[name].alias(name) for name in (*_LANE, "first", "last")]))
    itself = F.struct(
        F.lit(LOG_READER).alias("client"),
        F.lit(0).cast("bigint").alias("lane"),
        F.lit("").alias("member"),
        F.col("first"),
        F.col("last"),
    )
    shared = F.when(F.col("print.n") > F.col("offsets"), F.array(itself))
    looked = F.concat(*[F.coalesce(some, F.array().cast(_SUSPECTS)) for some in (told, shared)])
    joined = _fingerprints(logged).join(F.broadcast(every), [*_PARTITION], "left")
    return joined.select(*_BUCKET, F.explode(looked).alias("one")).select(*_BUCKET, "one.*")


def _side_by_side(logged: DataFrame, lanes: DataFrame, suspects: DataFrame) -> DataFrame:
    """A row for each place of a suspect bucket and each lane there: the least and the greatest record of either."""
    log = logged.join(suspects, [*_BUCKET]).withColumn("of_log", F.lit(True))
    lane = lanes.join(suspects, [*_BUCKET, *_LANE]).withColumn("of_log", F.lit(False))
    kept = [*_PARTITION, "offset", *_LANE, "first", "last", "of_log", "record"]
    of_log, of_lane = F.when(F.col("of_log"), F.col("record")), F.when(~F.col("of_log"), F.col("record"))
    return (
        log.select(*kept)
        .unionByName(lane.select(*kept))
        .groupBy(*_PARTITION, "offset", *_LANE, "first", "last")
        .agg(
            F.max("of_log").alias("logged"),
            F.min("of_log").alias("passed"),
            F.array_compact(F.array(F.min(of_log), F.max(of_log))).alias("log"),
            F.array_compact(F.array(F.min(of_lane), F.max(of_lane))).alias("had"),
        )
    )


def _collisions(seen: DataFrame) -> DataFrame:
    """Deliveries of another record than the log has there, and records of the log that share an offset."""
    other = F.when(F.col("client") == LOG_READER, F.array_except("log", F.slice("log", 1, 1)))
    other = F.coalesce(other, F.array_except("had", "log"))
    apart = seen.where((F.size("log") > 0) & (F.size(other) > 0))
    return _told(apart.withColumn("record", other[0]), "collision", F.col("client"))


def _skipped(seen: DataFrame, book: DataFrame, dims: Dims) -> DataFrame:
    within = (F.col("offset") > F.col("first")) & (F.col("offset") < F.col("last"))
    passed = F.col("logged") & F.col("passed") & (F.col("client") != LOG_READER)
    rows = seen.where(passed & within).withColumn("record", F.col("log")[0])
    lost = lost_by_readers(book, dims).withColumnRenamed("reader", "client")
    named = rows.withColumns({"producer_id": F.col("record.producer_id"), "seq": F.col("record.seq")})
    rest = named.join(lost, ["run", "client", "producer_id", "seq"], "left_anti")
    return _told(rest, "skipped", F.col("client"))


def _told(rows: DataFrame, rule: str, client: Column) -> DataFrame:
    return found(rows, [breach(rule, "consume", client, 1)])
