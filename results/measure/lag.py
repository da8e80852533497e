"""Consumer lag at the end of every second, and the Spark jobs that first count records and then read a selection.

**Lag** is counted by offsets, as in Kafka. A reader's position in a partition is the highest offset delivered to the
reader; before the first delivery, the position is the first record that the reader must get. The lag is the number of
offsets between the position and the highest acknowledged offset; the lag's age is the time since the acknowledgement of
the oldest record beyond the position. A reader's lag is the sum over its partitions, the lag's age is the maximum.
The lag of a group's **member** is that of the partitions that the member owns at the end of the second, by its tenures
(``findings/ownership.py``); a second in which it owns no partition with records has no sample.

A second has a sample only if the end of the topic and the reader's position are both known. A producer with ``acks=0``
gets no offsets; the offsets of its records are those in the log, which is read after the load. A reader without any
delivery has no position.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, starmap
from math import inf

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from aftershock.results.checks.findings.ownership import Place, tenures
from aftershock.results.evidence.evidence import Client
from aftershock.results.evidence.transactions import transaction_deadline_ms
from aftershock.results.measure import stalls
from aftershock.results.measure.answers import Answers, by_run
from aftershock.results.measure.stalls import SILENCES, in_slots, silences
from aftershock.results.model.facts import NO_OWNER, Lag
from aftershock.results.spark.tables import Tables, beside
from aftershock.results.tables.dims import Dims, Longs, Scene, longs, parted
from aftershock.results.tables.gate import pending_within
from aftershock.results.tables.names import hash_of

SECOND_US = 1_000_000
PROBES = "run int, probe int, topic string, partition int, second bigint, position bigint, at_us bigint"

UNKNOWN_US = np.iinfo(np.int64).min
_CLIENT = ("workload", "arm")

Reached = tuple[int | None, int, int]
"""Second of the run, and the lowest and highest offset reached in it."""


def reached(read: Tables, dims: Dims) -> DataFrame:
    """Return the lowest and highest offset per second as ``run reader topic partition second low high unplaced``.

    Rows with a null reader hold acknowledged offsets, all others the offsets delivered to that reader. ``unplaced``
    counts acknowledged records whose offset the producer does not know.
    """
    acked = (F.col("op") == "produce") & (F.col("status") == "ok")
    rows = read.outcomes.where(acked | ((F.col("op") == "consume") & F.col("offset").isNotNull()))
    client_hash = F.when(F.col("op") == "consume", hash_of(*_CLIENT)).alias("client_hash")
    second = F.expr(f"done_us div {SECOND_US}").alias("second")
    counted = rows.groupBy("run", client_hash, "topic", "partition", second).agg(
        F.min("offset").alias("low"),
        F.max("offset").alias("high"),
        F.count(F.when(F.col("offset").isNull(), True)).alias("unplaced"),
    )
    readers = dims.readers.select("run", hash_of(*_CLIENT).alias("client_hash"), F.col("client").alias("reader"))
    named = counted.join(beside(readers), ["run", "client_hash"], "left")
    return named.where("client_hash is null or reader is not null").drop("client_hash")


def placed_by_log(read: Tables) -> DataFrame:
    """Return the acknowledged records whose offset the producer does not know, with their place in the log."""
    sent = read.outcomes.where("op = 'produce' and status = 'ok' and offset is null")
    log = read.log.where("seq is not null and offset is not null")
    places = log.select("run", "producer_id", "seq", "topic", "partition", "offset")
    return sent.select("run", "producer_id", "seq", "done_us").join(places, ["run", "producer_id", "seq"])


def oldest_unread(read: Tables, probes: DataFrame, *, with_log: bool = False) -> DataFrame:
    """Return, for each row of ``PROBES``, when the oldest record not yet delivered to the reader was acknowledged."""
    second = F.expr(f"done_us div {SECOND_US}")
    columns = ("run", "topic", "partition", "offset", "done_us")
    acked = read.outcomes.where("op = 'produce' and status = 'ok'").select(*columns)
    if with_log:
        acked = acked.unionByName(placed_by_log(read).select(*columns))
    acked = acked.withColumn("second", second)
    probed = acked.join(beside(probes), ["run", "topic", "partition", "second"])
    beyond = probed.where((F.col("offset") > F.col("position")) & (F.col("done_us") < F.col("at_us")))
    return beyond.groupBy("run", "probe").agg(F.min("done_us").alias("since_us"))


@dataclass(frozen=True, eq=False)
class Behind:
    """Lag of a reader in a partition, at the ends ``at_us`` of the seconds in which the lag was not zero.

    ``records`` counts the offsets above the reader's last offset (``position``); ``second`` is the time when the lowest
    of these offsets was acknowledged.
    """

    reader: str
    place: Place
    at_us: Longs
    position: Longs
    records: Longs
    second: Longs


@dataclass(frozen=True)
class Offsets:
    """Offsets of a run by second: ``tops`` by reader (None: acknowledged) and partition.

    ``endless`` are the topics whose ends are unknown: neither the producers nor the log give offsets.
    """

    tops: Mapping[tuple[str | None, Place], list[Reached]]
    endless: frozenset[str]

    def known_from(self, reader: Client, scene: Scene) -> int | None:
        """Return the first second in which a reader's lag is known; None if its position or the end never is."""
        topics = reader.consumes_from
        has_position = any(client == reader.key and place[0] in topics for client, place in self.tops)
        acked = (rows for (client, place), rows in self.tops.items() if client is None and place[0] in topics)
        seconds = [second for rows in acked for second, _, _ in rows if second is not None]
        if not self.endless.isdisjoint(topics) or not has_position or not seconds:
            return None
        return min(max(0, min(seconds)), seconds_of(scene))


