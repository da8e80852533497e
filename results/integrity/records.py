"""What becomes of single records: lost, twice there, misplaced, nobody's. Exact in the ledger, counted in clean blocks.

Rules: a reader's ``lost`` examines what it was owed and what it got; what a producer lost that may lose (``lossy``)
nobody could have read. A record whose producer was not told its place can't be misplaced. One that failed, which
promises that it is nowhere (one that may be is in doubt), and that is in the log, is a phantom.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.integrity.finding import LOG_READER, Fact, fact, found, no_record, record
from aftershock.results.measuring.dims import Dims


def of_blocks(blocks: DataFrame, dims: Dims) -> DataFrame:
    """The findings of clean blocks: everything was examined, and nothing found."""
    clean = (
        blocks.where("clean")
        .groupBy("run", "producer_id")
        .agg(*[F.sum(name).alias(name) for name in ("n", "told", "failed", "in_doubt")])
        .join(F.broadcast(dims.producers), ["run", "producer_id"])
        .withColumn("record", no_record())
    )
    client, n = F.col("client"), F.col("n")
    sent = [fact(rule, "produce", client, n, 0) for rule in ("lost", "duplicate")]
    untaken = {"misplaced": "told", "in_doubt": "in_doubt", "phantom": "failed"}
    sent += [fact(rule, "produce", client, F.col(examined), 0) for rule, examined in untaken.items()]
    readers = dims.readers.select("run", "topic", F.col("client").alias("reader"))
    read = [fact(rule, "consume", F.col("reader"), n, 0) for rule in ("lost", "redelivered", "phantom")]
    of_readers = found(clean.join(F.broadcast(readers), ["run", "topic"]), read)
    return found(clean, [*sent, fact("phantom", "consume", LOG_READER, n, 0)]).unionByName(of_readers)


def of_book(book: DataFrame, dims: Dims) -> DataFrame:
    """The findings of the ledger, whose records are in doubt until this has looked at each."""
    rows = book.withColumn("record", record())
    of_readers = found(_with_readers(rows, dims), _of_reader())
    return found(rows, [*_of_producer(), _foreign(LOG_READER, F.col("logged"))]).unionByName(of_readers)


def lost_by_readers(book: DataFrame, dims: Dims) -> DataFrame:
    """``run reader producer_id seq`` of what each reader was owed and never got."""
    rows = _with_readers(book, dims).where(_owed() & (F.col("deliveries") == 0))
    return rows.select("run", "reader", "producer_id", "seq")


def _with_readers(book: DataFrame, dims: Dims) -> DataFrame:
    """The records, each with every reader of its run: how often it was delivered to it, and whether it was owed it."""
    readers = dims.readers.select("run", F.col("client").alias("reader"), F.col("topic").alias("reads"), "from_us")
    lossy = dims.producers.select("run", "producer_id", "lossy")
    his = F.filter("deliveries", lambda one: one["reader"] == F.col("reader"))
    joined = book.join(F.broadcast(readers), "run").join(F.broadcast(lossy), ["run", "producer_id"], "left")
    return joined.withColumn("deliveries", F.aggregate(his, F.lit(0).cast("bigint"), lambda n, one: n + one["n"]))


def _acked() -> Column:
    return F.coalesce(F.col("status") == "ok", F.lit(False))


def _owed() -> Column:
    """Whether the reader should have got it."""
    meant = (F.col("topic") == F.col("reads")) & (F.col("intended_us") >= F.col("from_us"))
    readable = (F.col("logged") > 0) | ~F.coalesce(F.col("lossy"), F.lit(False))
    return _acked() & F.coalesce(meant, F.lit(False)) & readable


def _of_producer() -> list[Fact]:
    client, logged, placed = F.col("client"), F.col("logged") > 0, F.col("placed")
    lost = _acked() & ~logged
    in_doubt, failed = (F.coalesce(F.col("status") == status, F.lit(False)) for status in ("in_doubt", "failed"))
    told = F.struct("topic", "partition", "offset")
    judged = _acked() & F.col("offset").isNotNull() & F.col("partition").isNotNull()
    elsewhere = (F.size(placed) > 0) & ~F.array_contains(placed, told)
    return [
        fact("lost", "produce", client, _acked(), lost),
        fact("delivered", "produce", client, lost, F.size(placed) > 0),
        fact("duplicate", "produce", client, F.size(placed) > 0, F.size(placed) > 1),
        fact("misplaced", "produce", client, judged, elsewhere),
        fact("in_doubt", "produce", client, in_doubt, logged),
        fact("phantom", "produce", client, failed, logged),
    ]


def _of_reader() -> list[Fact]:
    reader, deliveries = F.col("reader"), F.col("deliveries")
    mine = F.coalesce(F.col("topic") == F.col("reads"), F.lit(False))
    due = _acked() & mine & ((F.col("intended_us") >= F.col("from_us")) | (deliveries > 0))
    lost = _owed() & (deliveries == 0)
    return [
        fact("lost", "consume", reader, due, lost),
        fact("unlogged", "consume", reader, lost, F.col("logged") == 0),
        fact("redelivered", "consume", reader, deliveries > 0, deliveries > 1),
        _foreign(reader, deliveries),
    ]


def _foreign(reader: str | Column, seen: Column) -> Fact:
    """Rows that nobody sent: without our ids, or with ids that have no produce row."""
    return fact("phantom", "consume", reader, seen, F.when(F.col("record").isNull() | F.col("client").isNull(), seen))
