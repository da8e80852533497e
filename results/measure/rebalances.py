"""Rebalances of consumer groups of several members, from the members' tenures and their deliveries.

A partition **changes hands** between the end of a tenure and the first delivery in the next one. Changes that overlap,
or follow each other within a second, are one **rebalance**. It lasts from the first partition that was given up to
the first delivery of the last partition. A partition that had the same owner before and after a rebalance was **kept**,
also if the owner gave it up meanwhile, as in the eager protocol; the longest time that its records waited is its
silence.

A delivery is **fresh** if the group has delivered no higher offset of the partition before. The time that a partition
was **unowned** counts from the former owner's last delivery, or from the time at which the next fresh record was due if
that is later, to the delivery of that record.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.findings.deliveries import deliveries
from aftershock.results.checks.findings.ownership import Place, Tenure, tenures
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.measure.facts import Change, Rebalance
from aftershock.results.measure.tables import Dims
from aftershock.results.spark.tables import Tables

JOINED_US = 1_000_000
SILENCE_US_MIN = 50_000
"""Shortest silence that is kept, because each record is due some time after the record before it."""

_LANE = ("run", "client", "worker", "topic", "partition", "lane", "since")
_PLACE = ("run", "client", "topic", "partition")


def reads(read: Tables, dims: Dims) -> DataFrame | None:
    """Return each tenure's deliveries and each long silence of a partition; None without a group of several members.

    Columns are those of a lane, ``first_us last_us n`` of all its deliveries, ``fresh_us due_us fresh`` of its fresh
    deliveries (the first, when it was due, their number), and ``silences``, an array of ``from_us to_us``.
    """
    grouped = [
        (run, client.key) for run, scene in enumerate(dims.scenes) for client in scene.readers if client.members > 1
    ]
    if not grouped:
        return None
    rows = deliveries(read, dims).join(F.broadcast(dims.table(grouped, "run int, client string")), ["run", "client"])
    before = Window.partitionBy(*_PLACE).orderBy("at", "offset").rowsBetween(Window.unboundedPreceding, -1)
    higher = F.max("offset").over(before)
    fresh = F.coalesce(F.col("offset") > higher, F.lit(True))
    previous_us = F.max(F.when(F.col("fresh"), F.col("at"))).over(before)
    marked = rows.withColumn("fresh", fresh).withColumn("previous_us", previous_us)
    from_us = F.greatest(F.coalesce("previous_us", "intended_us"), F.coalesce("intended_us", "previous_us"))
    silent = F.col("fresh") & (F.col("at") - from_us >= SILENCE_US_MIN)
    silence = F.when(silent, F.struct(from_us.alias("from_us"), F.col("at").alias("to_us")))
    first = F.min(F.when(F.col("fresh"), F.struct("at", "intended_us")))
    return marked.groupBy(*_LANE).agg(
        F.min("at").alias("first_us"),
        F.max("at").alias("last_us"),
        F.count("*").alias("n"),
        first["at"].alias("fresh_us"),
        first["intended_us"].alias("due_us"),
        F.count(F.when(F.col("fresh"), True)).alias("fresh"),
        F.collect_list(silence).alias("silences"),
    )


@dataclass(frozen=True)
class Reading:
    """Deliveries of a member in one tenure; ``due_us`` is when the first fresh record was due."""

    first_us: int | None = None
    last_us: int | None = None
    n: int = 0
    fresh_us: int | None = None
    due_us: int | None = None
    fresh: int = 0


def rebalances(evidence: Evidence, client: Client, rows: Iterable[Mapping[str, Any]]) -> tuple[Rebalance, ...]:
    """Return a group's rebalances, in order of time; ``rows`` are the client's rows of ``reads``."""
    by_owner: dict[tuple[str, Place], list[Mapping[str, Any]]] = {}
    silences: dict[Place, list[tuple[int, int]]] = {}
    for row in rows:
        place = row["topic"], row["partition"]
        by_owner.setdefault((row["worker"], place), []).append(row)
        silences.setdefault(place, []).extend((silence["from_us"], silence["to_us"]) for silence in row["silences"])
    by_place: dict[Place, list[tuple[Tenure, Reading]]] = {}
    for tenure in tenures(evidence, client):
        lanes = [row for row in by_owner.get((tenure.worker, tenure.place), ()) if _within(row["since"], tenure)]
        by_place.setdefault(tenure.place, []).append((tenure, _summed(lanes)))
    changes = sorted(_changes(by_place), key=lambda change: change.freed_us)
    return tuple(_rebalance(group, by_place, silences) for group in _joined(changes))


def _within(at_us: int | None, tenure: Tenure) -> bool:
    return at_us is not None and tenure.start_us <= at_us < tenure.end_us


def _summed(lanes: Sequence[Mapping[str, Any]]) -> Reading:
    if not lanes:
        return Reading()
    fresh = min((lane for lane in lanes if lane["fresh"]), key=lambda lane: lane["fresh_us"], default=None)
    return Reading(
        first_us=min(lane["first_us"] for lane in lanes),
        last_us=max(lane["last_us"] for lane in lanes),
        n=sum(lane["n"] for lane in lanes),
        fresh_us=fresh["fresh_us"] if fresh else None,
        due_us=fresh["due_us"] if fresh else None,
        fresh=sum(lane["fresh"] for lane in lanes),
    )


def _changes(by_place: Mapping[Place, Sequence[tuple[Tenure, Reading]]]) -> Iterator[Change]:
    for place, owners in by_place.items():
        for (former, before), (owner, after) in pairwise(owners):
            last_us = before.last_us if before.last_us is not None else former.start_us
            freed_us = int(min(former.end_us, owner.start_us))
            if former.ended in ("", "restarted") and before.last_us is not None:
                # a member that never learned of it, or died at an unknown time, owned it until its last delivery
                freed_us = min(last_us, owner.start_us)
            read_us = after.first_us if after.first_us is not None else owner.start_us
            unowned_us = None
            if after.fresh_us is not None:
                unowned_us = max(0, after.fresh_us - max(last_us, after.due_us or 0))
            again = after.n - after.fresh
            yield Change(place, former.worker, owner.worker, freed_us, owner.start_us, read_us, unowned_us, again)


def _joined(changes: Sequence[Change]) -> Iterator[list[Change]]:
    group: list[Change] = []
    for change in changes:
        if group and change.freed_us > max(earlier.read_us for earlier in group) + JOINED_US:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _rebalance(
    changes: Sequence[Change],
    by_place: Mapping[Place, Sequence[tuple[Tenure, Reading]]],
    silences: Mapping[Place, Sequence[tuple[int, int]]],
) -> Rebalance:
    start_us, end_us = min(change.freed_us for change in changes), max(change.read_us for change in changes)
    kept_us, owned = None, dict[str, int]()
    for place, owners in by_place.items():
        starts = [tenure.start_us for tenure, _ in owners]
        before, after = bisect_left(starts, start_us) - 1, bisect_left(starts, end_us + 1) - 1
        if after < 0:
            continue
        owner = owners[after][0].worker
        owned[owner] = owned.get(owner, 0) + 1
        if before >= 0 and owners[before][0].worker == owner:
            longest = [to - since for since, to in silences.get(place, ()) if since < end_us and to > start_us]
            kept_us = max([kept_us or 0, *longest])
    moved = tuple(change for change in changes if change.former != change.owner)
    skew = max(owned.values(), default=0) - min(owned.values(), default=0)
    return Rebalance(start_us, end_us, moved, len(changes) - len(moved), kept_us, skew)
