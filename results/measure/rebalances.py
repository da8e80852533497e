"""Rebalances of consumer groups of several members, from the members' tenures and their deliveries.

A partition **changes hands** between the end of a tenure and the first delivery in the next one. Changes that overlap,
or follow each other within a second, are one **rebalance**. It lasts from the first partition that was given up to
the first delivery of the last partition. A partition that had the same owner before and after a rebalance was **kept**,
also if the owner gave it up meanwhile, as in the eager protocol; its longest wait is its
silence.

A delivery is **fresh** if the group has delivered no higher offset of the partition before. A **wait** of a partition
ends with a fresh delivery. It begins with the fresh delivery before, or with the acknowledgement of the delivered
record if that is later (its intended time, if no acknowledgement is known): until then nothing waited. A stall of the
reader (``stalls.py``) is a wait too, which covers records that were not delivered at all.

A partition has a **delivering owner** while a member owns it and no fault has killed the member, stopped its process or
kept it from polling. A wait is **ownerless** if the partition had no delivering owner at a moment of the wait, or began
to belong to a member during the wait, also to the same member again. Ownerless waits count with their whole length, as
a member that is cut off from its coordinator learns late that it has lost a partition::

    delivery  revoked           assigned  delivery         delivery  SIGSTOP      SIGCONT  delivery
       |---------|- - - - - - - - -|---------|                |---------|- - - - - - -|-------|
       |------- ownerless wait --------------|                |------- ownerless wait --------|
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.findings.ownership import Place, Tenure, tenures
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.groups import group_of
from aftershock.results.evidence.outages import FROZEN, KILLED, POLLING_STOPPED, worker_outages
from aftershock.results.evidence.phases import Interval
from aftershock.results.model.facts import Change, OwnerlessWait, Rebalance, Stall
from aftershock.results.spark.tables import Tables, beside
from aftershock.results.tables.dims import Dims

JOINED_US = 1_000_000
UNKNOWN_US = -(1 << 62)
WAIT_US_MIN = 50_000
"""Shortest wait that is kept: every record waits for a fetch, which takes some milliseconds on a healthy cluster."""

_LANE = ("run", "client", "worker", "topic", "partition", "lane", "since")
_PLACE = ("run", "client", "topic", "partition")


def reads(read: Tables, dims: Dims, delivered: DataFrame) -> DataFrame | None:
    """Return each tenure's deliveries and the waits of its partition; None without a group of several members.

    Columns are those of a lane, ``first_us last_us n`` of all its deliveries, ``fresh_us due_us fresh`` of its fresh
    deliveries (the first, when it was acknowledged, their number), and ``waits``, an array of ``from_us to_us``.
    """
    grouped = [
        (run, client.key) for run, scene in enumerate(dims.scenes) for client in scene.readers if client.members > 1
    ]
    if not grouped:
        return None
    groups = beside(dims.table(grouped, "run int, client string"))
    rows = delivered.join(groups, ["run", "client"])
    record = ("run", "producer_id", "seq")
    produced = read.outcomes.where("op = 'produce' and status = 'ok'")
    of_groups = produced.join(groups.select("run").distinct(), "run", "left_semi")
    acks = of_groups.groupBy(*record).agg(F.min("done_us").alias("acked_us"))
    due_us = F.coalesce("acked_us", "intended_us")
    before = Window.partitionBy(*_PLACE).orderBy("at", "offset").rowsBetween(Window.unboundedPreceding, -1)
    higher = F.max("offset").over(before)
    fresh = F.coalesce(F.col("offset") > higher, F.lit(True))
    previous_us = F.max(F.when(F.col("fresh"), F.col("at"))).over(before)
    with_acks = rows.join(acks, [*record], "left").withColumn("due_us", due_us)
    marked = with_acks.withColumn("fresh", fresh).withColumn("previous_us", previous_us)
    from_us = F.greatest("previous_us", "due_us")
    waited = F.col("fresh") & (F.col("at") - from_us >= WAIT_US_MIN)
    wait = F.when(waited, F.struct(from_us.alias("from_us"), F.col("at").alias("to_us")))
    # a time that is not known comes first, as a null does in Spark and not in Sail
    first = F.min(F.when(F.col("fresh"), F.struct("at", F.coalesce("due_us", F.lit(UNKNOWN_US)).alias("due_us"))))
    return marked.groupBy(*_LANE).agg(
        F.min("at").alias("first_us"),
        F.max("at").alias("last_us"),
        F.count("*").alias("n"),
        first["at"].alias("fresh_us"),
        F.nullif(first["due_us"], F.lit(UNKNOWN_US)).alias("due_us"),
        F.count(F.when(F.col("fresh"), True)).alias("fresh"),
        F.collect_list(wait).alias("waits"),
    )


@dataclass(frozen=True)
class Reading:
    """Deliveries of a member in one tenure; ``due_us`` is when the first fresh record was acknowledged."""

    first_us: int | None = None
    last_us: int | None = None
    n: int = 0
    fresh_us: int | None = None
    due_us: int | None = None
    fresh: int = 0


def waits_of(
    client: Client, rows: Iterable[Mapping[str, Any]], stalls: Iterable[Stall] = ()
) -> dict[Place, list[Interval]]:
    """Return the waits of each partition from a client's rows of ``reads``, and from stalls of its partitions."""
    waits: dict[Place, list[Interval]] = {}
    for row in rows:
        spans = waits.setdefault((row["topic"], row["partition"]), [])
        spans += [(wait["from_us"], wait["to_us"]) for wait in row["waits"]]
    for stall in stalls:
        if (stall.side, stall.client) == ("consume", client.key) and stall.partition is not None:
            place = (stall.topic or client.consumes_from[0], stall.partition)
            waits.setdefault(place, []).append((stall.start_us, stall.end_us))
    return waits


