"""Time until the first calm period after a fault, definition 1 of recovery, by which older runs are judged.

::

      injection         first 2 s in which every record succeeds and p95 <= 2 x steady
        |  x  x x  x  xx |. . . . . . . . .|
        |----recovery--->|

A calm period starts at a record's intended time and ends before the load does. One Spark job counts each client's
records in slots of time. A second Spark job examines the records of the slots in which, by these counts
(``where_to_look``), a calm period may begin. Runs since definition 2 need neither (``recovery.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction

import numpy as np
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aftershock.results.evidence.phases import Interval
from aftershock.results.measure.answers import Search, slow_allowed
from aftershock.results.measure.samples import client, ok, slot_of, with_segment
from aftershock.results.model.facts import Recovered
from aftershock.results.spark.tables import beside
from aftershock.results.tables.dims import SLOT_US, Dims, Longs, Mask, Scene, longs, parted
from aftershock.results.tables.gate import intended_within

PACES = "run int, pace int, client string, end_us bigint, limit_us bigint"
LOOKS = (
    "run int, calm int, client string, end_us bigint, limit_us bigint, num bigint, den bigint, "
    "at_us bigint, look_us bigint, until_us bigint, slot bigint"
)
_CALM, _COUNTED = ("run", "calm", "client"), ("n", "failed", "slow")
_LOOK = (*_CALM, "look_us")


def first_calms(samples: DataFrame, dims: Dims, found: Sequence[Search]) -> dict[Search, Recovered]:
    """Return the recoveries by definition 1, from two Spark jobs for each length of the calm period."""
    results: dict[Search, Recovered] = {}
    for for_us in sorted({search.criterion.for_us for search in found}):
        of_length = [search for search in found if search.criterion.for_us == for_us]
        # first job: counts in slots of time
        paces = list(dict.fromkeys(map(Pace.of, of_length)))
        rows = [(pace.run, number, *pace.row[:3]) for number, pace in enumerate(paces)]
        counted = pace_slots(samples, dims.table(rows, PACES), dims, slot_us_of(for_us)).toArrow()
        slots = {
            pace: Slots(*[longs(part[field.name], null=-1) for field in fields(Slots)])
            for pace, part in zip(paces, parted(counted, "pace", len(paces)), strict=True)
            if part.num_rows
        }
        # second job: the records in slots whose counts don't decide
        calm = {pace: calm_slots(pace, of_pace) for pace, of_pace in slots.items()}
        looks = [
            (number, search, look)
            for number, search in enumerate(of_length)
            for look in where_to_look(search, calm.get(Pace.of(search)))
        ]
        recovered_us: dict[int, int] = {}
        if looks:
            look_rows = [
                (search.run, number, *Pace.of(search).row, search.at_us, start_us, end_us, slot)
                for number, search, (start_us, end_us) in looks
                for slot in range(start_us // SLOT_US, (end_us + for_us) // SLOT_US + 1)
            ]
            near = samples.where(intended_within((start, end + for_us) for _, _, (start, end) in looks))
            job = first_calm(near, dims.table(look_rows, LOOKS), for_us)
            recovered_us = {row["calm"]: row["recovered_us"] for row in job.collect()}
        for number, search in enumerate(of_length):
            counts = slots.get(Pace.of(search))
            result = counts and recovered(search, recovered_us.get(number), counts, dims.scenes[search.run])
            if result:
                results[search] = result
    return results


@dataclass(frozen=True)
class Pace:
    """Condition of calm, that for ``for_us`` no record fails and at most ``allowed`` take longer than ``limit_us``."""

    run: int
    client: str
    end_us: int
    limit_us: int
    q: Fraction
    for_us: int

    @classmethod
    def of(cls, search: Search) -> "Pace":
        return cls(search.run, search.client, search.until_us, search.limit_us, search.q, search.criterion.for_us)

    @property
    def row(self) -> tuple[str, int, int, int, int]:
        return self.client, self.end_us, self.limit_us, *self.q.as_integer_ratio()

    def allowed(self, n: Longs) -> Longs:
        """Return how many of n records may be slow."""
        return slow_allowed(self.q, n)


@dataclass(frozen=True, eq=False)
class Slots:
    """Counts of records, failed and slow records (``pace_slots``) by time slot and segment (-1 means no segment)."""

    segment: Longs
    slot: Longs
    n: Longs
    failed: Longs
    slow: Longs

    def after(self, starts_us: Longs) -> "Longs":
        """Return how many records lie in or after each segment that starts at ``starts_us``."""
        counts = np.zeros(len(starts_us) + 1, dtype=np.int64)
        np.add.at(counts, self.segment, self.n)  # segment -1 is the last
        return np.cumsum(counts[len(starts_us) - 1 :: -1])[::-1]


@dataclass(frozen=True, eq=False)
class CalmSlots:
    """Start of each slot with records, and whether a calm period of ``pace`` may or must begin in the slot."""

    start_us: Longs
    may: Mask
    must: Mask


def calm_slots(pace: Pace, slots: Slots) -> CalmSlots:
    """Return the slots in which a calm period may or must begin, whatever the time of the injection.

    ::

        slot       |=====|                 the calm period begins with a record of this slot
        surely           |---------|       records of the slots that lie completely in every such period
        perhaps    |--------------------|  records of the slots that such a period may contain in part

    A calm period can't begin in a slot if a record in ``surely`` failed, or if more records in ``surely`` are slow than
    the number of records in ``perhaps`` allows. A calm period begins in a slot if no record in ``perhaps`` failed, and
    the number of records in ``surely`` allows all slow records in ``perhaps``.
    """
    slot_us = slot_us_of(pace.for_us)
    first = slots.slot.min()
    sums = {}
    for name in ("n", "failed", "slow"):
        counts = np.zeros(slots.slot.max() - first + 2, dtype=np.int64)
        np.add.at(counts, slots.slot - first + 1, getattr(slots, name))
        sums[name] = np.cumsum(counts)  # before each slot, and before the end
    at = np.flatnonzero(np.diff(sums["n"]))
    surely = {name: _within(running, at + 1, at + pace.for_us // slot_us) for name, running in sums.items()}
    perhaps = {name: _within(running, at, at + 2 + (pace.for_us - 2) // slot_us) for name, running in sums.items()}
    start_us = (at + first) * slot_us
    may = (surely["failed"] == 0) & (surely["slow"] <= pace.allowed(perhaps["n"]))
    may &= start_us + pace.for_us <= pace.end_us
    must = (perhaps["failed"] == 0) & (perhaps["slow"] <= pace.allowed(surely["n"]))
    must &= start_us + slot_us + pace.for_us <= pace.end_us
    return CalmSlots(start_us, may, must)


def where_to_look(search: Search, slots: CalmSlots | None) -> list[Interval]:
    """Return the intervals in which a calm period may begin, up to the first slot in which it certainly begins."""
    if slots is None:
        return []
    pace = Pace.of(search)
    slot_us = slot_us_of(pace.for_us)
    # only slots after the injection, until the first that begins after it and must be calm
    first, whole = np.searchsorted(slots.start_us, [search.at_us - slot_us + 1, search.at_us])
    certain = whole + int(np.argmax(slots.must[whole:])) if slots.must[whole:].any() else len(slots.must) - 1
    begins_us = slots.start_us[first : certain + 1][slots.may[first : certain + 1]]
    groups = np.split(begins_us, np.flatnonzero(np.diff(begins_us) > pace.for_us) + 1)
    return [(max(int(group[0]), search.at_us), int(group[-1]) + slot_us) for group in groups if len(group)]


def slot_us_of(for_us: int) -> int:
    """Return the length of the time slots, a tenth of a second, or a quarter of the calm period if that is shorter."""
    return max(1, min(100_000, for_us // 4))


def _within(running: Longs, start: Longs, end: Longs) -> Longs:
    last = len(running) - 1
    counts: Longs = running[np.minimum(end, last)] - running[np.minimum(start, last)]
    return counts


def recovered(search: Search, recovered_us: int | None, slots: Slots, scene: Scene) -> Recovered | None:
    """Return a client's recovery with the number of records and the time examined; None without records."""
    # an injection is the edge of a segment; a record outside all segments precedes them
    starts_us = np.array([start for start, _ in scene.segments.spans])
    first = np.searchsorted(starts_us, search.at_us)
    n = int(slots.after(starts_us)[first]) if first < len(starts_us) else 0
    observed_us = max(0, scene.end_us - search.at_us - search.criterion.for_us)
    return Recovered(n, recovered_us, observed_us, 1, search.limit_us, search.heal_us, recovered_us) if n else None


