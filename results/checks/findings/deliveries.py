"""Integrity findings about what readers deliver between their assignments.

**Lanes** divide a reader's deliveries from a partition: a lane begins when the partition is assigned to the reader or
when its position is reset (``ownership.Start``). A reader that was never assigned the partition delivers in lane 0.

**Co-ownership.** A group member owns a partition from its first to its last delivery in a lane. The earlier of two
members breaks ``co_owned`` if it still delivers after the other one has begun.

**Stale assignments.** A member of a group must not deliver from a partition after it has given it up or lost it, nor
from one that it was never assigned. If a member reports no assignment at all, its lanes are ``unassigned``, and nobody
knows what it owned.

**Commits.** The first delivery after an assignment is *behind* if its offset is below the last commit that was
acknowledged before.

**Redelivery.** A record may be delivered again only by the partition's owner, in a lane that the former deliveries were
not in, and from the last acknowledged commit on. So further deliveries break ``duplicate`` if the reader

* is in the lane of an earlier one (counted in ``sequences.py``),
* was never assigned the partition,
* began its lane with a reset of its position (an explanation may say that the position was out of range), or
* began its lane with an assignment, and the record lies below the commit.

Deliveries of a member after another one was assigned the partition are judged by ``co_owned`` and ``stale_assignment``.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.findings.ownership import starts
from aftershock.results.checks.findings.records import Fact, explode_facts, no_record, place_of, record
from aftershock.results.evidence.groups import group_of, reader_events
from aftershock.results.spark.tables import Tables, beside
from aftershock.results.tables.dims import Dims

_LANE_PLACE = ("run", "client", "worker", "topic", "partition")
_STARTS = (
    "run int, client string, worker string, topic string, partition int, at_us bigint, assigned boolean, "
    "committed bigint, committed_us bigint, ended_us bigint"
)
OWN_MARKS = ("reference",)
"""Clients that report the high watermark of a record's own response; librdkafka reports that of the latest response."""


def deliveries(read: Tables, dims: Dims) -> DataFrame:
    """Return each delivered record as ``run client topic topic_id partition lane member group offset at`` and details.

    ``worker`` is the client process; in a group of several members it also stands for the ``member``. ``begun`` is the
    ``Start`` of the lane, null in lane 0, and ``since`` its time. Further details of a delivery are ``epoch`` (leader
    epoch of the batch), ``own`` (True if the high watermark comes from the response with the record) and
    ``high_watermark broker_id error producer_id seq``. If the id of a topic is unknown, ``topic_id`` holds the topic's
    name.
    """
    consumed = read.outcomes.where((F.col("op") == "consume") & F.col("offset").isNotNull())
    only = F.concat_ws("-", "workload", "arm", F.lit("consume"))  # the name of a client's only consumer
    worker = F.coalesce("worker", only)
    rows = consumed.select(
        *("run", "topic", "partition", "group", "offset", worker.alias("worker")),
        F.when(worker != only, worker).otherwise(F.col("member")).alias("member"),
        *("high_watermark", "broker_id", "error", "producer_id", "seq", "intended_us"),
        F.concat_ws("/", "workload", "arm").alias("client"),
        F.coalesce("topic_id", "topic").alias("topic_id"),
        F.col("done_us").alias("at"),
        F.col("leader_epoch").alias("epoch"),
        F.col("client").isin(*OWN_MARKS).alias("own"),
    )
    details = F.struct("at_us", "assigned", "committed", "committed_us", "ended_us")
    by_place = _starts(dims).groupBy(*_LANE_PLACE).agg(F.array_sort(F.collect_list(details)).alias("starts"))
    earlier = F.filter("starts", lambda start: start["at_us"] <= F.col("at"))
    joined = rows.join(beside(by_place), [*_LANE_PLACE], "left")
    lane = F.coalesce(F.size(earlier), F.lit(0)).cast("bigint")
    begun = F.try_element_at(earlier, F.lit(-1))
    return joined.withColumns({"begun": begun, "since": begun["at_us"], "lane": lane}).drop("starts")


def _starts(dims: Dims) -> DataFrame:
    return dims.table(((run, *one) for run, scene in enumerate(dims.scenes) for one in starts(scene.evidence)), _STARTS)


def of_lanes(delivered: DataFrame, dims: Dims) -> DataFrame | None:
    """Return findings about the lanes of groups' members; None if no run has a group."""
    if not any(group_of(scene.evidence, reader) for scene in dims.scenes for reader in scene.readers):
        return None
    begun = F.col("begun")
    late = begun.isNull() | F.coalesce(F.col("at") > begun["ended_us"], F.lit(False))
    delivery = F.struct("at", "offset", record().alias("record"))
    lanes = (
        delivered.where(F.col("group").isNotNull() & F.col("member").isNotNull())
        .groupBy(*_LANE_PLACE, "group", "member", "lane", "begun")
        .agg(
            F.count("*").alias("n"),
            F.min("at").alias("start"),
            F.max("at").alias("end"),
            F.min(delivery).alias("first"),
            F.count(F.when(late, True)).alias("late"),
            F.min(F.when(late, delivery)).alias("first_late"),
            F.max(F.when(late, F.col("at"))).alias("last_late_us"),
        )
    )
    return _co_owned(lanes).unionByName(_stale(lanes, dims)).unionByName(_behind(lanes))