def ownerless_waits(
    evidence: Evidence, client: Client, waits: Mapping[Place, Sequence[Interval]]
) -> tuple[OwnerlessWait, ...]:
    """Return the waits in which the partitions of a group had no delivering owner, in order of their start.

    What waited before the first assignment of a partition waited for the group to start, and is left out. If several
    clients share the group, so is a wait in which a member of another client owned the partition.
    """
    group, owned = group_of(evidence, client), _by_place(evidence, client)
    mates = [mate for mate in evidence.clients if mate != client and group and group_of(evidence, mate) == group]
    of_mates = [_by_place(evidence, mate) for mate in mates]
    idle = worker_outages(evidence, KILLED, FROZEN, POLLING_STOPPED, besides="churn")
    result = []
    for place, tenures_ in owned.items():
        lacks = [*_without_delivering_owner(tenures_, idle), *((t.start_us, t.start_us) for t in tenures_[1:])]
        foreign = [tenure for by_place in of_mates for tenure in by_place.get(place, ())]
        for from_us, to_us in waits.get(place, ()):
            if from_us < tenures_[0].start_us or any(t.start_us < to_us and t.end_us > from_us for t in foreign):
                continue
            starts = [start for start, end in lacks if start <= to_us and end >= from_us]
            if starts:
                result.append(OwnerlessWait(place, from_us, to_us, max(from_us, int(min(starts)))))
    return tuple(sorted(result, key=lambda wait: (wait.start_us, wait.place)))


def _by_place(evidence: Evidence, client: Client) -> dict[Place, list[Tenure]]:
    result: dict[Place, list[Tenure]] = {}
    for tenure in tenures(evidence, client):
        result.setdefault(tenure.place, []).append(tenure)
    return result


def _without_delivering_owner(
    owners: Sequence[Tenure], idle: Mapping[str, Sequence[Interval]]
) -> Iterator[tuple[float, float]]:
    """Yield the times after the first tenure in which no member owned the partition and could deliver from it."""
    delivering: list[tuple[float, float]] = []
    for tenure in owners:
        start_us: float = tenure.start_us
        for from_us, to_us in idle.get(tenure.worker, ()):
            if to_us > start_us and from_us < tenure.end_us:
                delivering.append((start_us, max(from_us, start_us)))
                start_us = to_us
        delivering.append((start_us, tenure.end_us))
    covered_us: float = owners[0].start_us
    for start_us, end_us in sorted(delivering):
        if start_us >= end_us:
            continue
        if start_us > covered_us:
            yield covered_us, start_us
        covered_us = max(covered_us, end_us)
    if covered_us < inf:
        yield covered_us, inf


def rebalances(evidence: Evidence, client: Client, rows: Sequence[Mapping[str, Any]]) -> tuple[Rebalance, ...]:
    """Return a group's rebalances, in order of time; ``rows`` are the client's rows of ``reads``."""
    by_owner: dict[tuple[str, Place], list[Mapping[str, Any]]] = {}
    for row in rows:
        by_owner.setdefault((row["worker"], (row["topic"], row["partition"])), []).append(row)
    by_place: dict[Place, list[tuple[Tenure, Reading]]] = {}
    waits = waits_of(client, rows)
    for tenure in tenures(evidence, client):
        lanes = [row for row in by_owner.get((tenure.worker, tenure.place), ()) if _within(row["since"], tenure)]
        by_place.setdefault(tenure.place, []).append((tenure, _summed(lanes)))
    changes = sorted(_changes(by_place), key=lambda change: change.freed_us)
    return tuple(_rebalance(group, by_place, waits) for group in _joined(changes))


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
    waits: Mapping[Place, Sequence[Interval]],
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
            longest = [to - since for since, to in waits.get(place, ()) if since < end_us and to > start_us]
            kept_us = max([kept_us or 0, *longest])
    moved = tuple(change for change in changes if change.former != change.owner)
    skew = max(owned.values(), default=0) - min(owned.values(), default=0)
    return Rebalance(start_us, end_us, moved, len(changes) - len(moved), kept_us, skew)
