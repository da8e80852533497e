"""Evidence tables without the records of transactions that were not committed.

The rules about lost, repeated and reordered records compare what producers sent, what the log holds and what readers
got. A record of an aborted transaction is in the log and yet owed to nobody, so these rules judge tables without it:

* **log**: without records whose transaction was aborted, or had not ended when the log was read;
* **deliveries**: without those of such records, which a reader of uncommitted records gets by right
  (``checks/findings/transactions.py`` judges the others);
* **outputs** of services: without those of aborted transactions;
* **produced records**: a record that was acknowledged has the status ``uncommitted`` unless its producer knows that the
  transaction was committed. Such a record may be in the log or not.

How a record's transaction ended is decided by the markers in the log alone: the first marker of the same Kafka producer
id behind the record, in the same partition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.spark.tables import Tables, of_one_task

UNCOMMITTED = "uncommitted"
_PLACE = ("run", "topic", "partition", "offset")
_RECORD = ("run", "producer_id", "seq")


@dataclass(frozen=True)
class Settled:
    """Tables without uncommitted records, and ``fates``: ``run topic partition offset fate`` of each record's offset.

    ``fate`` is the marker that ended the record's transaction, null if none did. ``log`` has the markers' offsets too,
    as a replica has. ``fates`` is None if no run has transactions; then all tables are the recorded ones.
    """

    tables: Tables
    log: DataFrame
    fates: DataFrame | None = None


def settle(read: Tables, runs: Sequence[Evidence], persist: Callable[[DataFrame], DataFrame]) -> Settled:
    """Return the tables that the rules about records judge; ``persist`` caches a table that many queries read."""
    if not any(evidence.parquet.get("batches") for evidence in runs):
        return Settled(read, read.whole_log)

    def stored(rows: DataFrame) -> DataFrame:
        # a union has the partitions of both tables, and a small run is faster in one
        return persist(rows.coalesce(1) if of_one_task(rows.sparkSession) else rows)

    fates = stored(_fates(read.batches))
    hidden = fates.where(~F.col("fate").eqNullSafe("commit")).select(*_PLACE)
    delivered = F.col("op") == "consume"
    consumed = read.outcomes.where(delivered).join(hidden, [*_PLACE], "left_anti")
    of_transactions = read.transactions.where(F.col("outcome") != "committed").select(
        "run", "producer_id", F.explode(F.sequence("first_seq", "last_seq")).alias("seq"), F.lit(True).alias("open")
    )
    sent = read.outcomes.where(~delivered).join(of_transactions, [*_RECORD], "left")
    status = F.when(F.col("open") & (F.col("op") == "produce") & (F.col("status") == "ok"), F.lit(UNCOMMITTED))
    sent = sent.withColumn("status", F.coalesce(status, F.col("status"))).drop("open")
    outcomes = stored(sent.select(*read.outcomes.columns).unionByName(consumed.select(*read.outcomes.columns)))
    log = stored(read.log.join(hidden, [*_PLACE], "left_anti").select(*read.log.columns))
    markers = read.batches.where("marker is not null").select(
        "run", "topic", "partition", F.col("first_offset").alias("offset")
    )
    outputs = read.outputs
    if outputs is not None:
        outputs = outputs.join(hidden, [*_PLACE], "left_anti").select(*read.log.columns)
    return Settled(
        replace(read, outcomes=outcomes, log=log, outputs=outputs),
        read.whole_log.unionByName(markers, allowMissingColumns=True),
        fates,
    )


def _fates(batches: DataFrame) -> DataFrame:
    behind = Window.partitionBy("run", "topic", "partition", "kafka_producer_id").orderBy("first_offset")
    behind = behind.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    ended = batches.where("transactional").withColumn("fate", F.first("marker", ignorenulls=True).over(behind))
    return ended.where("marker is null").select(
        *("run", "topic", "partition", F.explode(F.sequence("first_offset", "last_offset")).alias("offset"), "fate"),
        *("kafka_producer_id", "kafka_epoch"),
    )
