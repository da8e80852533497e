"""The ledger: everything known of one record in one row. Latency, integrity and recovery are read off it.

Rules: one scan, one shuffle. A record is (producer_id, seq); rows of others have null there and share one ledger row.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.evidence import Client


def ledger(outcomes: DataFrame, log: DataFrame, readers: Sequence[Client]) -> DataFrame:
    """One row a record, from the tables ``OUTCOMES`` and ``LOG`` of the schema.

    Columns: ``producer_id seq``; of its produce row ``client`` (workload/arm, null for a phantom) ``topic
    partition status client_rack intended_us sent_us done_us``; ``logged`` (copies in the log); ``places`` (offsets at
    which the log or a consumer saw it); for the i-th reader ``first_us_i`` and ``rack_i`` (of the first delivery, null
    if there was none) and ``deliveries_i``.
    """
    return (
        _sightings(outcomes, log)
        .groupBy("producer_id", "seq")
        .agg(
            F.max("sent").alias("sent"),
            F.count(F.when(F.col("origin") == "log", True)).alias("logged"),
            F.size(F.collect_set("place")).alias("places"),
            *[column for index, reader in enumerate(readers) for column in _of_reader(index, reader)],
        )
        .select("*", "sent.*")
        .drop("sent")
    )


def _sightings(outcomes: DataFrame, log: DataFrame) -> DataFrame:
    """Every row in which a record was seen: its produce row, its copies in the log, its deliveries."""
    key = F.concat_ws("/", "workload", "arm")
    place = F.struct("topic", "partition", "offset").alias("place")
    produced = outcomes.where(F.col("op") == "produce").select(
        "producer_id", "seq", F.lit("produce").alias("origin"), _sent(key).alias("sent")
    )
    logged = log.select("producer_id", "seq", F.lit("log").alias("origin"), place)
    consumed = outcomes.where(F.col("op") == "consume").select(
        "producer_id", "seq", key.alias("origin"), place, F.col("done_us").alias("delivered_us"), "client_rack"
    )
    return produced.unionByName(logged, allowMissingColumns=True).unionByName(consumed, allowMissingColumns=True)


def _sent(key: Column) -> Column:
    return F.struct(
        key.alias("client"), "topic", "partition", "status", "client_rack", "intended_us", "sent_us", "done_us"
    )


def _of_reader(index: int, reader: Client) -> tuple[Column, ...]:
    his = F.col("origin") == reader.key
    return (
        F.min(F.when(his, F.col("delivered_us"))).alias(f"first_us_{index}"),
        F.min_by("client_rack", F.when(his, F.col("delivered_us"))).alias(f"rack_{index}"),
        F.count(F.when(his, True)).alias(f"deliveries_{index}"),
    )


def acked() -> Column:
    """Whether the producer was told that its record is safe."""
    return F.coalesce(F.col("status") == "ok", F.lit(False))


def owed(reader: Client, judged_from_us: int) -> Column:
    """Whether ``reader`` should have had the record, if it was acknowledged.

    From ``latest`` it owes what was intended after warm-up: when in warm-up it began is nobody's promise.
    """
    mine = F.coalesce(F.col("topic") == F.lit(reader.consumes_from), F.lit(False))
    return mine & (F.col("intended_us") >= judged_from_us) if reader.from_latest else mine
