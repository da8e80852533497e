"""Integrity findings about transactions: what their producers know, compared with the markers in the log.

The log is read at isolation level 0 and its control batches are decoded, so no client library is believed.

* ``aborted_read``: a reader of committed records got a record whose transaction was aborted (Adya's G1a).
* ``torn``: some records of a transaction are committed, and others are aborted or missing. Only acknowledged records
  can be missing.
* ``lost_commit``: a transaction whose commit was acknowledged has a record that was aborted or is missing.
* ``unaborted``: a transaction whose abort was acknowledged, or whose commit was never asked for, has a committed
  record. An abort after a commit that got no answer breaks Kafka's rules, and version 1 of the transactions permits
  that the commit wins (``unaborted_permitted``).
* ``fenced_write``: a batch whose producer epoch is lower than that of an earlier batch or marker of its producer id in
  the partition. Order of the log, not of time: until the marker is written, a fenced producer may still write. With
  version 2, markers have the epoch of the next transaction.

A transaction with a record whose transaction has no marker yet, because the partition's last stable offset is below its
end, is ``undecided`` and not judged.
"""

from collections.abc import Iterator
from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.findings.records import LOG_READER, Fact, explode_facts, no_record, place_of, record
from aftershock.results.evidence.transactions import reads_committed
from aftershock.results.spark.tables import Tables, beside
from aftershock.results.tables.dims import Dims

_PLACE = ("run", "topic", "partition", "offset")
_RECORD = ("run", "producer_id", "seq")


def of_transactions(read: Tables, fates: DataFrame, dims: Dims) -> DataFrame:
    """Return the findings about transactions of recorded tables, with ``fates`` of ``tables/settled.py``."""
    parts = (_aborted_reads(read, fates, dims), _of_producers(read, fates), _fenced(read.batches))
    return reduce(DataFrame.unionByName, parts)


def _aborted_reads(read: Tables, fates: DataFrame, dims: Dims) -> DataFrame:
    def readers() -> Iterator[tuple[int, str, str]]:
        for run, evidence in enumerate(dims.evidences):
            for client in evidence.clients:
                if client.consumes_from and reads_committed(evidence, client):
                    yield run, client.workload, client.arm

    of_readers = beside(dims.table(readers(), "run int, workload string, arm string"))
    rows = (
        read.outcomes.where(F.col("op") == "consume")
        .drop("client")
        .join(of_readers, ["run", "workload", "arm"])
        .join(fates.where("fate is not null").select(*_PLACE, "fate"), [*_PLACE])
        .withColumn("record", record())
    )
    client = F.concat_ws("/", "workload", "arm")
    return explode_facts(rows, [Fact("aborted_read", "consume", client, 1, F.col("fate") == "abort")])


def _of_producers(read: Tables, fates: DataFrame) -> DataFrame:
    own = read.transactions.select(
        *("run", "producer_id", "first_seq", "last_seq", "workload", "arm", "intended", "outcome", "commit_asked"),
        "version",
    )
    members = own.withColumn("seq", F.explode(F.sequence("first_seq", "last_seq")))
    sent = read.outcomes.where(F.col("op") == "produce").select(
        *_RECORD, "status", "topic", "partition", "offset", "leader_epoch", "done_us", "sent_us", "attempts"
    )
    logged = (
        read.log.select(*_RECORD, *_PLACE[1:])
        .join(fates.select(*_PLACE, "fate"), [*_PLACE])
        .groupBy(*_RECORD)
        .agg(
            F.max(F.col("fate").eqNullSafe("commit")).alias("is_committed"),
            F.max(F.col("fate").eqNullSafe("abort")).alias("is_aborted"),
            F.max(F.col("fate").isNull()).alias("is_open"),
        )
    )
    joined = members.join(sent, [*_RECORD], "left").join(logged, [*_RECORD], "left")
    absent, acked = F.col("is_committed").isNull(), F.coalesce(F.col("status") == "ok", F.lit(False))
    place = place_of(
        topic="topic",
        partition="partition",
        offset="offset",
        epoch="leader_epoch",
        attempts="attempts",
        from_us="done_us",
        until_us="done_us",
        sent_us="sent_us",
        occupied=F.lit(True),
    )
    name = F.struct("producer_id", "seq")
    is_missing, aborted, committed = absent & acked, F.col("is_aborted"), F.col("is_committed")
    kinds = {"committed": committed, "aborted": aborted, "missing": is_missing, "undecided": F.col("is_open")}
    transaction = ("run", "producer_id", "first_seq", "workload", "arm", "outcome", "commit_asked", "version")
    judged = joined.groupBy(*transaction).agg(
        *[F.count(F.when(column, True)).alias(kind) for kind, column in kinds.items()],
        *[F.min(F.when(column, name)).alias(f"first_{kind}") for kind, column in kinds.items()],
        F.min(F.when(is_missing, place)).alias("place"),
    )
    client = F.concat_ws("/", "workload", "arm")
    decided = F.col("undecided") == 0
    lacking = (F.col("aborted") > 0) | (F.col("missing") > 0)
    # what only misses records may have the causes of lost records; nothing explains a marker
    at = F.when(F.col("aborted") == 0, F.col("place"))
    gone = judged.withColumn("record", F.coalesce("first_aborted", "first_missing"))
    is_commit = F.when(decided & (F.col("outcome") == "committed"), 1)
    of_gone = [
        Fact("torn", "produce", client, F.when(decided, 1), (F.col("committed") > 0) & lacking, at),
        Fact("lost_commit", "produce", client, is_commit, lacking, at),
        Fact("undecided", "produce", client, F.when(~decided, 1), 1),
    ]
    uncommitted = F.col("outcome").isin("aborted", "failed")
    permitted = F.coalesce(F.col("commit_asked") & (F.coalesce("version", F.lit(1)) == 1), F.lit(False))
    visible = F.col("committed") > 0
    of_visible = [
        Fact("unaborted", "produce", client, F.when(decided & uncommitted, 1), visible & ~permitted),
        Fact("unaborted_permitted", "produce", client, F.when(decided & uncommitted & permitted, 1), visible),
    ]
    seen = judged.withColumn("record", F.col("first_committed"))
    return explode_facts(gone, of_gone).unionByName(explode_facts(seen, of_visible))


def _fenced(batches: DataFrame) -> DataFrame:
    before = Window.partitionBy("run", "topic", "partition", "kafka_producer_id").orderBy("first_offset")
    before = before.rowsBetween(Window.unboundedPreceding, -1)
    rows = batches.where("kafka_producer_id is not null").withColumn("highest", F.max("kafka_epoch").over(before))
    data = rows.where("marker is null").withColumn("record", no_record())
    lower = F.coalesce(F.col("kafka_epoch") < F.col("highest"), F.lit(False))
    return explode_facts(data, [Fact("fenced_write", "consume", F.lit(LOG_READER), 1, lower)])