def _co_owned(lanes: DataFrame) -> DataFrame:
    # the next lane of another member is that at which the sorted lanes change their member; in descending order,
    # because Spark recomputes frames that reach forwards for every row
    order = [F.col(name).desc() for name in ("start", "member", "lane", "client", "worker")]
    back = Window.partitionBy("run", "group", "topic", "partition").orderBy(*order)
    changed = F.when(F.lag("member").over(back) != F.col("member"), F.lag("start").over(back))
    onwards = back.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    followed = lanes.withColumn("changed", changed).withColumn(
        "other_us", F.last("changed", ignorenulls=True).over(onwards)
    )
    at = place_of(topic="topic", partition="partition", from_us="other_us", until_us="end", worker="worker")
    facts = [Fact("co_owned", "consume", F.col("client"), 1, F.col("other_us") <= F.col("end"), at)]
    return explode_facts(followed.withColumn("record", no_record()), facts)


def _stale(lanes: DataFrame, dims: Dims) -> DataFrame:
    reporting = dict.fromkeys(
        (run, client.reader_of(line))
        for run, evidence in enumerate(dims.evidences)
        for client, line in reader_events(evidence, "assigned")
    )
    members = dims.table(((*member, True) for member in reporting), "run int, worker string, reports boolean")
    told, reports = lanes.join(beside(members), ["run", "worker"], "left"), F.col("reports").isNotNull()
    first = F.col("first_late")
    at = place_of(
        topic="topic",
        partition="partition",
        worker="worker",
        until_us="last_late_us",
        offset=first["offset"],
        from_us=first["at"],
    )
    facts = [
        Fact("stale_assignment", "consume", F.col("client"), F.when(reports, F.col("n")), F.col("late"), at),
        Fact("unassigned", "consume", F.col("client"), F.when(~reports, 1), 1),
    ]
    return explode_facts(told.withColumn("record", first["record"]), facts)


def _behind(lanes: DataFrame) -> DataFrame:
    resumed, first, begun = lanes.where("begun.committed is not null"), F.col("first"), F.col("begun")
    at = place_of(
        topic="topic",
        partition="partition",
        worker="worker",
        offset=first["offset"],
        from_us=begun["committed_us"],
        until_us=begun["at_us"],
    )
    behind = first["offset"] < begun["committed"]
    facts = [Fact("commit_behind", "consume", F.col("client"), 1, behind, at)]
    return explode_facts(resumed.withColumn("record", first["record"]), facts)


_AT_OFFSET = ("run", "client", "producer_id", "seq", "topic", "partition", "offset")


def redelivered(ledger: DataFrame, dims: Dims) -> DataFrame:
    """Return findings about deliveries of one record at one offset in several lanes of a reader."""
    of_readers = ledger.select("run", "producer_id", "seq", F.explode("deliveries").alias("of_reader"))
    each = of_readers.select(
        *("run", "producer_id", "seq", F.col("of_reader.reader").alias("client")),
        F.explode("of_reader.again").alias("delivery"),
    ).select("run", "producer_id", "seq", "client", F.col("delivery.done_us").alias("at"), "delivery.*")
    place, details = ("run", "client", "topic", "partition"), ("at_us", "worker", "assigned", "committed")
    by_place = (
        _starts(dims)
        .groupBy(*place)
        .agg(F.array_sort(F.collect_list(F.struct(*details, "committed_us"))).alias("starts"))
    )
    earlier = F.filter("starts", lambda start: start["at_us"] <= F.col("at"))
    own = F.filter(earlier, lambda start: start["worker"] == F.col("worker"))
    owners = F.filter(earlier, lambda start: start["assigned"])
    begun = F.col("begun")
    rows = each.join(beside(by_place), [*place], "left").withColumns(
        {"begun": F.try_element_at(own, F.lit(-1)), "owner": F.try_element_at(owners, F.lit(-1))["worker"]}
    )
    replaced = F.coalesce(F.col("owner") != F.col("worker"), F.lit(False))
    lane = (*_AT_OFFSET, "worker", "begun.at_us")
    by_time = ("at", "worker", "member")
    in_lane = F.row_number().over(Window.partitionBy(*lane).orderBy(*by_time))
    of_member = F.row_number().over(Window.partitionBy(*lane, "member").orderBy(*by_time))
    in_turn = F.row_number().over(Window.partitionBy(*_AT_OFFSET, "replaced").orderBy(*by_time))
    judged = rows.withColumn("replaced", replaced).withColumns(
        {"in_lane": in_lane, "of_member": of_member, "in_turn": in_turn}
    )
    below = ~begun["assigned"] | F.coalesce(F.col("offset") < begun["committed"], F.lit(False))
    # a process may become another member without a new assignment
    again = ~F.col("replaced") & (F.col("in_turn") > 1) & (below | (F.col("in_lane") > 1))
    broken = (F.col("of_member") == 1) & (begun.isNull() | F.coalesce(again, F.lit(False)))
    at = place_of(
        topic="topic",
        partition="partition",
        offset="offset",
        worker="worker",
        from_us=F.coalesce(begun["committed_us"], begun["at_us"], "at"),
        until_us=F.coalesce(begun["at_us"], "at"),
    )
    facts = [Fact("duplicate", "consume", F.col("client"), None, broken, at)]
    return explode_facts(judged.withColumn("record", record()), facts)
