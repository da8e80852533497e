"""How far a group says that it has come: positions committed before they were reached, and positions gone back behind.

Read from ``committed`` of the clients' events, which tells every acknowledged OffsetCommit of a consumer. (The commits
of a ``commit`` workload are made up, of groups that read nothing: ``offsets``.)

Rules: *ahead* of what was delivered to the group is a commit only if the log has a record between the two, for markers
are never delivered, and if something of the partition was delivered at all: where a group begins it may commit
unread. *Behind* is the first delivery after an assignment that lies before the last commit acknowledged until then.
"""

from collections.abc import Iterator

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.evidence import Evidence
from aftershock.results.integrity.finding import breach, fact, found, no_record, record
from aftershock.results.integrity.lanes import beginnings, told_by
from aftershock.results.measuring.dims import Dims

_PARTITION = ("run", "client", "topic", "partition")
_TOLD = "run int, client string, topic string, partition int"


def commits(log: DataFrame, delivered: DataFrame, dims: Dims) -> DataFrame | None:
    """``commit_ahead`` (of commits) and ``commit_behind`` (of assignments), by reader; None where nobody committed."""
    rows = [(run, *one) for run, scene in enumerate(dims.scenes) for one in committed(scene.evidence)]
    if not rows:
        return None
    told = dims.table(rows, f"{_TOLD}, at bigint, committed bigint")
    places = F.broadcast(told.select(*_PARTITION).distinct())
    theirs = delivered.join(places, [*_PARTITION], "left_semi")
    return _ahead(told, theirs, log).unionByName(_behind(theirs, dims))


def committed(evidence: Evidence) -> Iterator[tuple[str, str, int, int, int]]:
    """(client, topic, partition, moment, position) of every acknowledged commit."""
    for client, line in told_by(evidence, "committed"):
        yield from ((client, topic, number, line["t_us"], offset) for topic, number, offset in line["offsets"])


def returns(evidence: Evidence) -> Iterator[tuple[str, str, int, int, int]]:
    """(client, topic, partition, lane, position): where each lane that an assignment began was to go on."""
    last: dict[tuple[str, str, int], int] = {}
    moments = [(at_us, 1, (client, topic, number), at) for client, topic, number, at_us, at in committed(evidence)]
    lanes: dict[tuple[str, str, int], int] = {}
    for client, topic, number, at_us, assigned in beginnings(evidence):
        moments.append((at_us, 0, (client, topic, number), int(assigned)))
    for _, is_commit, place, value in sorted(moments):
        if is_commit:
            last[place] = value
            continue
        lanes[place] = lanes.get(place, 0) + 1
        if value and place in last:
            yield *place, lanes[place], last[place]


def _ahead(told: DataFrame, delivered: DataFrame, log: DataFrame) -> DataFrame:
    reached = delivered.select(*_PARTITION, "at", F.col("offset").alias("reached"))
    by_time = Window.partitionBy(*_PARTITION).orderBy("at")
    upto = by_time.rangeBetween(Window.unboundedPreceding, Window.currentRow)
    judged = (
        reached.unionByName(told, allowMissingColumns=True)
        .withColumn("reached", F.max("reached").over(upto))
        .where(F.col("committed").isNotNull() & F.col("reached").isNotNull())
        .withColumn("record", no_record())
    )
    doubtful = judged.where(F.col("committed") > F.col("reached") + 1).drop("record")
    passed = log.select("run", "topic", "partition", "offset", record().alias("record"))
    between = (F.col("offset") > F.col("reached")) & (F.col("offset") < F.col("committed"))
    unread = passed.join(F.broadcast(doubtful), ["run", "topic", "partition"]).where(between)
    ahead = unread.groupBy(*_PARTITION, "at").agg(F.min("record").alias("record"))
    examined = found(judged, [fact("commit_ahead", "consume", F.col("client"), 1, 0)])
    return examined.unionByName(found(ahead, [breach("commit_ahead", "consume", F.col("client"), 1)]))


def _behind(delivered: DataFrame, dims: Dims) -> DataFrame:
    rows = ((run, *one) for run, scene in enumerate(dims.scenes) for one in returns(scene.evidence))
    told = dims.table(rows, f"{_TOLD}, lane bigint, committed bigint")
    first = F.min(F.struct("at", "offset", record().alias("record"))).alias("first")
    judged = (
        delivered.join(F.broadcast(told), [*_PARTITION, "lane"])
        .groupBy(*_PARTITION, "lane", "committed")
        .agg(first)
        .withColumn("record", F.col("first.record"))
    )
    behind = F.col("first.offset") < F.col("committed")
    return found(judged, [fact("commit_behind", "consume", F.col("client"), 1, behind)])