def offsets_of(rows: pa.Table, from_log: pa.Table | None) -> Offsets:
    """Return the offsets of a run from the rows of ``reached``, and from those of records placed by the log."""
    tops: dict[tuple[str | None, Place], list[Reached]] = defaultdict(list)
    names = ("reader", "topic", "partition", "second", "low", "high")
    unplaced, placed = set(), set()
    for client, topic, partition, second, low, high in zip(*(rows[name].to_pylist() for name in names), strict=True):
        if low is not None:
            tops[client, (topic, partition)].append((second, low, high))
    if from_log is not None:
        unplaced = {
            topic for topic, n in zip(*(rows[name].to_pylist() for name in ("topic", "unplaced")), strict=True) if n
        }
        columns = (from_log[name].to_pylist() for name in names[1:])
        for topic, partition, second, low, high in zip(*columns, strict=True):
            tops[None, (topic, partition)].append((second, low, high))
            placed.add(topic)
    return Offsets(tops, frozenset(unplaced - placed))


def behind(offsets: Offsets, scene: Scene) -> Iterator[Behind]:
    """Yield the lag of each reader and partition of a run."""
    tops = offsets.tops
    for reader in scene.readers:
        if offsets.known_from(reader, scene) is None:
            continue
        for (client, place), acked in tops.items():
            if client is None and place[0] in reader.consumes_from:
                delivered = tops.get((reader.key, place), [])
                late = scene.due_from_us(reader) > 0
                first = min(low for _, low, _ in (delivered if late and delivered else acked))
                highs, position = (_highest(offsets, first - 1, seconds_of(scene)) for offsets in (acked, delivered))
                at = np.flatnonzero(highs > position)
                beyond = highs[at] - position[at], np.searchsorted(highs, position[at], "right")
                yield Behind(reader.key, place, (at + 1) * SECOND_US, position[at], *beyond)


def _highest(reached: Iterable[Reached], before: int, seconds: int) -> Longs:
    """Return the highest offset reached by the end of every second, which is at first the offset ``before``."""
    highs = np.full(seconds, before)
    for second, _, high in reached:
        if second is not None and 0 <= second < seconds:
            highs[second] = max(high, highs[second])
    return np.maximum.accumulate(highs)


