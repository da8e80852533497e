"""Integrity findings about consumer groups and replicas.

**Co-ownership.** A group member owns a partition from its first to its last delivery between two assignments; two
members of a group co-own the partition if these times overlap. Co-ownership may be legitimate (``co_owned_in_fault``)
while a fault keeps a member from learning that the coordinator has replaced it (``ownership.py``).

**Committed offsets** are read from the consumers' ``committed`` events, which contain each acknowledged OffsetCommit. A
commit is *ahead* of what its group was delivered only if the log has a record in between (transaction markers are never
delivered), and if a record of the partition was delivered before; a new group may commit unread offsets. The first
delivery after an assignment is *behind* if its offset is below the last acknowledged commit.

**Coordinator logs** show whether the commits of a ``commit`` workload, whose groups read nothing, were stored. An
acknowledged commit is *lost* if the offsets topic, since the last tombstone (null value) of the group and partition,
has no entry with the committed offset or a higher offset; a later commit may supersede an acknowledged commit. An entry
of the offsets topic is *backward* if its offset is below that of the previous entry of the same group and partition,
unless the previous entry was a tombstone. The offsets topic is not read from an attached cluster, and a share
coordinator writes nothing to the offsets topic.

**Replicas** are read by the harness after the last heal. A replica is summarised by its record count and the xor of
64-bit hashes of its records; a replica *differs* if most replicas of the partition have another summary. A replica that
could not be read to its end is not evidence for or against Kafka. In findings about replicas the column ``client`` is
the partition, ``orders/3``, and ``side`` is ``replica``.
"""

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.findings.ownership import group_of, unaware_others
from aftershock.results.checks.findings.records import (
    Fact,
    explode_facts,
    no_record,
    place_of,
    reader_events,
    record,
)
from aftershock.results.checks.findings.sequences import beginnings
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.measure.tables import Dims
from aftershock.results.spark.tables import Tables


def co_owned(delivered: DataFrame, dims: Dims) -> DataFrame | None:
    """Return findings about partitions that two group members owned at once; None if the run has no group."""
    if not any(group_of(scene.evidence, reader) for scene in dims.scenes for reader in scene.readers):
        return None
    owned = ("run", "group", "topic", "partition", "client", "worker", "member", "lane")
    reading = delivered.where(F.col("member").isNotNull()).groupBy(*owned)
    spans = reading.agg(F.min("at").alias("start"), F.max("at").alias("end"))
    # an overlap is excused if the other members may not know at its start what they have lost
    blind_spans = (
        (run, worker, *span)
        for run, scene in enumerate(dims.scenes)
        for reader in scene.readers
        for worker in reader.workers("consume")
        for span in unaware_others(scene.evidence, reader, worker)
    )
    blind = F.broadcast(dims.table(blind_spans, "run int, worker string, from_us bigint, until_us bigint"))
    excused = F.coalesce(F.col("start").between(F.col("from_us"), F.col("until_us")), F.lit(False))
    joined = spans.join(blind, ["run", "worker"], "left")
    dated = joined.groupBy(*owned, "start", "end").agg(F.max(excused).alias("at_fault"))
    # Running sums count the spans that begin within each span: those until its end, less those before its start.
    start, end = F.col("start"), F.col("end")
    turns = [
        F.struct(moment.alias("moment"), F.lit(turn).alias("turn")) for turn, moment in enumerate((start, start, end))
    ]
    exploded = dated.select(*owned, "at_fault", F.inline(F.array(*turns)))
    by_time = Window.orderBy("moment", "turn").rowsBetween(Window.unboundedPreceding, 0)

    def others(begins: Column) -> Column:
        begun = F.sum(F.when((F.col("turn") == 1) & begins, 1).otherwise(0))
        of_member = begun.over(by_time.partitionBy(*owned[:4], "member"))
        return (F.col("turn") - 1) * (begun.over(by_time.partitionBy(*owned[:4])) - of_member)

    summed_turns = exploded.select(
        *owned, others(~F.col("at_fault")).alias("free"), others(F.col("at_fault")).alias("excused")
    )
    counted = summed_turns.groupBy(*owned).agg(F.sum("free").alias("free"), F.sum("excused").alias("excused"))
    facts = [
        Fact("co_owned", "consume", F.col("client"), 1, F.col("free") > 0),
        Fact("co_owned_in_fault", "consume", F.col("client"), 1, F.col("excused") > 0),
        Fact("unassigned", "consume", F.col("client"), 1, F.col("lane") == 0),
    ]
    return explode_facts(counted.withColumn("record", no_record()), facts)


