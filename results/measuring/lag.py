"""How far readers were behind, at the end of every second: in records, and by the age of the oldest.

Rules: as Kafka counts it, by positions. In a partition a reader lags by what lies between the highest offset delivered
to it and the highest acknowledged; before its first delivery it stands before the first record it is owed. The age is
the time since the acknowledgement of the oldest record beyond its position. Partitions add up to a reader: their lags
are summed, and its oldest is the oldest of theirs. Exact, without a look at pairs of records: of every second only the
highest offsets count, and of those seconds in which an oldest one lies the acknowledgements.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import starmap

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.facts import Lag
from aftershock.results.measuring.columns import Longs
from aftershock.results.measuring.dims import Dims, Scene
from aftershock.results.measuring.names import number
from aftershock.results.spark.tables import Tables

SECOND_US = 1_000_000
PROBES = "run int, probe int, topic string, partition int, second bigint, position bigint, at_us bigint"

UNKNOWN_US = np.iinfo(np.int64).min
_CLIENT = ("workload", "arm")

Place = tuple[str, int]
Reached = tuple[int | None, int, int]


def reached(read: Tables, dims: Dims) -> DataFrame:
    """``run reader topic partition second low high``: the offsets that were reached in every second.

    Acknowledged ones where the reader is null, else those delivered to a reader of the plan.
    """
    acked = (F.col("op") == "produce") & (F.col("status") == "ok")
    told = read.outcomes.where((acked | (F.col("op") == "consume")) & F.col("offset").isNotNull())
    whose = F.when(F.col("op") == "consume", number(*_CLIENT)).alias("whose")
    second = F.expr(f"done_us div {SECOND_US}").alias("second")
    counted = told.groupBy("run", whose, "topic", "partition", second).agg(
        F.min("offset").alias("low"), F.max("offset").alias("high")
    )
    readers = dims.readers.select("run", number(*_CLIENT).alias("whose"), F.col("client").alias("reader"))
    named = counted.join(F.broadcast(readers), ["run", "whose"], "left")
    return named.where("whose is null or reader is not null").drop("whose")


def oldest(read: Tables, probes: DataFrame) -> DataFrame:
    """``run probe since_us``: the first acknowledgement beyond the position of each of ``probes`` (``PROBES``)."""
    acked = read.outcomes.where("op = 'produce' and status = 'ok'").withColumn(
        "second", F.expr(f"done_us div {SECOND_US}")
    )
    met = acked.join(F.broadcast(probes), ["run", "topic", "partition", "second"])
    beyond = met.where((F.col("offset") > F.col("position")) & (F.col("done_us") < F.col("at_us")))
    return beyond.groupBy("run", "probe").agg(F.min("done_us").alias("since_us"))


@dataclass(frozen=True, eq=False)
class Behind:
    """A reader in one partition, at the ends ``at_us`` of the seconds at which it was behind.

    ``position`` is where it stood, ``records`` how many lay beyond, and ``second`` that in which the oldest of them was
    acknowledged: an item for each.
    """

    reader: str
    place: Place
    at_us: Longs
    position: Longs
    records: Longs
    second: Longs


def behind(rows: pa.Table, scene: Scene) -> Iterator[Behind]:
    """Where each reader of a run was behind, of the rows of ``reached`` of that run."""
    tops: dict[tuple[str | None, Place], list[Reached]] = defaultdict(list)
    names = ("reader", "topic", "partition", "second", "low", "high")
    for client, topic, partition, second, low, high in zip(*(rows[name].to_pylist() for name in names), strict=True):
        tops[client, (topic, partition)].append((second, low, high))
    for reader in scene.readers:
        for (whose, place), acked in tops.items():
            if whose is None and place[0] == reader.consumes_from:
                got = tops.get((reader.key, place), [])
                late = scene.owed_from_us(reader) > 0
                first = min(low for _, low, _ in (got if late and got else acked))
                highs, position = (_highest(some, first - 1, seconds_of(scene)) for some in (acked, got))
                at = np.flatnonzero(highs > position)
                beyond = highs[at] - position[at], np.searchsorted(highs, position[at], "right")
                yield Behind(reader.key, place, (at + 1) * SECOND_US, position[at], *beyond)


def _highest(reached: Iterable[Reached], before: int, seconds: int) -> Longs:
    """The highest offset by the end of every second."""
    highs = np.full(seconds, before)
    for second, _, high in reached:
        if second is not None and 0 <= second < seconds:
            highs[second] = high
    return np.maximum.accumulate(highs)


def seconds_of(scene: Scene) -> int:
    """How many seconds the load has, the last one whole or not; none without phases."""
    return -(-scene.end_us // SECOND_US)


def lags(found: Iterable[tuple[Behind, Longs]], scene: Scene) -> dict[str, tuple[Lag, ...]]:
    """Every second of every reader of a run, of what was behind and since when (``UNKNOWN_US`` is no age)."""
    seconds = seconds_of(scene)
    records, ages_us = ({reader.key: np.zeros(seconds, np.int64) for reader in scene.readers} for _ in range(2))
    for one, since_us in found:
        at = one.at_us // SECOND_US - 1
        records[one.reader][at] += one.records
        age_us = np.where(since_us == UNKNOWN_US, 0, one.at_us - since_us)
        ages_us[one.reader][at] = np.maximum(ages_us[one.reader][at], age_us)
    ends_us = [(second + 1) * SECOND_US for second in range(seconds)]
    return {
        key: tuple(starmap(Lag, zip(ends_us, some.tolist(), ages_us[key].tolist(), strict=True)))
        for key, some in records.items()
    }