def seconds_of(scene: Scene) -> int:
    """Return the number of seconds of a run's load, including a partial last second; 0 for a run without phases."""
    return -(-scene.end_us // SECOND_US)


Owned = tuple[str, int, int]
"""Owner of a partition, and the first second that it owned and the first that it did not."""


def owned(scene: Scene, reader: Client, places: Iterable[Place]) -> dict[Place, list[Owned]]:
    """Return when each member of a reader's group owned a partition at the end of a second, by partition.

    From the end of its last tenure until the end of the load a partition is owned by ``NO_OWNER``.
    """
    seconds = seconds_of(scene)
    owners: dict[Place, list[Owned]] = {place: [] for place in places}
    for tenure in tenures(scene.evidence, reader):
        if tenure.place in owners:
            # second s ends at (s + 1) * SECOND_US, when a tenure that begins then owns the partition already
            start, end = (
                seconds if at_us == inf else min(max(-(-int(at_us) // SECOND_US) - 1, 0), seconds)
                for at_us in (tenure.start_us, tenure.end_us)
            )
            owners[tenure.place].append((tenure.worker, start, end))
    for spans in owners.values():
        spans.append((NO_OWNER, max((end for _, _, end in spans), default=0), seconds))
    return owners


class _Series:
    """Lag of a client or member at the end of each second of a run; ``known`` marks the seconds with a sample."""

    def __init__(self, seconds: int) -> None:
        self.known = np.zeros(seconds, np.bool_)
        self.records, self.ages_us = np.zeros(seconds, np.int64), np.zeros(seconds, np.int64)

    def lags(self) -> tuple[Lag, ...]:
        at = np.flatnonzero(self.known)
        columns = ((at + 1) * SECOND_US, self.records[at], self.ages_us[at])
        return tuple(starmap(Lag, zip(*(column.tolist() for column in columns), strict=True)))


@dataclass(frozen=True)
class Lags:
    """Lag of a run's readers in each second in which it is known, by client and by (client, member)."""

    clients: dict[str, tuple[Lag, ...]] = field(default_factory=dict)
    members: dict[tuple[str, str], tuple[Lag, ...]] = field(default_factory=dict)


def lags(behind: Iterable[tuple[Behind, Longs]], offsets: Offsets, scene: Scene, *, with_members: bool = False) -> Lags:
    """Return the lag of a run's readers, and ``with_members`` that of each member of their groups.

    ``behind`` has pairs of a partition's lag and the times when the oldest unread records were acknowledged.
    """
    seconds = seconds_of(scene)
    clients = {reader.key: _Series(seconds) for reader in scene.readers}
    members: dict[tuple[str, str], _Series] = {}
    by_place: dict[tuple[str, Place], list[tuple[_Series, int, int]]] = {}
    for reader in scene.readers:
        first = offsets.known_from(reader, scene)
        if first is None:
            continue
        places = [place for client, place in offsets.tops if client is None and place[0] in reader.consumes_from]
        owners = owned(scene, reader, places) if with_members else {}
        for place in places:
            spans = [(clients[reader.key], first, seconds)]
            for owner, start, end in owners.get(place, ()):
                series = members.setdefault((reader.key, owner), _Series(seconds))
                spans.append((series, max(first, start), end))
            for series, start, end in spans:
                series.known[start:end] = True
            by_place[reader.key, place] = spans
    for lag, since_us in behind:
        at = lag.at_us // SECOND_US - 1
        ages_us = np.where(since_us == UNKNOWN_US, 0, lag.at_us - since_us)
        for series, start, end in by_place[lag.reader, lag.place]:
            part = slice(*np.searchsorted(at, (start, end)).tolist())
            series.records[at[part]] += lag.records[part]
            series.ages_us[at[part]] = np.maximum(series.ages_us[at[part]], ages_us[part])
    return Lags(
        {reader: series.lags() for reader, series in clients.items()},
        {member: series.lags() for member, series in members.items()},
    )


STALL_US = 1_000_000  # shorter silences violate no obligation, and there are many


def measure_lags(read: Tables, dims: Dims, with_members: Sequence[bool] = ()) -> list[Lags]:
    """Return the lag of each run's readers; one Spark job counts records, one finds their ages.

    If a producer got no offsets, another job reads them from the log. ``with_members`` tells for each run if the lag of
    each member is measured too; by default it is not.
    """
    scenes = dims.scenes
    if not any(scene.readers for scene in scenes):
        return [Lags() for _ in scenes]
    counted = reached(read, dims).toArrow()
    rows, from_log = parted(counted, "run", len(scenes)), [None] * len(scenes)
    with_log = bool(pc.sum(counted["unplaced"]).as_py())
    if with_log:
        second = F.expr(f"done_us div {SECOND_US}").alias("second")
        by_second = placed_by_log(read).groupBy("run", "topic", "partition", second)
        placed = by_second.agg(F.min("offset").alias("low"), F.max("offset").alias("high")).toArrow()
        from_log = parted(placed, "run", len(scenes))
    offsets = [offsets_of(*of_run) for of_run in zip(rows, from_log, strict=True)]
    lags_of = [list(behind(of_run, scene)) for of_run, scene in zip(offsets, scenes, strict=True)]
    number = count()
    probes = [
        (run, next(number), *lag.place, *probe)
        for run, of_run in enumerate(lags_of)
        for lag in of_run
        for probe in zip(*(column.tolist() for column in (lag.second, lag.position, lag.at_us)), strict=True)
    ]
    since_us = np.full(len(probes), UNKNOWN_US)
    if probes:
        oldest = oldest_unread(read, dims.table(probes, PROBES), with_log=with_log).toArrow()
        since_us[longs(oldest["probe"])] = longs(oldest["since_us"])
    parts = iter(np.split(since_us, np.cumsum([len(lag.at_us) for of_run in lags_of for lag in of_run])))
    return [
        lags([(lag, next(parts)) for lag in of_run], of_offsets, scene, with_members=members)
        for of_run, of_offsets, scene, members in zip(
            lags_of, offsets, scenes, with_members or [False] * len(scenes), strict=True
        )
    ]


@dataclass(frozen=True)
class FollowUpJobs:
    """Spark jobs that first count all records of the runs, then read only the records that the counts don't decide."""

    dims: Dims
    samples: DataFrame
    outcomes: DataFrame
    transactions: DataFrame | None = None

    def stalls_and_failures(self) -> dict[str, Answers]:
        waits = stalls.waits(self.samples, self.dims)
        slots = stalls.slots(waits, STALL_US).toArrow()
        silent = list(silences(slots, STALL_US))
        rows: Answers = {}
        if silent:
            near = self.samples.where(pending_within((since_us, until_us) for *_, since_us, until_us in silent))
            ends = pc.min_max(slots["slot"]).as_py()
            slot_us, by_slot = in_slots(silent, (ends["min"] - 1) * STALL_US, (ends["max"] + 1) * STALL_US)
            waiting = stalls.during(stalls.waits(near, self.dims), self.dims.table(by_slot, SILENCES), slot_us)
            if any(delivered for _, _, delivered, *_ in silent):
                waiting = stalls.acknowledged(waiting, self.samples)
            if self.transactions is not None:
                waiting = stalls.begun(waiting, self.transactions)
            rows = by_run(stalls.stalls(waiting, STALL_US).collect())
        failed, given_up = list[Row](), list[Row]()
        limits = {
            (run, client.key): 500 * deadline_ms
            for run, evidence in enumerate(self.dims.evidences)
            for client in evidence.clients
            if (deadline_ms := transaction_deadline_ms(evidence, client))
        }
        if self.transactions is not None and limits:
            table = self.dims.table(
                ((*key, limit_us) for key, limit_us in limits.items()), "run int, client string, limit_us bigint"
            )
            given_up += stalls.given_up_transactions(self.transactions, table).collect()
        if pc.sum(slots["failed"]).as_py():
            failed = stalls.failures(waits).collect()
            records = stalls.given_up(self.outcomes).collect()
            given_up += [row for row in records if (row["run"], row["client"]) not in limits]
        return {"stalls": rows, "failures": by_run(failed), "given_up": by_run(given_up)}
