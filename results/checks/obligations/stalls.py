"""For each side of each client: what it was owed when, as a whole and partition by partition.

The stalls: how long records waited while nothing at all succeeded, for each client, partition by partition.

::

    success        record B wanted        record C wanted         success (B or C)
       |-----------------|----------- stall ------------------------|
       |------------------------- silence --------------------------|

Rules. A stall begins with the last success or, if nothing was wanted then, with the first record that was; it ends with
the next success, or the failure of the last record that waited, when no other is wanted within a second. So an idle
client never stalls, and one whose records all fail does. Wanted is: to be acknowledged, from the intended time on; to
be delivered, from the acknowledgement on; to be committed, from the intended time on. Records whose partition nobody
knows (they failed unsent) count for the client as a whole, which is partition null.

A stall lies in a silence, the time between two successes. Silences are found by slots of time (``silences.py``), and no
records are sorted for that; only those that waited in one are looked at one by one. Both steps are exact.

Where nothing at all succeeded for a while though something was wanted, told by slots of time. Pure.

``stalls.py`` says what that is, and counts the slots in Spark (``slots``): a few for each second and partition.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.checks.obligations.reach import (
    Seat,
    coordination,
    harms_of,
    seats_of,
    settings_of,
    terrain_of,
    topic_of,
)
from aftershock.results.checks.obligations.spans import Post, Scene, Span, habits, spans
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import RUN, Interval, windows_of
from aftershock.results.measure.names import WHOSE, number
from aftershock.results.measure.samples import client, ok
from aftershock.results.measure.tables import Dims, firsts, longs
from aftershock.results.slo import Side

SIDES: tuple[Side, ...] = ("produce", "consume", "commit")


@dataclass(frozen=True)
class Lane:
    """What one side of a client was owed: ``whole``, while all its partitions were; ``partitions``, each for itself."""

    client: Client
    side: Side
    topic: str
    whole: tuple[Span, ...]
    partitions: Mapping[int, tuple[Span, ...]] = field(default_factory=dict)

    def of(self, partition: int | None) -> tuple[Span, ...]:
        """The spans of a partition; of the client as a whole for one that nobody knows."""
        return self.whole if partition is None else self.partitions.get(partition, self.whole)

    @property
    def owed_us(self) -> int:
        """How long anything was owed: of all its lanes, the most."""
        return max(sum(span.end_us - span.start_us for span in one if span.owed) for one in self._all())

    @property
    def length_us(self) -> int:
        """How long there was to look at."""
        return sum(span.end_us - span.start_us for span in self.whole)

    def _all(self) -> list[tuple[Span, ...]]:
        return [self.whole, *self.partitions.values()]


def lanes(evidence: Evidence) -> list[Lane]:
    """None where the run did not get beyond its warm-up, or does not tell its nodes and voters."""
    terrain, judged = terrain_of(evidence), windows_of(evidence.phases).get(RUN)
    if terrain is None or not judged:
        return []
    scene = Scene.of(terrain, settings_of(evidence), harms_of(evidence, judged[-1][1]))
    sides = [(client, side) for client in evidence.clients for side in SIDES]
    return [_lane(evidence, scene, client, side, judged[0]) for client, side in sides if topic_of(client, side)]


def _lane(evidence: Evidence, scene: Scene, client: Client, side: Side, judged: Interval) -> Lane:
    topic = str(topic_of(client, side))
    post, central = _post(evidence, scene, client, side)
    if side == "commit":
        return Lane(client, side, topic, spans(post, central, scene, *judged))
    seats = seats_of(evidence, scene.terrain, topic)
    whole = spans(post, [*seats, *central], scene, *judged)
    alike = {seat: spans(post, [seat, *central], scene, *judged) for seat in seats}
    each = {number: alike[seat] for seat, numbers in seats.items() for number in numbers}
    return Lane(client, side, topic, whole, each)


def _post(evidence: Evidence, scene: Scene, client: Client, side: Side) -> tuple[Post, list[Seat]]:
    """The client's post, and the coordination it needs: groups and commits have a coordinator, wherever it is."""
    workload, arm = _said(evidence, client)
    told = workload.get(side) or {}
    grouped = side == "commit" or bool(told.get("group"))
    patient = habits(str(arm.get("client")), arm.get("settings") or {}, scene.settings, grouped=grouped)
    post = Post(f"{client.workload}-{client.arm}-{side}", str(told.get("rack")), patient)
    return post, [coordination(scene.terrain)] if grouped else []


