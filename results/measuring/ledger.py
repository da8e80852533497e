"""The ledger: everything known of one record in one row, of the records that the gate could not clear. Exact.

Rules: a record is (run, producer_id, seq); rows of others have null there and share one ledger row a run. Two shuffles
by the record, of suspect rows alone; where all is clean the ledger is empty.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.measuring.gate import block_of
from aftershock.results.spark.tables import Tables

_RECORD = ("run", "producer_id", "seq")
_PLACE = ("topic", "partition", "offset")
_SENT = (
    *("client", "topic", "partition", "offset", "status", "client_rack", "intended_us", "sent_us", "done_us"),
    *("broker_rack", "broker_id", "leader_epoch", "bytes"),
)
_DELIVERED = ("client_rack", "broker_rack", "broker_id", "leader_epoch", "partition", "offset", "bytes")


def ledger(read: Tables, blocks: DataFrame) -> DataFrame:
    """One row a record of the blocks that are not clean (``gate.blocks``).

    Columns: ``run producer_id seq``; of its produce row ``client`` (workload/arm, null for a phantom) ``topic partition
    offset status client_rack intended_us sent_us done_us broker_rack broker_id leader_epoch bytes``; ``logged`` (copies
    in the log); ``placed`` (an array of the places, ``topic partition offset``, at which the log or a consumer saw it)
    and ``places``, how many; ``deliveries``: an array of ``reader first_us n rack first`` in the order of the readers'
    names, ``first`` being what the row of the first delivery says of itself (``_DELIVERED``).
    """
    seen = suspects(_sightings(read), blocks).groupBy(*_RECORD, "origin", "reader")
    by_origin = seen.agg(
        F.max("sent").alias("sent"),
        F.count("*").alias("n"),
        F.collect_set("place").alias("placed"),
        F.min("delivered").alias("first"),
    )
    placed = F.array_sort(F.array_distinct(F.flatten(F.collect_list("placed"))))
    delivered = F.struct(
        "reader", F.col("first.done_us").alias("first_us"), "n", F.col("first.client_rack").alias("rack"), "first"
    )
    return (
        by_origin.groupBy(*_RECORD)
        .agg(
            F.max("sent").alias("sent"),
            F.coalesce(F.sum(F.when(F.col("origin") == "log", F.col("n"))), F.lit(0)).alias("logged"),
            placed.alias("placed"),
            F.array_sort(F.collect_list(F.when(F.col("origin") == "consume", delivered))).alias("deliveries"),
        )
        .select(*_RECORD, "sent.*", "logged", F.size("placed").cast("bigint").alias("places"), "placed", "deliveries")
    )


def suspects(rows: DataFrame, blocks: DataFrame) -> DataFrame:
    """Those of ``rows`` (with ``run producer_id seq``) that lie in blocks that are not clean."""
    return _in_blocks(rows, blocks.where(~F.col("clean")), "left_semi")


def cleared(rows: DataFrame, blocks: DataFrame) -> DataFrame:
    """The others."""
    return _in_blocks(rows, blocks.where(~F.col("clean")), "left_anti")


def _in_blocks(rows: DataFrame, some: DataFrame, how: str) -> DataFrame:
    """By a small table: what a fault left in doubt is a few blocks, and 40 million records have 20,000 at most."""
    of_row, key = block_of(), ["run", "gate_producer", "gate_block"]
    named = rows.withColumns({"gate_producer": of_row["producer_id"], "gate_block": of_row["block"]})
    told = some.select("run", F.col("producer_id").alias("gate_producer"), F.col("block").alias("gate_block"))
    return named.join(F.broadcast(told), key, how).drop("gate_producer", "gate_block")


def _sightings(read: Tables) -> DataFrame:
    """Every row in which a record was seen: its produce row, its copies in the log, its deliveries."""
    key, place = F.concat_ws("/", "workload", "arm"), F.struct(*_PLACE)
    produced, consumed = F.col("op") == "produce", F.col("op") == "consume"
    outcomes = read.outcomes.where(F.col("op").isin("produce", "consume")).withColumn("client", key)
    told = outcomes.select(
        *_RECORD,
        F.col("op").alias("origin"),
        F.when(consumed, key).alias("reader"),
        F.when(produced, F.struct(*_SENT)).alias("sent"),
        F.when(consumed, place).alias("place"),
        F.when(consumed, F.struct("done_us", *_DELIVERED)).alias("delivered"),
    )
    logged = read.log.select(*_RECORD, F.lit("log").alias("origin"), place.alias("place"))
    return told.unionByName(logged, allowMissingColumns=True)


def acked() -> Column:
    """Whether the producer was told that its record is safe."""
    return F.coalesce(F.col("status") == "ok", F.lit(False))