def pace_slots(samples: DataFrame, paces: DataFrame, dims: Dims, slot_us: int) -> DataFrame:
    """Count records, ``failed`` and ``slow`` records, by row of ``paces``, segment and slot of the intended time.

    A row of the table ``paces`` (``PACES``) has a client, an end time, and the latency above which a record is slow.
    """
    slot = F.expr(f"intended_us div {slot_us}").alias("slot")
    rows = with_segment(_paced(samples, paces), "intended_us", dims)
    return rows.groupBy("run", "pace", "segment", slot).agg(*_counts())


def first_calm(samples: DataFrame, looks: DataFrame, for_us: int) -> DataFrame:
    """Return the time from ``at_us`` to the first calm period of ``for_us``, as ``run calm client recovered_us``.

    A calm period may start at each record intended in an interval (``look_us`` to ``until_us``) of ``looks``, a table
    with a row for each second of the interval and the ``for_us`` after it (``slot``), so that a record is compared with
    few of hundreds of intervals. A period is calm if no record in it fails, at most a share of 1 - ``num / den`` of its
    records is slow, and the period ends before the load.
    """
    intended, until = F.col("intended_us"), F.col("until_us")
    rows = _paced(samples.withColumn("slot", slot_of("intended_us")), looks, "slot").where(
        (intended >= F.col("look_us")) & (intended < until + for_us)
    )
    # records that lie in all periods of a look are counted once
    common = (intended >= until) & (intended < F.col("look_us") + for_us)
    moment = F.when(common, until).otherwise(intended).alias("intended_us")
    moments = rows.groupBy(*_LOOK, moment, (intended < until).alias("begins")).agg(*_counts())
    # nearest-rank quantile <= limit: at least ceil(q n) records are within the limit
    calm = (F.col("failed") == 0) & (F.col("slow") <= F.expr("(n * (den - num)) div den"))
    calm = calm & (F.col("intended_us") + for_us <= F.col("end_us"))
    of_looks = beside(looks.drop("slot").distinct())
    periods = _ahead(moments, for_us).join(of_looks, list(_LOOK)).where(calm)
    return periods.groupBy(*_CALM).agg(F.min(F.col("intended_us") - F.col("at_us")).alias("recovered_us"))


