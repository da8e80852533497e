"""The gate of ``sequences``: in which of them a row may be broken, from far less than their rows.

Rules: it may doubt a sequence in which all is well, never clear another. Rows of the log and of a reader are sorted by
a fingerprint of their sequence, as numbers and nothing else, and held against the row before alone: where each value is
higher than the last, it is higher than all. Acknowledgements are not sorted at all: the offsets of a leader epoch must
lie above all of the epoch before.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

PRINTS = "print bigint"


def tangled(rows: DataFrame, corrupt: Column) -> DataFrame:
    """``PRINTS`` of the sequences to look at, of ``rows`` that have one; ``corrupt`` rows are always looked at."""
    acks = F.col("side") == "acks"
    return _back(rows.where(~acks), corrupt).unionByName(_mixed(rows.where(acks)))


def _back(rows: DataFrame, corrupt: Column) -> DataFrame:
    """Where a value, an epoch or a broker's high watermark is not above the row before, or a value lies beyond all."""
    own, value, mark = F.col("own"), F.col("value"), F.col("high_watermark")
    marks = ("epoch", "high_watermark", "broker_id", "own")
    numbers = rows.select("print", "at", "value", *marks, corrupt.alias("corrupt"))
    going = Window.partitionBy("print").orderBy("at", "value")
    before = {name: F.lag(name).over(going) for name in ("value", "epoch", "high_watermark", "broker_id")}
    paired = numbers.withColumns({f"{name}_before": column for name, column in before.items()})
    lower = own & (F.col("broker_id") == F.col("broker_id_before")) & (mark < F.col("high_watermark_before"))
    back = (value <= F.col("value_before")) | (F.col("epoch") < F.col("epoch_before")) | lower | F.col("corrupt")
    of_lanes = paired.groupBy("print").agg(
        F.count(F.when(back, True)).alias("back"), F.max(F.when(own, value)).alias("last"), F.max(mark).alias("top")
    )
    return of_lanes.where("back > 0 or last >= top").select("print")


def _mixed(acks: DataFrame) -> DataFrame:
    """Where an offset of a leader epoch is not above all of the epoch before."""
    epochs = acks.groupBy("print", "epoch").agg(F.min("value").alias("first"), F.max("value").alias("last"))
    before = F.lag("last").over(Window.partitionBy("print").orderBy("epoch"))
    return epochs.withColumn("before", before).where("first <= before").select("print").distinct()
