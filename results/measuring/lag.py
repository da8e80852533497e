"""How far readers were behind, at the end of every second: in records, and by the age of the oldest.

Rules: as Kafka counts it, by positions. In a partition a reader lags by what lies between the highest offset delivered
to it and the highest acknowledged; before its first delivery it stands before the first record it is owed. The age is
the time since the acknowledgement of the oldest record beyond its position. Partitions add up to a reader: their lags
are summed, and its oldest is the oldest of theirs. Exact, without a look at pairs of records: of every second only the
highest offsets count, and of those seconds in which an oldest one lies the acknowledgements.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.facts import Lag
from aftershock.results.measuring.dims import Scene
from aftershock.results.measuring.samples import client
from aftershock.results.spark.tables import Tables

SECOND_US = 1_000_000
PROBES = "run int, probe int, topic string, partition int, second bigint, position bigint, at_us bigint"

Place = tuple[str, int]


def reached(read: Tables) -> DataFrame:
    """``run reader topic partition second low high``: the offsets that were reached in every second.

    Acknowledged ones where the reader is null, else delivered ones.
    """
    acked = (F.col("op") == "produce") & (F.col("status") == "ok")
    told = read.outcomes.where((acked | (F.col("op") == "consume")) & F.col("offset").isNotNull())
    reader = F.when(F.col("op") == "consume", client()).alias("reader")
    second = F.expr(f"done_us div {SECOND_US}").alias("second")
    return told.groupBy("run", reader, "topic", "partition", second).agg(
        F.min("offset").alias("low"), F.max("offset").alias("high")
    )


def oldest(read: Tables, probes: DataFrame) -> DataFrame:
    """``run probe since_us``: the first acknowledgement beyond the position of each of ``probes`` (``PROBES``)."""
    acked = read.outcomes.where("op = 'produce' and status = 'ok'").withColumn(
        "second", F.expr(f"done_us div {SECOND_US}")
    )
    met = acked.join(F.broadcast(probes), ["run", "topic", "partition", "second"])
    beyond = met.where((F.col("offset") > F.col("position")) & (F.col("done_us") < F.col("at_us")))
    return beyond.groupBy("run", "probe").agg(F.min("done_us").alias("since_us"))


@dataclass(frozen=True)
class Behind:
    """A reader at the end of a second, in one partition. ``second``: the one in which the oldest beyond it lies."""

    run: int
    reader: str
    place: Place
    at_us: int
    position: int
    records: int
    second: int


def behind(rows: Sequence[Any], run: int, scene: Scene) -> Iterator[Behind]:
    """Where each reader of a run was behind, of the rows of ``reached`` of that run."""
    tops: dict[tuple[str | None, Place], dict[int, Any]] = defaultdict(dict)
    for row in rows:
        tops[row["reader"], (row["topic"], row["partition"])][row["second"]] = row
    for reader in scene.readers:
        for (whose, place), acked in tops.items():
            if whose is None and place[0] == reader.consumes_from:
                late = scene.owed_from_us(reader) > 0
                yield from _of_lane(run, reader.key, place, acked, tops.get((reader.key, place), {}), scene, late=late)


def _of_lane(
    run: int, reader: str, place: Place, acked: dict[int, Any], got: dict[int, Any], scene: Scene, *, late: bool
) -> Iterator[Behind]:
    first = min(row["low"] for row in (got if late and got else acked).values())
    seconds = range(seconds_of(scene))
    highs = list(accumulate((acked[at]["high"] if at in acked else first - 1 for at in seconds), max))
    positions = accumulate((got[at]["high"] if at in got else first - 1 for at in seconds), max)
    for at, position in zip(seconds, positions, strict=True):
        if highs[at] > position:
            oldest_in = bisect_right(highs, position)
            yield Behind(run, reader, place, (at + 1) * SECOND_US, position, highs[at] - position, oldest_in)


def seconds_of(scene: Scene) -> int:
    """How many seconds the load has, the last one whole or not; none without phases."""
    return -(-scene.end_us // SECOND_US)


def lags(since_us: Mapping[Behind, int | None], scene: Scene) -> dict[str, tuple[Lag, ...]]:
    """Every second of every reader of a run, of what was behind and its oldest acknowledgement."""
    records: dict[tuple[str, int], int] = defaultdict(int)
    ages: dict[tuple[str, int], int] = defaultdict(int)
    for one, since in since_us.items():
        records[one.reader, one.at_us] += one.records
        age_us = 0 if since is None else one.at_us - since
        ages[one.reader, one.at_us] = max(ages[one.reader, one.at_us], age_us)
    ends = [(second + 1) * SECOND_US for second in range(seconds_of(scene))]
    return {
        reader.key: tuple(Lag(at, records[reader.key, at], ages[reader.key, at]) for at in ends)
        for reader in scene.readers
    }
