"""What the records say of each other: lost, duplicate, phantom, out of order. Exact joins, by union and one groupBy.

Rules: these count, they do not judge (``promises.py`` does). A finding is (rule, side, client): ``examined`` records,
``broken`` ones, and up to twenty of those as samples. Order looks past duplicates, so that one planted duplicate
raises one alarm.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.check import SAMPLES_MAX
from aftershock.results.evidence import Client
from aftershock.results.ledger import acked, owed
from aftershock.results.phases import moment

LOG_READER = "log"


def findings(ledger: DataFrame, readers: Sequence[Client], lossy: Sequence[str], judged_from_us: int) -> DataFrame:
    """``rule side client examined broken samples`` read off the ledger.

    ``lossy`` names the producing clients whose acks permit loss: what they lost from the log nobody could have read.
    Rules: ``lost`` and ``duplicate`` (produce: log; consume: deliveries), ``phantom``, and two that are only reported:
    ``in_doubt`` (of the records in doubt, those in the log) and ``redelivered`` (delivered more than once in all).
    """
    ours = F.col("producer_id").isNotNull() & F.col("seq").isNotNull()
    facts = [*_of_producers(), _foreign(F.lit(LOG_READER), F.col("logged"), ours)]
    for index, reader in enumerate(readers):
        facts += _of_reader(index, reader, ours, lossy, judged_from_us)
    record = F.when(ours, F.struct("producer_id", "seq"))
    told = ledger.select(record.alias("record"), F.explode(F.array(*facts)).alias("fact")).select("record", "fact.*")
    return _summed(told.where((F.col("examined") > 0) & F.col("client").isNotNull()))


def _summed(told: DataFrame) -> DataFrame:
    broken = F.when(F.col("broken") > 0, F.col("record"))
    return told.groupBy("rule", "side", "client").agg(
        F.sum("examined").alias("examined"),
        F.sum("broken").alias("broken"),
        F.min_by(broken, broken, SAMPLES_MAX).alias("samples"),
    )


def _fact(rule: str, side: str, client: Column, examined: Column, broken: Column) -> Column:
    """``examined`` and ``broken`` are conditions or numbers of rows; broken counts only among the examined."""
    examined = examined.cast("bigint")
    return F.struct(
        F.lit(rule).alias("rule"),
        F.lit(side).alias("side"),
        client.alias("client"),
        examined.alias("examined"),
        F.when(examined > 0, F.coalesce(broken.cast("bigint"), moment(0))).otherwise(moment(0)).alias("broken"),
    )


def _of_producers() -> list[Column]:
    client, in_log, in_doubt = F.col("client"), F.col("logged") > 0, F.col("status") == "in_doubt"
    return [
        _fact("lost", "produce", client, acked(), ~in_log),
        _fact("duplicate", "produce", client, F.col("places") > 0, F.col("places") > 1),
        _fact("in_doubt", "produce", client, F.coalesce(in_doubt, F.lit(False)), in_log),
    ]


def _of_reader(index: int, reader: Client, ours: Column, lossy: Sequence[str], judged_from_us: int) -> list[Column]:
    key, deliveries = F.lit(reader.key), F.col(f"deliveries_{index}")
    due = acked() & owed(reader, judged_from_us)
    readable = (F.col("logged") > 0) | ~F.col("client").isin(list(lossy))
    return [
        _fact("lost", "consume", key, due, (deliveries == 0) & readable),
        _fact("redelivered", "consume", key, deliveries > 0, deliveries > 1),
        _foreign(key, deliveries, ours),
    ]


def _foreign(reader: Column, seen: Column, ours: Column) -> Column:
    """Rows that nobody sent: without our ids, or with ids that have no produce row."""
    return _fact("phantom", "consume", reader, seen, F.when(~ours | F.col("client").isNull(), seen))


def positions(
    outcomes: DataFrame, log: DataFrame, producers: Mapping[int, str], assigned_us: Mapping[str, Sequence[int]]
) -> DataFrame:
    """``rule side client examined broken samples`` of what needs positions: order, and ``repeated`` deliveries.

    The log must rise in ``seq`` per (topic, partition, producer) as offsets do; a reader's offsets must rise per
    (topic, partition) as it goes, and repeat none. A reader begins anew whenever partitions were assigned to it
    (``assigned_us`` by client key): at-least-once permits what follows to be seen again.
    """
    read = _logged(log, producers).unionByName(_delivered(outcomes, assigned_us))
    lane = ["side", "client", "topic", "partition", "lane"]
    once = read.groupBy(*lane, "value").agg(
        F.min("at").alias("at"), F.count("*").alias("copies"), F.min("record").alias("record")
    )
    before = F.lag("value").over(Window.partitionBy(*lane).orderBy("at", "value"))
    facts = F.array(
        _fact("order", "", F.col("client"), F.lit(1), F.col("value") < F.col("before")),
        _fact("repeated", "", F.col("client"), F.col("copies"), F.col("copies") - 1),
    )
    told = once.withColumn("before", before).select("side", "record", F.explode(facts).alias("fact"))
    return _summed(told.select("side", "record", "fact.rule", "fact.client", "fact.examined", "fact.broken"))


def _logged(log: DataFrame, producers: Mapping[int, str]) -> DataFrame:
    """The log as it must rise: its value is the seq, its place the offset, a lane each producer."""
    client = F.coalesce(
        F.lit(None).cast("string"), *[F.when(F.col("producer_id") == id_, F.lit(key)) for id_, key in producers.items()]
    )
    ours = log.where(client.isNotNull() & F.col("seq").isNotNull())
    lane, value, at = F.col("producer_id").cast("bigint"), F.col("seq"), F.col("offset")
    return ours.select(*_read("produce", client, lane, value, at))


def _delivered(outcomes: DataFrame, assigned_us: Mapping[str, Sequence[int]]) -> DataFrame:
    """Deliveries as they must rise: the value is the offset, its place the time of delivery, a lane each assignment."""
    client = F.concat_ws("/", "workload", "arm")
    begun = moment(0)
    for key, times in assigned_us.items():
        told = F.filter(F.array(*map(moment, times)), lambda at: at <= F.col("done_us"))
        begun = F.when(client == key, F.size(told).cast("bigint")).otherwise(begun) if times else begun
    consumed = outcomes.where(F.col("op") == "consume")
    return consumed.select(*_read("consume", client, begun, F.col("offset"), F.col("done_us")))


def _read(side: str, client: Column, lane: Column, value: Column, at: Column) -> list[Column]:
    record = F.when(F.col("producer_id").isNotNull() & F.col("seq").isNotNull(), F.struct("producer_id", "seq"))
    named = {"client": client, "lane": lane, "value": value, "at": at, "record": record}
    places = [F.lit(side).alias("side"), F.col("topic"), F.col("partition")]
    return [*places, *[column.alias(name) for name, column in named.items()]]
