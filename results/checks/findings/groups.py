"""Integrity findings about commits of consumer groups, the logs of their coordinators, and replicas.

**Committed offsets** are read from the consumers' ``committed`` events, which contain each acknowledged OffsetCommit. A
commit is *ahead* if the log has a record between what its group had been delivered when the commit was sent and the
committed offset (transaction markers are never delivered), or ends before the committed offset. Before its first
delivery, a group has read what lies below that delivery. Of a commit without ``took_us``, whose time of sending is
unknown, only a position beyond what was delivered by its acknowledgement is certainly ahead; otherwise it is
``commit_undated`` and not judged.

**Coordinator logs** (the offsets topic) are judged for ``commit`` workloads, whose groups read nothing, and for groups
of consumers if the topic was read after they had ended (event ``offsets_read``). A consumer would resume at a
partition's last entry, a tombstone (null value) means none. An acknowledged commit is *lost* if that entry comes from a
commit that was acknowledged before this one was sent; or, if no known commit has that entry's offset, if the entry is
below this commit's offset. So a later commit of a lower offset that a client really sent loses nothing. An entry is
*backward* if it is below the previous entry of its group and partition, unless the previous entry was a tombstone, or
the client really sent these commits in that order. An entry of a ``commit`` workload's group that no commit of that
workload has is a *phantom*. The offsets topic is not read from an attached cluster, and a share coordinator writes
nothing to the offsets topic.

**Replicas** are read by the harness after the last heal. A replica is summarised by its record count and the xor of
64-bit hashes of its records. It *differs* if it has fewer records than the log (above the replicas' start, if retention
may delete records within the run), or ends before it; of the others, if most of them have another summary. A log that
ends before all of a partition's replicas is ``unlogged``. If there is no majority, nothing tells which of them is
right, and all differ. A replica that could not be read to its end is not evidence for or against Kafka. In findings
about replicas the column ``client`` names the replica, ``orders/3 on k2``, and ``side`` is ``replica``.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.explanations.rewrites import CLOCKS
from aftershock.results.checks.findings.records import Fact, explode_facts, no_record, place_of, record
from aftershock.results.checks.obligations.reach import settings_of
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.groups import commits_of, committers, committing_readers, read_us
from aftershock.results.spark.tables import Tables, beside, union
from aftershock.results.tables.dims import Dims

_PARTITION = ("run", "client", "topic", "partition")


def commits(log: DataFrame, delivered: DataFrame, dims: Dims) -> DataFrame | None:
    """Return findings about commits above delivered offsets; None without any commit."""
    rows = [(run, *commit) for run, scene in enumerate(dims.scenes) for commit in commits_of(scene.evidence)]
    if not rows:
        return None
    columns = "run int, client string, topic string, partition int, sent_us bigint, done_us bigint, committed bigint"
    acked = dims.table(rows, columns).withColumn("at", F.coalesce("sent_us", "done_us"))
    places = beside(acked.select(*_PARTITION).distinct())
    reached = delivered.join(places, [*_PARTITION], "left_semi").select(
        *_PARTITION, "at", F.col("offset").alias("reached")
    )
    by_time = Window.partitionBy(*_PARTITION).orderBy("at")
    upto = F.max("reached").over(by_time.rangeBetween(Window.unboundedPreceding, Window.currentRow))
    # only commits before the first delivery have no `upto`; a frame from the current row on would take quadratic time
    whole = by_time.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    before_first = F.first("reached", ignorenulls=True).over(whole) - 1
    judged = (
        union(reached, acked)
        .withColumn("reached", F.coalesce(upto, before_first))
        .where(F.col("committed").isNotNull() & F.col("reached").isNotNull())
        .withColumn("record", no_record())
    )
    doubtful = judged.where(F.col("committed") > F.col("reached") + 1).drop("record")
    passed = log.select("run", "topic", "partition", "offset", record().alias("record"))
    ends = log.groupBy("run", "topic", "partition").agg(F.max("offset").alias("offset")).withColumn("ends", F.lit(True))
    between = (F.col("offset") > F.col("reached")) & (F.col("offset") < F.col("committed"))
    beyond = F.coalesce("ends", F.lit(False)) & (F.col("offset") + 1 < F.col("committed"))
    unread = union(passed, ends).join(beside(doubtful), ["run", "topic", "partition"]).where(between | beyond)
    ahead = unread.groupBy(*_PARTITION, "at", "sent_us", "committed").agg(F.min("record").alias("record"))
    client, dated = F.col("client"), F.col("sent_us").isNotNull()
    place = place_of(topic="topic", partition="partition", offset="committed", from_us="at", until_us="at")
    of_all = [
        Fact("commit_ahead", "consume", client, F.when(dated, 1), 0),
        Fact("commit_undated", "consume", client, F.when(~dated, 1), 0),
    ]
    of_ahead = [
        Fact("commit_ahead", "consume", client, None, F.when(dated, 1), place),
        Fact("commit_ahead", "consume", client, F.when(~dated, 1), 1, place),
    ]
    return explode_facts(judged, of_all).unionByName(explode_facts(ahead, of_ahead))


SIDE = "commit"
_PLACE = ("run", "group", "topic", "partition")
_COMMITS = "run int, client string, group string, topic string, partition int, sent_us bigint, done_us bigint"


def offsets(read: Tables, dims: Dims) -> DataFrame | None:
    """Return findings about lost commits and backward entries of the offsets topic; None if the topic was not read."""
    logged = [(run, evidence) for run, evidence in enumerate(dims.evidences) if evidence.parquet["offsets"]]
    clients = [(run, by.workload, by.arm, by.key) for run, evidence in logged for by in committers(evidence)]
    of_readers = [
        (run, commit.client, groups[commit.client], *commit[1:])
        for run, evidence in logged
        if (groups := {client.key: group for client, group in committing_readers(evidence).items()})
        for until_us in [read_us(evidence) or 0]
        for commit in commits_of(evidence)
        if commit.client in groups and commit.done_us <= until_us
    ]
    if not clients and not of_readers:
        return None
    by_client = beside(dims.table(clients, "run int, workload string, arm string, client string"))
    own = (
        read.outcomes.drop("client")
        .where((F.col("op") == SIDE) & (F.col("status") != "failed"))
        .join(by_client, ["run", "workload", "arm"])
        .withColumn("acked", F.col("status") == "ok")
        .withColumns({"done_us": F.when(F.col("acked"), F.col("done_us")), "committed": F.col("offset")})
        .select(*_PLACE, "client", "sent_us", "done_us", "committed", "producer_id", "seq", "acked")
    )
    of_log = dims.table(of_readers, f"{_COMMITS}, committed bigint").withColumn("acked", F.lit(True))
    known = union(own, of_log).withColumn("record", record())
    log = read.offsets.select(
        *("run", "group", "topic", F.col("topic_partition").alias("partition"), "committed"),
        F.struct("partition", "offset").alias("place"),
    )
    sent = read.outcomes.drop("client").where(F.col("op") == SIDE).join(by_client, ["run", "workload", "arm"])
    return reduce(DataFrame.unionByName, [_lost(known, log), _backward(known, log), _unsent(sent, log)])


def _lost(known: DataFrame, log: DataFrame) -> DataFrame:
    entry = F.max(F.struct("place", "committed")).alias("entry")
    last = log.groupBy(*_PLACE).agg(entry).select(*_PLACE, F.col("entry.committed").alias("last"))
    compared = known.join(last, [*_PLACE], "left")
    # the latest time at which a commit of the last entry's offset can have been written; any time if it got no answer
    written_us = F.max(F.when(F.col("committed") == F.col("last"), F.coalesce("done_us", F.lit((1 << 62) - 1))))
    judged = compared.withColumn("written_us", written_us.over(Window.partitionBy(*_PLACE))).where("acked")
    below = F.col("last") < F.col("committed")
    superseded_us = F.coalesce("sent_us", F.when(below, F.col("done_us")))
    older = F.coalesce(F.col("written_us") < superseded_us, below & F.col("written_us").isNull())
    lost = F.col("last").isNull() | ((F.col("last") != F.col("committed")) & F.coalesce(older, F.lit(False)))
    place = {name: name for name in ("group", "topic", "partition")}
    at = place_of(**place, offset="committed", from_us="done_us", until_us="done_us")
    return explode_facts(judged, [Fact("lost", SIDE, F.col("client"), 1, lost, at)])


def _backward(known: DataFrame, log: DataFrame) -> DataFrame:
    in_order = Window.partitionBy(*_PLACE).orderBy("place.partition", "place.offset")
    entries = log.withColumn("before", F.lag("committed").over(in_order))
    clients = known.select(*_PLACE, "client").distinct()
    own = entries.join(clients, [*_PLACE]).withColumn("record", no_record())
    examined = explode_facts(own, [Fact("backward", SIDE, F.col("client"), 1, 0)])
    # the times at which these two commits were sent, if known
    sent_us = F.coalesce("sent_us", "done_us")
    times = known.groupBy(*_PLACE, "committed").agg(F.min(sent_us).alias("first_us"), F.max(sent_us).alias("last_us"))
    of_before = times.withColumnsRenamed(
        {"committed": "before", "first_us": "before_first_us", "last_us": "before_last_us"}
    )
    back = (
        own.where(F.col("committed") < F.col("before"))
        .join(times, [*_PLACE, "committed"], "left")
        .join(of_before, [*_PLACE, "before"], "left")
    )
    in_turn = F.coalesce(F.col("last_us") >= F.col("before_first_us"), F.lit(False))
    place = {name: name for name in ("group", "topic", "partition")}
    at = place_of(
        **place, offset="committed", from_us=F.coalesce("first_us", F.lit(0)), until_us=F.col("before_last_us")
    )
    facts = [Fact("backward", SIDE, F.col("client"), None, F.when(~in_turn, 1), at)]
    return examined.unionByName(explode_facts(back, facts))


def _unsent(sent: DataFrame, log: DataFrame) -> DataFrame:
    """Return findings about log entries that no ``commit`` workload sent.

    A group and partition is left out if the workload did not record the offset of each commit to it.
    """
    place = sent.groupBy(*_PLACE).agg(
        F.min("client").alias("client"),
        F.collect_set("offset").alias("offsets"),
        F.max(F.col("offset").isNull()).alias("unknown"),
    )
    entries = log.where(F.col("committed").isNotNull()).join(place.where(~F.col("unknown")), [*_PLACE])
    unsent = ~F.array_contains("offsets", F.col("committed"))
    rows = entries.withColumn("record", no_record())
    return explode_facts(rows, [Fact("phantom", SIDE, F.col("client"), 1, F.when(unsent, 1))])


REPLICA_SIDE = "replica"
_REPLICA_PARTITION = ("run", "topic", "partition")


def may_expire(evidence: Evidence, topic: Mapping[str, Any]) -> bool:
    """Return True if retention may delete a topic's records within a run, by its settings or a broker's moved clock."""
    clocks = any((line.get("undo") or {}).get("verb") == CLOCKS for line in evidence.journal)
    return clocks or any("retention." in name for name in (*(topic.get("config") or {}), *settings_of(evidence)))


def replicas(table: DataFrame, log: DataFrame, dims: Dims) -> DataFrame:
    """Return findings about replicas that differ from the log or from most replicas, or that were unreadable."""
    stretch = F.xxhash64("start_offset", "end_offset", "records", "fingerprint")
    twice = F.count("start_offset") > F.count_distinct("start_offset")  # equal rows would cancel out in the XOR
    by_replica = table.groupBy(*_REPLICA_PARTITION, "broker_id").agg(
        (F.max(F.col("error").isNotNull()) | twice).alias("unread"),
        F.struct(F.count("*"), F.bit_xor(stretch)).alias("summary"),
        F.coalesce(F.sum("records"), F.lit(0)).alias("records"),
        F.min("start_offset").alias("start"),
        F.max("end_offset").alias("end"),
    )
    # retention may have deleted records before the replicas' start since the log was read
    expiring = [
        (run, topic["name"])
        for run, evidence in enumerate(dims.evidences)
        for topic in evidence.timeline.get("topics", ())
        if may_expire(evidence, topic)
    ]
    starts = beside(by_replica.groupBy(*_REPLICA_PARTITION).agg(F.min("start").alias("start")))
    kept = dims.table(expiring, "run int, topic string").withColumn("expires", F.lit(True))
    logged = (
        log.join(starts, [*_REPLICA_PARTITION])
        .join(beside(kept), ["run", "topic"], "left")
        .where(F.col("expires").isNull() | (F.col("offset") >= F.col("start")))
    )
    expected = logged.groupBy(*_REPLICA_PARTITION).agg(
        F.count("*").alias("logged"), F.max("offset").alias("last_logged")
    )
    short = (F.col("records") < F.col("logged")) | (F.col("end") <= F.col("last_logged"))
    compared = by_replica.join(beside(expected), [*_REPLICA_PARTITION], "left").withColumn(
        "kind",
        F.when(F.col("unread"), "unread").when(F.coalesce(short, F.lit(False)), "short").otherwise("whole"),
    )
    # of the whole replicas of a partition: how many have the summary, and how many the most frequent one
    of_partition = Window.partitionBy(*_REPLICA_PARTITION, "kind")
    alike = F.count("*").over(of_partition.partitionBy(*_REPLICA_PARTITION, "kind", "summary"))
    counted = compared.withColumns({"alike": alike, "n": F.count("*").over(of_partition)})
    readable = Window.partitionBy(*_REPLICA_PARTITION)
    rows = counted.withColumns(
        {
            "most": F.max("alike").over(of_partition),
            "readable": F.count(F.when(~F.col("unread"), 1)).over(readable),
        }
    ).withColumn("tie", 2 * F.col("most") <= F.col("n"))
    minority = (F.col("n") > 1) & ((F.col("alike") < F.col("most")) | F.col("tie"))
    differs = (F.col("kind") == "short") | ((F.col("kind") == "whole") & minority)
    name = F.concat(F.concat_ws("/", "topic", "partition"), F.lit(" on k"), "broker_id")
    comparable = ~F.col("unread") & ((F.col("readable") > 1) | F.col("logged").isNotNull())
    facts = [
        Fact("differing", REPLICA_SIDE, name, _one(comparable), _one(differs)),
        Fact("unread", REPLICA_SIDE, name, 1, _one(F.col("unread"))),
    ]
    of_replicas = explode_facts(rows.withColumn("record", no_record()), facts)
    whole = rows.where(F.col("kind") == "whole").groupBy(*_REPLICA_PARTITION)
    ends = whole.agg(F.min("end").alias("end"), F.min("records").alias("records"), F.max("last_logged").alias("last"))
    further = (F.col("records") > 0) & (F.col("end") > F.coalesce(F.col("last") + 1, F.lit(0)))
    place = Fact("unlogged", REPLICA_SIDE, F.concat_ws("/", "topic", "partition"), 1, _one(further))
    of_replicas = of_replicas.unionByName(explode_facts(ends.withColumn("record", no_record()), [place]))
    # partitions with records, of runs whose replicas were read, of which no replica was
    with_records = log.join(beside(table.select("run").distinct()), "run", "left_semi").select(*_REPLICA_PARTITION)
    bare = with_records.distinct().join(beside(by_replica), [*_REPLICA_PARTITION], "left_anti")
    name = F.concat(F.concat_ws("/", "topic", "partition"), F.lit(" on any broker"))
    absent = explode_facts(bare.withColumn("record", no_record()), [Fact("unread", REPLICA_SIDE, name, 1, 1)])
    return of_replicas.unionByName(absent)


def _one(condition: Column) -> Column:
    return F.when(condition, 1).otherwise(0)
