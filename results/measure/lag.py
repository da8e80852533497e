"""Where in time to look at all: filters on the times of records, short enough for Parquet's statistics to use them.

What is asked of a few seconds needs no reading of the rest of a long run, whose rows are stored about in their order.
Rules: a filter is coarse and may keep too much; whoever uses it asks the rows as exactly as without it.

How far readers were behind, at the end of every second: in records, and by the age of the oldest.

Rules: as Kafka counts it, by positions. In a partition a reader lags by what lies between the highest offset delivered
to it and the highest acknowledged; before its first delivery it stands before the first record it is owed. The age is
the time since the acknowledgement of the oldest record beyond its position. Partitions add up to a reader: their lags
are summed, and its oldest is the oldest of theirs. Exact, without a look at pairs of records: of every second only the
highest offsets count, and of those seconds in which an oldest one lies the acknowledgements.

The jobs that ask twice: first for counts of the whole run, then, where these leave it open, for its records.

Like ``measure.py`` it collects. What comes back first is bounded by how long the runs are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import reduce
from itertools import count, starmap
from operator import or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from aftershock.results.checks.obligations import stalls
from aftershock.results.checks.obligations.stalls import SILENCES, Silence, silences
from aftershock.results.evidence.phases import Interval, merged
from aftershock.results.measure import recovery
from aftershock.results.measure.answers import (
    Answers,
    Look,
    Pace,
    Slots,
    Sought,
    Spread,
    by_run,
    recovered,
    slot_us_of,
    sought,
    where_to_look,
)
from aftershock.results.measure.facts import Calm, Lag, Recovered
from aftershock.results.measure.names import number
from aftershock.results.measure.tables import Dims, Longs, Scene, longs, parted
from aftershock.results.spark.tables import Tables

HULLS_MAX = 4
_NEVER_US, _EVER_US = -(1 << 62), 1 << 62
Span = tuple[int | None, int | None]


def hulls(spans: Iterable[Span]) -> list[Interval]:
    """At most ``HULLS_MAX`` intervals around all ``spans`` (None: without an end), the nearest joined."""
    ended = [(_NEVER_US if since is None else since, _EVER_US if until is None else until) for since, until in spans]
    found = [*merged(ended)]
    while len(found) > HULLS_MAX:
        nearest = min(range(len(found) - 1), key=lambda at: found[at + 1][0] - found[at][1])
        found[nearest : nearest + 2] = [(found[nearest][0], found[nearest + 1][1])]
    return found


def due_in(spans: Iterable[Span]) -> Column:
    """Whether a record may have been intended within some of ``spans``, of which there is one at least."""
    return _in_any(spans, lambda since, until: F.col("intended_us").between(since, until))


def open_in(spans: Iterable[Span]) -> Column:
    """Whether a record may have been under way within some of ``spans``, or done by the end of one of them."""
    intended, done = F.col("intended_us"), F.col("done_us")
    return _in_any(
        spans,
        lambda since, until: (
            done.isNull() | (done > since) & (intended.isNull() | (intended < until) | (done <= until))
        ),
    )


def _in_any(spans: Iterable[Span], within: Callable[[int, int], Column]) -> Column:
    return reduce(or_, starmap(within, hulls(spans)))


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


def oldest_unread(read: Tables, probes: DataFrame) -> DataFrame:
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


STALL_US = 1_000_000  # shorter silences are nobody's obligation, and there are many


def measure_lags(read: Tables, dims: Dims) -> list[dict[str, tuple[Lag, ...]]]:
    """Positions, and the ages of what lay beyond them, for each run."""
    scenes = dims.scenes
    if not any(one.readers for one in scenes):
        return [{} for _ in scenes]
    tops = parted(reached(read, dims).toArrow(), "run", len(scenes))
    found = [list(behind(some, scene)) for some, scene in zip(tops, scenes, strict=True)]
    number = count()
    probes = [
        (run, next(number), *one.place, *asked)
        for run, some in enumerate(found)
        for one in some
        for asked in zip(*(column.tolist() for column in (one.second, one.position, one.at_us)), strict=True)
    ]
    since_us = np.full(len(probes), UNKNOWN_US)
    if probes:
        oldest = oldest_unread(read, dims.table(probes, PROBES)).toArrow()
        since_us[longs(oldest["probe"])] = longs(oldest["since_us"])
    each = iter(np.split(since_us, np.cumsum([len(one.at_us) for some in found for one in some])))
    return [lags([(one, next(each)) for one in some], scene) for some, scene in zip(found, scenes, strict=True)]


@dataclass(frozen=True)
class Twice:
    """The samples of all runs, that are asked."""

    dims: Dims
    samples: "DataFrame"

    def waited(self) -> dict[str, Answers]:
        """``stalls`` and ``failures``. Most runs have few: no more than seconds for each partition, and none."""
        waits = stalls.waits(self.samples, self.dims)
        told = stalls.slots(waits, STALL_US).toArrow()
        failed = pc.sum(told["failed"]).as_py()
        return {
            "stalls": self._stalls(list(silences(told, STALL_US))),
            "failures": by_run(stalls.failures(waits).collect() if failed else []),
        }

    def _stalls(self, silent: Sequence[Silence]) -> Answers:
        if not silent:
            return {}
        near = self.samples.where(open_in((since_us, until_us) for *_, since_us, until_us in silent))
        waiting = stalls.during(stalls.waits(near, self.dims), self.dims.table(silent, SILENCES))
        if any(delivered for _, _, delivered, *_ in silent):
            waiting = stalls.acknowledged(waiting, self.samples)
        return by_run(stalls.stalls(waiting, STALL_US).collect())

    def recoveries(
        self, calms: Sequence[Sequence[Calm]], spread: Sequence[Spread]
    ) -> list[dict[tuple[Calm, str], Recovered]]:
        """How long each calm of each run took to come; two jobs for each length of calm."""
        wanted = sought(self.dims.scenes, calms, spread)
        looked: list[list[tuple[Sought, int | None]]] = [[] for _ in self.dims.scenes]
        slots: dict[Pace, Slots] = {}
        for for_us in sorted({one.calm.for_us for one in wanted}):
            some = [one for one in wanted if one.calm.for_us == for_us]
            slots |= self._pace_slots(list(dict.fromkeys(one.pace for one in some)))
            for one, us in self._first_calm([(one, where_to_look(one, slots.get(one.pace))) for one in some], for_us):
                looked[one.pace.run].append((one, us))
        return [recovered(some, slots, scene) for some, scene in zip(looked, self.dims.scenes, strict=True)]

    def _pace_slots(self, paces: Sequence[Pace]) -> dict[Pace, Slots]:
        rows = [(one.run, number, *one.row[:3]) for number, one in enumerate(paces)]
        told, slot_us = self.dims.table(rows, recovery.PACES), slot_us_of(paces[0].for_us)
        counted = recovery.pace_slots(self.samples, told, self.dims, slot_us).toArrow()
        return {
            pace: Slots(*[longs(part[name], null=-1) for name in ("segment", "slot", "n", "failed", "slow")])
            for pace, part in zip(paces, parted(counted, "pace", len(paces)), strict=True)
            if part.num_rows
        }

    def _first_calm(
        self, looks: Sequence[tuple[Sought, Sequence[Look]]], for_us: int
    ) -> Iterator[tuple[Sought, int | None]]:
        each = [(number, one, look) for number, (one, some) in enumerate(looks) for look in some]
        found: dict[int, int] = {}
        if each:
            rows = [(one.pace.run, number, *one.pace.row, one.at_us, *astuple(look)) for number, one, look in each]
            near = self.samples.where(due_in((look.look_us, look.until_us + for_us) for _, _, look in each))
            job = recovery.first_calm(near, self.dims.table(rows, recovery.LOOKS), for_us)
            found = {row["calm"]: row["recovered_us"] for row in job.collect()}
        return ((one, found.get(number)) for number, (one, _) in enumerate(looks))
