"""Integrity findings about transactions: what their producers know, compared with the markers in the log.

The log is read at isolation level 0 and its control batches are decoded, so no client library is believed.

* ``aborted_read``: a reader of committed records got a record whose transaction was aborted (Adya's G1a), or had not
  ended when the log was read, after the reader. A service that promises exactly once is such a reader: none of its
  outputs may name an aborted input.
* ``torn``: some records of a transaction are committed, and others are aborted or missing. Only acknowledged records
  can be missing. A record that was written outside of its transaction is missing in it, and visible all the same.
* ``lost_commit``: a transaction whose commit was acknowledged has a record that was aborted or is missing.
* ``unaborted``: a transaction whose abort was acknowledged, or whose commit was never asked for, has a committed
  record, or one outside of the transaction. An abort after a commit that got no answer breaks Kafka's rules, and
  version 1 of the transactions permits that the commit wins (``unaborted_permitted``).
* ``fenced_write``: a batch whose producer epoch is lower than that of an earlier batch or marker of its producer id in
  the partition. Order of the log, not of time: until the marker is written, a fenced producer may still write. With
  version 2, markers have the epoch of the next transaction.

A transaction with a record whose transaction has no marker yet, because the partition's last stable offset is below its
end, is ``undecided`` and not judged.
"""

from collections.abc import Callable, Iterator
from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.findings.records import LOG_READER, Fact, explode_facts, no_record, place_of, record
from aftershock.results.evidence.transactions import reads_committed
from aftershock.results.spark.tables import Tables, beside
from aftershock.results.tables.dims import Dims
from aftershock.results.tables.settled import (
    ABORT,
    BITS,
    COMMIT,
    OPEN,
    bits_of,
    in_buckets,
    of_kafka_producer,
    with_fate,
)

_PRODUCER = ("run", "producer_id")
_RECORD = (*_PRODUCER, "seq")
_TRANSACTION = (*_PRODUCER, "first_seq", "workload", "arm", "outcome", "commit_asked", "version")


