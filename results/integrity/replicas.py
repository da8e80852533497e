"""Whether every replica of a partition holds the same, as the harness read each after the last heal.

A replica is a count and the xor of a 64-bit hash of its stretches; it *differs* when most of its partition's have
another. One that could not be read to its end says nothing. The client of a finding is the partition, ``orders/3``; its
side is ``replica``.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.integrity.finding import fact, found, no_record

SIDE = "replica"
_PARTITION = ("run", "topic", "partition")


def replicas(table: DataFrame) -> DataFrame:
    """``differing`` (of the replicas read, those unlike most) and ``unread`` (of all, those not read)."""
    stretch = F.xxhash64("start_offset", "end_offset", "records", "fingerprint")
    each = table.groupBy(*_PARTITION, "broker_id").agg(
        F.max(F.col("error").isNotNull()).alias("unread"),
        F.struct(F.count("*"), F.bit_xor(stretch)).alias("held"),
    )
    alike = each.groupBy(*_PARTITION, "unread", "held").agg(F.count("*").alias("n"))
    known = F.when(~F.col("unread"), F.col("n"))
    rows = alike.groupBy(*_PARTITION).agg(
        F.sum("n").alias("n"),
        F.coalesce(F.sum(known), F.lit(0)).alias("known"),
        F.coalesce(F.max(known), F.lit(0)).alias("most"),
    )
    name, n, read = F.concat_ws("/", "topic", "partition"), F.col("n"), F.col("known")
    told = [
        fact("differing", SIDE, name, F.when(read > 1, read), read - F.col("most")),
        fact("unread", SIDE, name, n, n - read),
    ]
    return found(rows.withColumn("record", no_record()), told)