def stale(delivered: DataFrame, dims: Dims) -> DataFrame | None:
    """Return findings about deliveries from partitions that their reader had given up; None if it gave up none."""
    ends = [
        (run, client.key, client.reader_of(line), topic, number, line["t_us"])
        for run, scene in enumerate(dims.scenes)
        for event in ("revoked", "lost")
        for client, line in reader_events(scene.evidence, event)
        for topic, number in line["partitions"]
    ]
    if not ends:
        return None
    place = ["run", "client", "worker", "topic", "partition"]
    table = dims.table(ends, "run int, client string, worker string, topic string, partition int, end_us bigint")
    ended = F.broadcast(table.groupBy(*place).agg(F.collect_list("end_us").alias("ends")))
    late = F.exists("ends", lambda end: (end < F.col("at")) & (end >= F.coalesce(F.col("since"), F.lit(0))))
    rows = delivered.join(ended, place).withColumn("record", record())
    return explode_facts(rows, [Fact("stale_assignment", "consume", F.col("client"), 1, late)])


_PARTITION = ("run", "client", "topic", "partition")
_COMMIT_COLUMNS = "run int, client string, topic string, partition int"


def commits(log: DataFrame, delivered: DataFrame, dims: Dims) -> DataFrame | None:
    """Return findings about commits above delivered offsets and deliveries below commits; None without any commit."""
    rows = [(run, *commit) for run, scene in enumerate(dims.scenes) for commit in committed(scene.evidence)]
    if not rows:
        return None
    acked = dims.table(rows, f"{_COMMIT_COLUMNS}, at bigint, committed bigint")
    places = F.broadcast(acked.select(*_PARTITION).distinct())
    of_committers = delivered.join(places, [*_PARTITION], "left_semi")
    return _ahead(acked, of_committers, log).unionByName(_behind(of_committers, dims))


def committed(evidence: Evidence) -> Iterator[tuple[str, str, int, int, int]]:
    """Yield (client, topic, partition, time, offset) of each acknowledged offset commit."""
    for client, line in reader_events(evidence, "committed"):
        yield from ((client.key, topic, number, line["t_us"], offset) for topic, number, offset in line["offsets"])


def returns(evidence: Evidence) -> Iterator[tuple[str, str, str, int, int, int]]:
    """Yield the offset at which each assigned reader resumes (client, worker, topic, partition, lane, offset).

    This is the last offset that any member of the group committed.
    """
    last: dict[tuple[str, str, int], int] = {}
    moments = [(at_us, 1, (client, topic, number), "", at) for client, topic, number, at_us, at in committed(evidence)]
    lanes: dict[tuple[str, str, str, int], int] = {}
    for client, worker, topic, number, at_us, assigned in beginnings(evidence):
        moments.append((at_us, 0, (client, topic, number), worker, int(assigned)))
    for _, is_commit, place, worker, value in sorted(moments):
        if is_commit:
            last[place] = value
            continue
        lane = (worker, *place)
        lanes[lane] = lanes.get(lane, 0) + 1
        if value and place in last:
            client, topic, number = place
            yield client, worker, topic, number, lanes[lane], last[place]


def _ahead(acked: DataFrame, delivered: DataFrame, log: DataFrame) -> DataFrame:
    reached = delivered.select(*_PARTITION, "at", F.col("offset").alias("reached"))
    by_time = Window.partitionBy(*_PARTITION).orderBy("at")
    upto = by_time.rangeBetween(Window.unboundedPreceding, Window.currentRow)
    judged = (
        reached.unionByName(acked, allowMissingColumns=True)
        .withColumn("reached", F.max("reached").over(upto))
        .where(F.col("committed").isNotNull() & F.col("reached").isNotNull())
        .withColumn("record", no_record())
    )
    doubtful = judged.where(F.col("committed") > F.col("reached") + 1).drop("record")
    passed = log.select("run", "topic", "partition", "offset", record().alias("record"))
    between = (F.col("offset") > F.col("reached")) & (F.col("offset") < F.col("committed"))
    unread = passed.join(F.broadcast(doubtful), ["run", "topic", "partition"]).where(between)
    ahead = unread.groupBy(*_PARTITION, "at").agg(F.min("record").alias("record"))
    examined = explode_facts(judged, [Fact("commit_ahead", "consume", F.col("client"), 1, 0)])
    return examined.unionByName(explode_facts(ahead, [Fact("commit_ahead", "consume", F.col("client"), None, 1)]))


