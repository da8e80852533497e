"""Time until a client is normal again after a fault, by definition 2 of recovery: the calm that lasts.

::

      inject                  heal                                              next inject, or end of the load
        | x x x x x . . . . . . | . . . . . . . . x x x x x x . . . . . . . x . . . . . . . . . . . . |
        |         |-- first calm ---------------|           |-- lasting calm -------------------------|
        |-------------------- recovered_us ---------------->|

A record (``x``) is **slow** if it failed, or took longer than the limit, ``factor`` times the client's own quantile in
``steady``. A **period** has the length of the criterion (2 s) and is calm if none of its records failed and at most a
share of 1 - q (5 %) is slow. A record belongs to the period in which it was due, but a calm begins only when the slow
records that were due before it have ended: acknowledged, failed, or at their deadline. docs/SLO.md has the definition
step by step.

Choices, made before the figures of any run were looked at:

* The time from the inject is cut into slots of a twentieth of a period (``SLOTS``), because 1 in 20 is the share of
  slow records that a p95 allows: a client that stands still for one slot more than the limit is still calm. Counts by
  slot decide everything, so one pass over the records suffices, however many there are.
* A quantile in ``steady`` counts as 50 ms (``STEADY_US_MIN``) if it is below. The harness can't attribute shorter
  delays to a client (its timers find a stalled process from 50 ms on), and with the default factor of 2 the limit is
  then 100 ms, Kafka's first ``retry.backoff.ms``. Clients that differ below that in ``steady`` are judged by the same
  limit. The floor does not depend on the other clients of a run, so that one slow client does not excuse the others.
* A calm lasts at least one period, as in definition 1. A shorter one before the next fault is not observed.
* Faults that follow each other within a period are one event, since no calm fits between them.
* A record is judged as it stood at the end of its span: what the next fault does to it is that fault's matter. A record
  that was already slow at an inject is not counted for that fault either. (Planted defects asked for this: one record
  without an answer blamed every fault until its deadline.)

Runs recorded before definition 2 are judged by definition 1 (``first_calm.py``).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from aftershock.results.measure.answers import Distributions, Search, searches, slow_allowed
from aftershock.results.measure.first_calm import first_calms
from aftershock.results.measure.samples import ok, recovering, slot_of
from aftershock.results.model.facts import Recovered, RecoveryCriterion
from aftershock.results.spark.tables import beside
from aftershock.results.tables.dims import Dims, Longs, Mask, longs, parted

SLOTS = 20
LIMITS = "run int, number int, client string, limit_us bigint, slot_us bigint, killed array<bigint>, back array<bigint>"
_NEVER_US = 1 << 62


def recoveries(
    samples: DataFrame,
    dims: Dims,
    criteria: Sequence[Sequence[RecoveryCriterion]],
    spread: Sequence[Distributions],
) -> list[dict[tuple[RecoveryCriterion, str], Recovered]]:
    """Return the recoveries of each run, by criterion and client, each by the definition of its run."""
    by_definition: dict[int, list[Search]] = defaultdict(list)
    for search in searches(dims.scenes, criteria, spread):
        by_definition[dims.evidences[search.run].recovery_definition].append(search)
    results: list[dict[tuple[RecoveryCriterion, str], Recovered]] = [{} for _ in dims.scenes]
    found = first_calms(samples, dims, by_definition[1]) | lasting_calms(samples, dims, by_definition[2])
    for search, result in found.items():
        results[search.run][search.criterion, search.client] = result
    return results


def lasting_calms(samples: DataFrame, dims: Dims, found: Sequence[Search]) -> dict[Search, Recovered]:
    """Return the recoveries by definition 2, from one Spark job; a search without records in its span has none."""
    if not found:
        return {}
    limits = list(dict.fromkeys((search.run, search.client, search.limit_us, _slot_us(search)) for search in found))
    rows = [
        (run, number, client_key, *limit, *dims.scenes[run].killed_us(client_key))
        for number, (run, client_key, *limit) in enumerate(limits)
    ]
    killed = any(killed_us for *_, killed_us, _ in rows)
    counted = slow_slots(samples, dims.table(rows, LIMITS), dims, killed=killed).toArrow()
    counted = parted(counted, "number", len(limits))
    slots = {
        limit: Slots(*[longs(part[field.name]) for field in fields(Slots)])
        for limit, part in zip(limits, (part.sort_by([("span", "ascending")]) for part in counted), strict=True)
    }
    results = {}
    for search in found:
        cuts = dims.scenes[search.run].recovery_spans.cuts
        result = recovered(search, slots[search.run, search.client, search.limit_us, _slot_us(search)], cuts)
        if result:
            results[search] = result
    return results


def slow_slots(samples: DataFrame, limits: DataFrame, dims: Dims, *, killed: bool) -> DataFrame:
    """Count records by row of ``limits`` (``LIMITS``), span between two injects, and slot of the span.

    ``failed`` and ``slow`` are judged as of the end of the span, and ``slow_end_us`` is the latest end of a slow record
    until then. ``carried_us`` is the latest end of the records that were outstanding at the end of the span, not yet
    slow, and then failed or were slow. Of the span before the first inject, only such records are counted, in slot 0.
    ``killed`` is False if no row of ``limits`` has a process that was killed.
    """
    columns = recovering(samples, dims).select(
        "run", "client", "intended_us", "done_us", "deadline_us", ok().alias("ok")
    )
    spans = dims.recovery_spans.withColumnRenamed("run", "span_run")
    within = (F.col("intended_us") >= F.col("start_us")) & (F.col("intended_us") < F.col("until_us"))
    same_second = (F.col("run") == F.col("span_run")) & (slot_of("intended_us") == F.col("second"))
    of_spans = columns.join(beside(spans), same_second & within).drop("span_run", "second")
    rows = of_spans.join(beside(limits), ["run", "client"]).withColumn("end_us", _end_us(killed=killed))
    took_us, is_open = F.col("end_us") - F.col("intended_us"), F.col("end_us") >= F.col("until_us")
    known_end_us, limit_us = F.least("end_us", "until_us"), F.col("limit_us")
    failed = ~F.col("ok") & ~is_open
    slow = failed | (known_end_us - F.col("intended_us") > limit_us)
    carried = is_open & ~slow & (~F.col("ok") | (took_us > limit_us))
    slot = F.when(F.col("before"), F.lit(0)).otherwise(F.expr("(intended_us - start_us) div slot_us"))
    return (
        rows.where(~F.col("before") | carried)
        .groupBy("run", "number", "span", slot.alias("slot"))
        .agg(
            F.count("*").alias("n"),
            F.count(F.when(failed, True)).alias("failed"),
            F.count(F.when(slow, True)).alias("slow"),
            F.max(F.when(slow, known_end_us)).alias("slow_end_us"),
            F.max(F.when(carried, F.col("end_us"))).alias("carried_us"),
        )
    )


def _end_us(*, killed: bool) -> Column:
    """Return when a record ended: acknowledged or failed, or at its deadline or the death of its process."""
    if not killed:
        # Spark compiles no code for a filter of arrays, nor for the operators around it: twice the CPU time
        return F.coalesce("done_us", "deadline_us", F.lit(_NEVER_US))
    # nobody waits for a record whose process was killed, and its deadline may be minutes later
    outages = F.filter(F.arrays_zip("killed", "back"), lambda outage: outage["back"] >= F.col("intended_us"))
    died_us = F.greatest(F.get(outages, F.lit(0))["killed"], F.col("intended_us"))
    given_up_us = F.least("deadline_us", F.when(F.size(outages) > 0, died_us))
    return F.coalesce("done_us", given_up_us, F.lit(_NEVER_US))


@dataclass(frozen=True, eq=False)
class Slots:
    """Rows of ``slow_slots`` for one client and limit, in order of spans; 0 stands for no time."""

    span: Longs
    slot: Longs
    n: Longs
    failed: Longs
    slow: Longs
    slow_end_us: Longs
    carried_us: Longs


@dataclass(frozen=True, eq=False)
class _Counts:
    """Counts by slot of one search, without gaps: the start of each slot, and the latest end of its slow records."""

    search: Search
    start_us: Longs
    n: Longs
    failed: Longs
    slow: Longs
    slow_end_us: Longs

    def calm(self, length: int) -> Mask:
        """Return, for each run of ``length`` consecutive slots, whether it is calm."""
        n, failed, slow = (_sums(counts, length) for counts in (self.n, self.failed, self.slow))
        calm: Mask = (failed == 0) & (slow <= slow_allowed(self.search.q, n))
        return calm

    def lasting(self, slots: int, carried_us: int) -> int | None:
        """Return when the slow records before the lasting calm of the first ``slots`` slots had ended, if it is calm.

        The calm begins with a slot that has records and is calm, and every period that begins then or later is calm.
        """
        periods = slots - SLOTS + 1
        if periods < 1:
            return None
        lasts = np.logical_and.accumulate(self.calm(SLOTS)[:periods][::-1])[::-1]
        begins = np.flatnonzero(lasts & self.calm(1)[:periods] & (self.n[:periods] > 0))
        if not len(begins):
            return None
        slow_end_us = int(self.slow_end_us[: begins[0]].max(initial=0))
        return max(self.search.at_us, slow_end_us, min(carried_us, self.search.until_us))


def recovered(search: Search, slots: Slots, cuts: Sequence[int]) -> Recovered | None:
    """Return a client's recovery from a fault; None if no record was due in the span of the search.

    ``cuts`` are the edges of the spans of the run: all injects, and the end of the load.
    """
    at_us, until_us, for_us = search.at_us, search.until_us, search.criterion.for_us
    own = range(cuts.index(at_us), cuts.index(until_us))
    counts = _counts(search, slots, [cuts[span : span + 2] for span in own], own.start)
    total = int(counts.n.sum())
    if not total:
        return None
    # records due in the spans before the injects of the event, outstanding at the inject
    earlier = (slots.span >= own.start - 1) & (slots.span < own.stop - 1)
    carried_us = int(slots.carried_us[earlier].max(initial=0))
    end_us = counts.lasting(len(counts.n), carried_us)
    recovered_us = None if end_us is None or end_us > until_us - for_us else end_us - at_us
    observed_us = max(0, until_us - for_us - at_us)
    if len(counts.n) >= SLOTS and not counts.n[-SLOTS:].any():
        # the records end before the span does, so nobody knows whether the calm lasts
        known = int(np.flatnonzero(counts.n)[-1]) + 1
        known_end_us = counts.lasting(known, carried_us)
        last_us = int(counts.start_us[known]) - for_us if known_end_us is None else known_end_us
        recovered_us, observed_us = None, max(0, last_us - at_us)
    calm = np.flatnonzero(counts.calm(SLOTS) & (_sums(counts.n, SLOTS) > 0))
    first = int(calm[0]) if len(calm) else None
    return Recovered(
        n=total,
        recovered_us=recovered_us,
        observed_us=observed_us,
        definition=2,
        limit_us=search.limit_us,
        heal_us=search.heal_us,
        first_calm_us=None if first is None else int(counts.start_us[first]) - at_us,
        slow_after=None if first is None else int(counts.slow[first:].sum()),
    )


def _counts(search: Search, slots: Slots, spans: Sequence[Sequence[int]], first: int) -> _Counts:
    """Return the counts of all slots of consecutive spans; the last slot of a span may be shorter than the others."""
    slot_us = _slot_us(search)
    starts = [np.arange(start, end, slot_us, dtype=np.int64) for start, end in spans]
    offsets = np.cumsum([0, *map(len, starts)])
    rows = slice(*np.searchsorted(slots.span, [first, first + len(spans)]).tolist())
    at = offsets[slots.span[rows] - first] + slots.slot[rows]
    columns = []
    for name in ("n", "failed", "slow", "slow_end_us"):
        column = np.zeros(offsets[-1], dtype=np.int64)
        column[at] = getattr(slots, name)[rows]
        columns.append(column)
    return _Counts(search, np.concatenate(starts), *columns)


def _sums(counts: Longs, length: int) -> Longs:
    running = np.concatenate([[0], np.cumsum(counts)])
    sums: Longs = running[length:] - running[:-length]
    return sums


def _slot_us(search: Search) -> int:
    """Return the length of a slot, rounded up, so that a period of ``SLOTS`` slots is not shorter than the calm."""
    return -(-search.criterion.for_us // SLOTS)