def _said(evidence: Evidence, client: Client) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The workload and the arm, as the timeline has them."""
    named = {one["name"]: one for one in evidence.timeline["workloads"]}
    workload: Mapping[str, Any] = named.get(client.workload, {})
    arms = workload.get("arms") or {}
    return workload, arms.get(client.arm) or {}


SECOND_US = 1_000_000
JOINED_US = 1_000_000
_WHO = ("run", "side", "client", "partition")
_LANE = ("run", "whose", "partition")
_RECORD = ("run", "producer_id", "seq")
_CHUNK = 64


def waits(samples: DataFrame, dims: Dims) -> DataFrame:
    """``run side whose client partition producer_id seq wanted_us done_us ok``: every record for its partition.

    What never got a final status is done when the load ends. A delivery is wanted since it was intended, which is too
    early: ``acknowledged`` mends that, once few are left. What a reader was not owed is not wanted.
    """
    judged = samples.join(F.broadcast(dims.ends), "run")
    wanted = F.when(F.col("owed"), F.col("intended_us"))
    return judged.select(
        *("run", F.col("op").alias("side"), number(*WHOSE).alias("whose"), client().alias("client")),
        F.when(F.col("op") != "commit", F.col("partition")).alias("partition"),
        *("producer_id", "seq", wanted.alias("wanted_us"), F.coalesce("done_us", "end_us").alias("done_us")),
        ok().alias("ok"),
    )


def slots(waits: DataFrame, slot_us: int) -> DataFrame:
    """``run whose delivered partition slot first_us last_us wanted_us done_us failed`` by slots of when they were done.

    The first and the last success of each, when the first was wanted, when the last was done, and how many are
    ``failures``. ``delivered`` tells a reader's from all others.
    """
    delivered, slot = (F.col("side") == "consume").alias("delivered"), F.expr(f"done_us div {slot_us}").alias("slot")
    good = F.when(F.col("ok"), F.col("done_us"))
    return waits.groupBy("run", "whose", delivered, "partition", slot).agg(
        F.min(good).alias("first_us"),
        F.max(good).alias("last_us"),
        F.min("wanted_us").alias("wanted_us"),
        F.max("done_us").alias("done_us"),
        F.count(F.when(_failed(), True)).alias("failed"),
    )


def _in_lanes(rows: DataFrame) -> DataFrame:
    """Rows once for each lane: what was produced for its partition and its client, a commit for its client alone."""
    whole, part = F.array(F.lit(None).cast("int")), F.array("partition")
    lanes = F.when((F.col("side") == "commit") | F.col("partition").isNull(), whole)
    lanes = lanes.when(F.col("side") == "produce", F.concat(part, whole)).otherwise(part)
    return rows.where("side <> 'consume' or partition is not null").withColumn("partition", F.explode(lanes))


def during(waits: DataFrame, silences: DataFrame) -> DataFrame:
    """``waits`` with ``since_us until_us``: those that waited in one of ``silences`` (``SILENCES``), or ended it.

    Once for each.
    """
    lane = silences.select(*[F.col(name).alias(f"lane_{name}") for name in _LANE], "since_us", "until_us")
    same = [F.col(name).eqNullSafe(F.col(f"lane_{name}")) for name in _LANE]
    met = _in_lanes(waits).join(F.broadcast(lane), same).drop(*[f"lane_{name}" for name in _LANE])
    return met.where(_waited())


def _waited() -> Column:
    after = F.coalesce(F.col("done_us") > F.col("since_us"), F.lit(True))
    until = F.col("until_us")
    before = F.coalesce(F.col("wanted_us") < until, until.isNull()) | F.coalesce(
        F.col("done_us") <= until, F.lit(False)
    )
    return after & before & (F.col("ok") | F.col("wanted_us").isNotNull())


def acknowledged(waiting: DataFrame, samples: DataFrame) -> DataFrame:
    """``during`` with deliveries wanted since their acknowledgement, which the producer's row tells.

    Of those rows only the chunks of 64 records are looked at that some delivery lies in.
    """
    chunk = {"chunk": F.expr(f"seq div {_CHUNK}")}
    delivered = waiting.where("side = 'consume'")
    chunks = delivered.withColumns(chunk).select("run", "producer_id", "chunk").distinct()
    produced = samples.where((F.col("op") == "produce") & ok()).withColumns(chunk)
    near = produced.join(F.broadcast(chunks), ["run", "producer_id", "chunk"], "left_semi")
    acks = near.select(*_RECORD, F.col("done_us").alias("acked_us"))
    acked = F.when(F.col("wanted_us").isNotNull(), F.col("acked_us"))
    since = F.when(F.col("side") == "consume", acked).otherwise(F.col("wanted_us"))
    return waiting.join(acks, [*_RECORD], "left").withColumn("wanted_us", since).drop("acked_us").where(_waited())


def stalls(waiting: DataFrame, at_least_us: int) -> DataFrame:
    """``run side client partition start_us end_us`` of every stall that lasted as long, of what ``during`` gives."""
    silence = (*_WHO, "since_us", "until_us")
    # from the end backwards: Spark grows such a frame row by row, and recounts one that reaches forwards
    onwards = Window.partitionBy(*silence).orderBy(F.col("done_us").desc())
    order = Window.partitionBy(*silence).orderBy("done_us")
    begun = waiting.withColumn("start_us", F.greatest("since_us", F.min("wanted_us").over(onwards)))
    inside = begun.where(F.coalesce(F.col("done_us") <= F.col("until_us"), F.lit(True)))
    before = F.lag("done_us").over(order)
    anew = F.coalesce(F.col("start_us") > before + JOINED_US, F.lit(False))
    number = F.sum(F.col("anew").cast("int")).over(order.rowsBetween(Window.unboundedPreceding, 0))
    numbered = inside.withColumn("anew", anew).withColumn("number", number)
    found = numbered.groupBy(*silence, "number").agg(
        F.min("start_us").alias("start_us"), F.max("done_us").alias("end_us")
    )
    return found.where(F.col("end_us") - F.col("start_us") >= at_least_us).select(*_WHO, "start_us", "end_us")


def failures(waits: DataFrame) -> DataFrame:
    """``run side client from_s to_s n``: what failed, by the seconds in which it was wanted and was given up."""
    failed = waits.where(_failed())
    seconds = [
        F.expr(f"{time} div {SECOND_US}").alias(name) for time, name in (("wanted_us", "from_s"), ("done_us", "to_s"))
    ]
    return (
        failed.select("run", "side", "client", *seconds)
        .groupBy("run", "side", "client", "from_s", "to_s")
        .agg(F.count("*").alias("n"))
    )


def _failed() -> Column:
    """Of ``waits``: what was given up. A delivery that never was is not: it is lost, or was not owed."""
    return ~F.col("ok") & (F.col("side") != "consume")


SILENCES = "run int, whose bigint, delivered boolean, partition int, since_us bigint, until_us bigint"
Silence: TypeAlias = tuple[int, int, bool, int | None, int | None, int | None]

_LANE_silences = ("run", "whose", "delivered", "partition")
_COUNTED = (("first_us", "min"), ("last_us", "max"), ("wanted_us", "min"), ("done_us", "max"))
_NONE, _NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def silences(slots: pa.Table, at_least_us: int) -> Iterator[Silence]:
    """``SILENCES`` that lasted as long, of ``stalls.slots`` no longer than that.

    For each partition, and for each client as a whole: what was produced counts for both, a commit for its client.
    ``since_us`` is null before the first success, ``until_us`` after the last.
    """
    rows = _in_lanes_silences(slots)
    starts = firsts(longs(rows[name], _NONE) for name in _LANE_silences)
    if not len(starts):
        return
    lane, lanes = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows))), np.arange(len(starts))
    first_us, last_us = (longs(rows[name], _NONE) for name in ("first_us", "last_us"))
    good = first_us != _NONE
    # a silence ends with the first success of a slot, and with the lane
    after = np.searchsorted(lane[good], lanes, "right")
    whose, until_us = np.insert(lane[good], after, lanes), np.insert(first_us[good], after, _NONE)
    since_us = np.roll(np.insert(last_us[good], after, _NONE), 1)
    # before the first success somebody may have waited since the first was wanted, after the last until all was done
    begun_us = np.minimum.reduceat(longs(rows["wanted_us"], _NEVER), starts)[whose]
    over_us = np.maximum.reduceat(longs(rows["done_us"]), starts)[whose]
    start_us, end_us = np.where(since_us == _NONE, begun_us, since_us), np.where(until_us == _NONE, over_us, until_us)
    for at in np.flatnonzero((start_us != _NEVER) & (end_us - start_us >= at_least_us)).tolist():
        run, owner, delivered, partition = (rows[name][starts[whose[at]]].as_py() for name in _LANE_silences)
        yield run, owner, delivered, partition, _or_none(since_us[at]), _or_none(until_us[at])


def _in_lanes_silences(slots: pa.Table) -> pa.Table:
    """The slots of each partition, and of each client as a whole, lane by lane in order of time."""
    by, counted = ["run", "whose", "delivered", "slot"], dict(_COUNTED)
    whole = slots.filter(~pc.field("delivered")).group_by(by).aggregate(list(_COUNTED))
    whole = whole.select([*by, *map("_".join, _COUNTED)]).rename_columns([*by, *counted])
    part = slots.filter(pc.field("partition").is_valid()).select([*by, "partition", *counted])
    lanes = pa.concat_tables([part, whole], promote_options="default")
    return lanes.sort_by([(name, "ascending") for name in (*_LANE_silences, "slot")])


def _or_none(value: np.int64) -> int | None:
    return None if value == _NONE else int(value)