def _ahead(moments: DataFrame, for_us: int) -> DataFrame:
    """Return each moment at which a calm period may begin, and the counts of records in the next ``for_us``.

    The count of a period is the difference of two running sums, because Spark would sum a sliding window again for each
    row.
    """
    before, own, after = (
        F.struct((F.col("intended_us") + later_us).alias("sum_us"), F.lit(turn).alias("turn"))
        for turn, later_us in ((-1, 0), (0, 0), (1, for_us - 1))
    )
    turns = F.when(F.col("begins"), F.array(before, own, after)).otherwise(F.array(own))
    exploded = moments.select("*", F.inline(turns))
    upto = Window.partitionBy(*_LOOK).orderBy("sum_us", "turn").rowsBetween(Window.unboundedPreceding, 0)
    sums = {name: F.col("turn") * F.sum(F.when(F.col("turn") == 0, F.col(name))).over(upto) for name in _COUNTED}
    periods = exploded.withColumns(sums).where("begins and turn <> 0")
    return periods.groupBy(*_LOOK, "intended_us").agg(*[F.sum(name).alias(name) for name in _COUNTED])


def _paced(samples: DataFrame, paces: DataFrame, *slot: str) -> DataFrame:
    """Join the produced records with the rows of ``paces`` of their client, and add flags ``failed`` and ``slow``."""
    produced = samples.where("op = 'produce'").withColumn("client", client())
    columns = produced.select("run", "client", *slot, "intended_us", "done_us", ok().alias("ok"))
    paced = columns.join(beside(paces), ["run", "client", *slot]).where("intended_us < end_us")
    fast = F.col("ok") & (F.col("done_us") - F.col("intended_us") <= F.col("limit_us"))
    return paced.withColumns({"failed": ~F.col("ok"), "slow": ~F.coalesce(fast, F.lit(False))})


def _counts() -> list[Column]:
    return [F.count("*").alias("n"), *[F.count(F.when(F.col(flag), True)).alias(flag) for flag in ("failed", "slow")]]