def of_transactions(read: Tables, fates: DataFrame, dims: Dims, persist: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Return the findings about transactions of recorded tables, with ``fates`` of ``tables/settled.py``."""
    parts = [_aborted_reads(read, fates, dims), _of_producers(read, fates, persist), _fenced(read.batches)]
    if read.outputs is not None:
        parts.append(_aborted_inputs(read.log, read.outputs, fates, dims))
    return reduce(DataFrame.unionByName, parts)


def _aborted_reads(read: Tables, fates: DataFrame, dims: Dims) -> DataFrame:
    def readers() -> Iterator[tuple[int, str, str]]:
        for run, evidence in enumerate(dims.evidences):
            for client in evidence.clients:
                if client.consumes_from and reads_committed(evidence, client):
                    yield run, client.workload, client.arm

    of_readers = beside(dims.table(readers(), "run int, workload string, arm string"))
    delivered = (
        read.outcomes.where(F.col("op") == "consume").drop("client").join(of_readers, ["run", "workload", "arm"])
    )
    broken = F.col("fate") != COMMIT
    # reads of committed records are only counted
    rows = (
        with_fate(delivered, fates)
        .where(F.col("fate").isNotNull())
        .groupBy("run", "workload", "arm", broken.alias("broken"), F.when(broken, record()).alias("record"))
        .agg(F.count("*").alias("n"))
    )
    client, n = F.concat_ws("/", "workload", "arm"), F.col("n")
    return explode_facts(rows, [Fact("aborted_read", "consume", client, n, F.when(F.col("broken"), n))])


def _aborted_inputs(log: DataFrame, outputs: DataFrame, fates: DataFrame, dims: Dims) -> DataFrame:
    """Return the findings about visible outputs of transactional services whose inputs were aborted."""
    own = beside(dims.pipes.where("transactional").select("run", "client", "reads", "writes"))
    of_inputs = log.join(own.select("run", F.col("reads").alias("topic")).distinct(), ["run", "topic"])
    inputs = (
        with_fate(of_inputs, fates)
        .where(F.col("fate").isin(COMMIT, ABORT))
        .groupBy(*_RECORD, F.col("topic").alias("reads"))
        .agg(F.max(F.col("fate") == COMMIT).alias("is_committed"))
    )
    written = with_fate(outputs.join(own.withColumn("topic", F.col("writes")), ["run", "topic"]), fates)
    visible = written.where(F.col("fate").isNull() | (F.col("fate") == COMMIT)).select(*_RECORD, "client", "reads")
    named = visible.join(inputs, [*_RECORD, "reads"]).withColumn("record", record())
    return explode_facts(named, [Fact("aborted_read", "pipe", F.col("client"), 1, ~F.col("is_committed"))])


_KINDS = ("committed", "aborted", "missing", "undecided")


def _of_producers(read: Tables, fates: DataFrame, persist: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Return the findings about what producers know of their transactions.

    Records are compared as bits of the producers' sequence numbers (``tables/settled.py``), so only records that are
    missing are looked up one by one. Transactions that break no rule are only counted, and have no ``details``.
    """
    logged = with_fate(read.log, fates).where("seq is not null")
    in_log = {
        "committed": F.col("fate").isNull() | (F.col("fate") == COMMIT),
        "aborted": F.col("fate") == ABORT,
        "undecided": F.col("fate") == OPEN,
        "logged": F.col("fate").isNotNull(),
    }
    sent = read.outcomes.where(F.col("op") == "produce")
    known = bits_of(logged, _PRODUCER, "seq", "seq", in_log)
    acked = bits_of(sent, _PRODUCER, "seq", "seq", {"acked": F.col("status") == "ok"})
    own = read.transactions.select(*_TRANSACTION, "last_seq")
    parts = in_buckets(own, "first_seq", "last_seq")
    for table in (known, acked):
        parts = parts.join(beside(table), [*_PRODUCER, "bucket"], "left")
    parts = parts.withColumn("missing", F.expr("coalesce(acked, 0) & ~coalesce(logged, 0)"))
    counts = []
    for kind in _KINDS:
        parts = parts.withColumn(kind, F.expr(f"coalesce({kind}, 0) & bits"))
        # the lowest bit that is set
        lowest = F.expr(f"bucket * {BITS} + cast(round(log2({kind} & -{kind})) as int)")
        counts.append(F.sum(F.bit_count(kind)).alias(kind))
        counts.append(F.min(F.when(F.col(kind) != 0, lowest)).alias(f"first_{kind}"))
    transactions = parts.groupBy(*_TRANSACTION, "last_seq").agg(*counts)
    client, n = F.concat_ws("/", "workload", "arm"), F.col("n")
    decided, visible = F.col("undecided") == 0, F.col("committed") > 0
    lacking = (F.col("aborted") > 0) | (F.col("missing") > 0)
    uncommitted = F.col("outcome").isin("aborted", "failed")
    anomalous = ~decided | lacking & (visible | (F.col("outcome") == "committed")) | uncommitted & visible
    firsts = [F.struct("producer_id", F.col(f"first_{kind}").alias("seq")).alias(f"first_{kind}") for kind in _KINDS]
    details = F.when(anomalous, F.struct("first_seq", "last_seq", *_KINDS, *firsts)).alias("details")
    counted = transactions.groupBy("run", "workload", "arm", "outcome", "commit_asked", "version", details)
    columns = {kind: F.coalesce(F.col("details")[kind], F.lit(0)) for kind in _KINDS}
    for kind in _KINDS:
        first = F.col("details")[f"first_{kind}"]
        columns[f"first_{kind}"] = F.when(first["seq"].isNotNull(), first)
    judged = persist(counted.agg(F.count("*").alias("n")).withColumns(columns).drop("details"))
    gone = _placed(judged, sent).withColumn("record", F.coalesce("first_aborted", "first_missing"))
    # what only misses records may have the causes of lost records; nothing explains a marker
    at = F.when(F.col("aborted") == 0, F.col("place"))
    is_commit = F.when(decided & (F.col("outcome") == "committed"), n)
    of_gone = [
        Fact("torn", "produce", client, F.when(decided, n), visible & lacking, at),
        Fact("lost_commit", "produce", client, is_commit, lacking, at),
        Fact("undecided", "produce", client, F.when(~decided, n), n),
    ]
    permitted = F.coalesce(F.col("commit_asked") & (F.coalesce("version", F.lit(1)) == 1), F.lit(False))
    of_visible = [
        Fact("unaborted", "produce", client, F.when(decided & uncommitted, n), visible & ~permitted),
        Fact("unaborted_permitted", "produce", client, F.when(decided & uncommitted & permitted, n), visible),
    ]
    seen = judged.withColumn("record", F.col("first_committed"))
    return explode_facts(gone, of_gone).unionByName(explode_facts(seen, of_visible))


def _placed(judged: DataFrame, sent: DataFrame) -> DataFrame:
    """Add the ``place`` of the first missing record of each transaction, as its producer knows it."""
    lacking = judged.where("missing > 0").select("run", "first_missing.*")
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
    if lacking.isEmpty():
        sent = sent.limit(0)  # so that no record is read
    placed = lacking.distinct().join(sent.select(*_RECORD, place.alias("place")), [*_RECORD])
    placed = placed.groupBy(*_RECORD).agg(F.min("place").alias("place"))
    missing = {name: F.col("first_missing")[name] for name in ("producer_id", "seq")}
    return judged.withColumns(missing).join(placed, [*_RECORD], "left").drop(*missing)


def _fenced(batches: DataFrame) -> DataFrame:
    before = of_kafka_producer().orderBy("first_offset").rowsBetween(Window.unboundedPreceding, -1)
    rows = batches.where("kafka_producer_id is not null").withColumn("highest", F.max("kafka_epoch").over(before))
    lower = F.coalesce(F.col("kafka_epoch") < F.col("highest"), F.lit(False))
    counts = F.count("*").alias("n"), F.count_if(lower).alias("lower")
    data = rows.where("marker is null").groupBy("run").agg(*counts).withColumn("record", no_record())
    return explode_facts(data, [Fact("fenced_write", "consume", F.lit(LOG_READER), F.col("n"), F.col("lower"))])
