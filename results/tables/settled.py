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

Which of millions of records are meant is kept as bits, a row for each 32 consecutive offsets or sequence numbers
(``bits_of``): such a table is small enough to be in the memory of each task, and no row of a record is shuffled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.spark.tables import Tables, beside, stores_tables, union

UNCOMMITTED = "uncommitted"
COMMIT, ABORT, OPEN = "commit", "abort", "open"
"""Fates of a record in a transaction: the marker that ended it, or that none did."""
_PARTITION = ("run", "topic", "partition")
_PRODUCER = ("run", "producer_id")
BITS = 32
"""Numbers in a row of bits: half of a bigint, so that no sign is in the way."""


@dataclass(frozen=True)
class Settled:
    """Tables without uncommitted records, and ``fates`` for ``with_fate``: bits ``commit abort open`` of offsets.

    ``log`` has the markers' offsets too, as a replica has. ``fates`` is None if no run has transactions; then all
    tables are the recorded ones.
    """

    tables: Tables
    log: DataFrame
    fates: DataFrame | None = None


def settle(read: Tables, runs: Sequence[Evidence], persist: Callable[[DataFrame], DataFrame]) -> Settled:
    """Return the tables that the rules about records judge; ``persist`` caches a table that many queries read."""
    if not any(evidence.parquet.get("batches") for evidence in runs):
        return Settled(read, read.whole_log)

    def stored(rows: DataFrame) -> DataFrame:
        # a union has the partitions of both tables, and a small run is faster in one; a large one is as fast from disk
        return persist(rows.coalesce(1)) if stores_tables(rows.sparkSession) else rows

    fates = persist(_fates(read.batches))

    def settled(rows: DataFrame) -> DataFrame:
        kept = with_fate(rows, fates).where(F.col("fate").isNull() | (F.col("fate") == COMMIT))
        return kept.select(*rows.columns)

    delivered = F.col("op") == "consume"
    ended = read.transactions.where(F.col("outcome") != "committed")
    of_records = bits_of(ended, _PRODUCER, "first_seq", "last_seq", {"uncommitted": F.lit(True)})
    sent = with_bits(read.outcomes.where(~delivered), persist(of_records), _PRODUCER, "seq")
    is_open = (F.col("op") == "produce") & (F.col("status") == "ok") & has_bit("uncommitted", "seq")
    status = F.when(is_open, F.lit(UNCOMMITTED)).otherwise(F.col("status"))
    outcomes = sent.withColumn("status", status).select(*read.outcomes.columns)
    outcomes = stored(outcomes.unionByName(settled(read.outcomes.where(delivered))))
    markers = read.batches.where("marker is not null").select(*_PARTITION, F.col("first_offset").alias("offset"))
    return Settled(
        replace(
            read,
            outcomes=outcomes,
            log=stored(settled(read.log)),
            outputs=None if read.outputs is None else settled(read.outputs),
        ),
        union(read.whole_log, markers),
        fates,
    )


def with_fate(rows: DataFrame, fates: DataFrame) -> DataFrame:
    """Add the column ``fate`` to rows with a place in a log: ``COMMIT``, ``ABORT``, ``OPEN``; null outside of any."""
    fate = F.when(has_bit(COMMIT, "offset"), COMMIT).when(has_bit(ABORT, "offset"), ABORT)
    joined = with_bits(rows, fates, _PARTITION, "offset")
    return joined.withColumn("fate", fate.when(has_bit(OPEN, "offset"), OPEN)).drop("bucket", COMMIT, ABORT, OPEN)


def of_kafka_producer() -> WindowSpec:
    """Return the window of a Kafka producer's batches in a partition, by a 64-bit hash: Spark sorts names slowly."""
    return Window.partitionBy(F.xxhash64(*_PARTITION, "kafka_producer_id"))


def _fates(batches: DataFrame) -> DataFrame:
    # in descending order, because Spark recomputes frames that reach forwards for every row
    behind = of_kafka_producer().orderBy(F.col("first_offset").desc())
    behind = behind.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ended = batches.where("transactional").withColumn("fate", F.last("marker", ignorenulls=True).over(behind))
    fate = F.coalesce("fate", F.lit(OPEN))
    columns = {name: fate == name for name in (COMMIT, ABORT, OPEN)}
    return bits_of(ended.where("marker is null"), _PARTITION, "first_offset", "last_offset", columns)


def bits_of(ranges: DataFrame, keys: Sequence[str], first: str, last: str, columns: Mapping[str, Column]) -> DataFrame:
    """Return ``keys``, ``bucket`` and bits of the numbers from ``first`` to ``last`` of each row, as bigints.

    Bit n of a bucket stands for the number BITS * bucket + n. Each of ``columns`` has the numbers of its own rows.
    """
    parts = in_buckets(
        ranges.select(*dict.fromkeys((*keys, first, last)), *(on.alias(name) for name, on in columns.items())),
        first,
        last,
    )
    found = (
        F.bit_or(F.when(F.col(name), F.col("bits")).otherwise(F.lit(0).cast("bigint"))).alias(name) for name in columns
    )
    return parts.groupBy(*keys, "bucket").agg(*found)


def in_buckets(ranges: DataFrame, first: str, last: str) -> DataFrame:
    """Return each row once for each ``bucket`` of its range, with the ``bits`` of the range there."""
    if first == last:
        return ranges.withColumns({"bucket": F.expr(f"{first} div {BITS}"), "bits": F.expr(bit_of(first))})
    buckets = F.expr(f"explode(sequence({first} div {BITS}, {last} div {BITS}))").alias("bucket")
    low = f"greatest({first} - bucket * {BITS}, 0)"
    count = f"least({last} - bucket * {BITS}, {BITS - 1}) - {low} + 1"
    bits = F.expr(f"shiftleft(shiftleft(1L, cast({count} as int)) - 1, cast({low} as int))")
    return ranges.select("*", buckets).withColumn("bits", bits)


def with_bits(rows: DataFrame, table: DataFrame, keys: Sequence[str], number: str) -> DataFrame:
    """Join rows with the bits of their numbers' ``bucket``."""
    return rows.withColumn("bucket", F.expr(f"{number} div {BITS}")).join(beside(table), [*keys, "bucket"], "left")


def has_bit(name: str, number: str) -> Column:
    """Return True if the bit of a number is set in the column ``name`` of ``with_bits``."""
    return F.coalesce(F.expr(f"({name} & {bit_of(number)}) <> 0"), F.lit(False))


def bit_of(number: str) -> str:
    """Return Spark's expression for the bit of a number in its bucket."""
    return f"shiftleft(1L, cast({number} % {BITS} as int))"