def _behind(delivered: DataFrame, dims: Dims) -> DataFrame:
    rows = ((run, *resumed) for run, scene in enumerate(dims.scenes) for resumed in returns(scene.evidence))
    lane = "run int, client string, worker string, topic string, partition int, lane bigint"
    acked = dims.table(rows, f"{lane}, committed bigint")
    first = F.min(F.struct("at", "offset", record().alias("record"))).alias("first")
    judged = (
        delivered.join(F.broadcast(acked), [*_PARTITION, "worker", "lane"])
        .groupBy(*_PARTITION, "worker", "lane", "committed")
        .agg(first)
        .withColumn("record", F.col("first.record"))
    )
    behind = F.col("first.offset") < F.col("committed")
    return explode_facts(judged, [Fact("commit_behind", "consume", F.col("client"), 1, behind)])


SIDE = "commit"
_PLACE = ("run", "group", "topic", "partition")


def committers(evidence: Evidence) -> Iterator[Client]:
    """Yield the clients whose commits are found in the log of the offsets topic."""
    if "attach" in evidence.timeline.get("cluster", {}):
        return
    for client in evidence.clients:
        if client.commits_to and not evidence.arm_settings(client).get("share"):
            yield client


def offsets(read: Tables, dims: Dims) -> DataFrame | None:
    """Return findings about lost commits and backward entries of the offsets topic; None if the topic was not read."""
    logged = [(run, evidence) for run, evidence in enumerate(dims.evidences) if evidence.parquet["offsets"]]
    rows = [(run, by.workload, by.arm, by.key) for run, evidence in logged for by in committers(evidence)]
    if not rows:
        return None
    clients = F.broadcast(dims.table(rows, "run int, workload string, arm string, client string"))
    acked = (
        read.outcomes.drop("client")
        .where((F.col("op") == SIDE) & (F.col("status") == "ok"))
        .join(clients, ["run", "workload", "arm"])
        .select(*_PLACE, "client", F.col("offset").alias("committed"), record().alias("record"))
    )
    log = read.offsets.select(
        *("run", "group", "topic", F.col("topic_partition").alias("partition"), "committed"),
        F.struct("partition", "offset").alias("place"),
    )
    in_order = Window.partitionBy(*_PLACE)
    # an acknowledged commit is lost if no entry after the last tombstone has its position or a later position
    tombstone = F.max(F.when(F.col("committed").isNull(), F.col("place"))).over(in_order)
    since = log.withColumn("tombstone", tombstone).where("tombstone is null or place > tombstone")
    compared = acked.join(since.groupBy(*_PLACE).agg(F.max("committed").alias("reached")), list(_PLACE), "left")
    in_log = F.coalesce(F.col("reached") >= F.col("committed"), F.lit(False))
    lost = explode_facts(compared, [Fact("lost", SIDE, F.col("client"), 1, ~in_log)])
    # an entry goes backward if it is below the entry before it
    before = F.lag("committed").over(in_order.orderBy("place"))
    entries = log.withColumn("back", F.coalesce(F.col("committed") < before, F.lit(False)))
    own = entries.join(acked.select(*_PLACE, "client").distinct(), list(_PLACE)).withColumn("record", no_record())
    at = place_of(topic="topic", partition="partition", offset="committed")
    return lost.unionByName(explode_facts(own, [Fact("backward", SIDE, F.col("client"), 1, F.col("back"), at)]))


REPLICA_SIDE = "replica"
_REPLICA_PARTITION = ("run", "topic", "partition")


def replicas(table: DataFrame) -> DataFrame:
    """Return findings about replicas that differ from most replicas of their partition or that were unreadable."""
    stretch = F.xxhash64("start_offset", "end_offset", "records", "fingerprint")
    by_replica = table.groupBy(*_REPLICA_PARTITION, "broker_id").agg(
        F.max(F.col("error").isNotNull()).alias("unread"),
        F.struct(F.count("*"), F.bit_xor(stretch)).alias("summary"),
    )
    alike = by_replica.groupBy(*_REPLICA_PARTITION, "unread", "summary").agg(F.count("*").alias("n"))
    readable = F.when(~F.col("unread"), F.col("n"))
    rows = alike.groupBy(*_REPLICA_PARTITION).agg(
        F.sum("n").alias("n"),
        F.coalesce(F.sum(readable), F.lit(0)).alias("readable"),
        F.coalesce(F.max(readable), F.lit(0)).alias("most"),
    )
    name, n, read = F.concat_ws("/", "topic", "partition"), F.col("n"), F.col("readable")
    facts = [
        Fact("differing", REPLICA_SIDE, name, F.when(read > 1, read), read - F.col("most")),
        Fact("unread", REPLICA_SIDE, name, n, n - read),
    ]
    return explode_facts(rows.withColumn("record", no_record()), facts)
