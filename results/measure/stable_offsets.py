"""Last stable offsets over time: how far readers of committed records are behind, and standstills.

The last stable offset of a partition is the first offset of its oldest open transaction, or the high watermark
(``LogOffsetSnapshot``). A run samples both twice a second from each partition's leader, while it answers.

* The **lag** of a partition is the time for which the oldest record that readers of committed records can't read yet
  has been below the high watermark: 0 if they can read all. It is exact to a period of the samples.
* A **standstill** is a time in which the last stable offset stays at one value below the high watermark. Its
  transaction has been open for at least that long. It ends where samples are missing for ``GAP_US``.

A new leader's high watermark is lower at first, until its followers have fetched from it. So the highest values so far
count, unless the log stays shorter for ``GAP_US``: then it was truncated, or the topic was created again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.transactions import END, STABLE, written_in_transactions
from aftershock.results.model.facts import Lag, StableOffsets, Standstill
from aftershock.results.tables.dims import Longs, longs

GAP_US = 5_000_000
"""Time without samples, or with lower offsets, after which earlier samples no longer count."""
LONG_US = 2_000_000
"""Least length of the standstills that are kept besides the longest: shorter ones hold no reader back for longer than
it may stand still."""
_SECOND_US = 1_000_000

Place = tuple[str, int]


def sampled_offsets(metrics: DataFrame) -> DataFrame:
    """Return the samples of last stable offsets as ``run place t_us stable end``; a place is ``topic/partition``."""
    is_stable, is_end = (F.col("name").startswith(f"{name}/") for name in (STABLE, END))
    value = F.col("value").cast("bigint")
    place = F.substring_index("name", "/", -2).alias("place")
    pairs = (
        metrics.where(is_stable | is_end)
        .groupBy("run", place, "t_us", "broker_id")
        .agg(F.max(F.when(is_stable, value)).alias("stable"), F.max(F.when(is_end, value)).alias("end"))
    )
    return pairs.where("stable is not null and end is not null").select("run", "place", "t_us", "stable", "end")


def stable_offsets(rows: pa.Table) -> dict[Place, StableOffsets]:
    """Return the last stable offsets of one run's partitions, from its rows of ``sampled_offsets``."""
    ordered = rows.sort_by([("place", "ascending"), ("t_us", "ascending")])
    places = ordered["place"].to_pylist()
    t_us, stable, end = (longs(ordered[name]) for name in ("t_us", "stable", "end"))
    starts = [number for number, place in enumerate(places) if number == 0 or place != places[number - 1]]
    found = {}
    for start, stop in pairwise([*starts, len(places)]):
        topic, _, number = places[start].rpartition("/")
        part = slice(start, stop)
        found[topic, int(number)] = _of_partition(t_us[part], stable[part], end[part])
    return found


def lag_of_client(evidence: Evidence, client: Client, stable: Mapping[Place, StableOffsets]) -> tuple[Lag, ...]:
    """Return the lag of all partitions to which a client writes in transactions, by second; the age is the oldest."""
    topics = written_in_transactions(evidence, client)
    return merged_lags(offsets.lags for (topic, _), offsets in stable.items() if topic in topics)


def merged_lags(partitions: Iterable[tuple[Lag, ...]]) -> tuple[Lag, ...]:
    seconds: dict[int, list[Lag]] = defaultdict(list)
    for lags in partitions:
        for lag in lags:
            seconds[lag.at_us].append(lag)
    return tuple(
        Lag(at_us, sum(lag.records for lag in lags), max(lag.oldest_us for lag in lags))
        for at_us, lags in sorted(seconds.items())
    )


def _of_partition(t_us: Longs, stable: Longs, end: Longs) -> StableOffsets:
    lags: dict[int, tuple[int, int]] = {}
    standstills: list[Standstill] = []
    advances = 0
    for start, stop in _epochs(t_us, end):
        times_us, part = t_us[start:stop], slice(start, stop)
        offsets, ends = (np.maximum.accumulate(values[part]) for values in (stable, end))
        advances += int(np.count_nonzero(np.diff(offsets)))
        behind = offsets < ends
        # the first sample in which the high watermark was above an offset
        since_us = times_us[np.minimum(np.searchsorted(ends, offsets, "right"), len(times_us) - 1)]
        ages_us = np.where(behind, times_us - since_us, 0)
        seconds = times_us // _SECOND_US
        first = np.flatnonzero(np.r_[True, np.diff(seconds) > 0])
        worst = (
            np.maximum.reduceat(values, first).tolist() for values in (np.where(behind, ends - offsets, 0), ages_us)
        )
        lags |= dict(zip(seconds[first].tolist(), zip(*worst, strict=True), strict=True))
        standstills += _standstills(times_us, offsets, ends)
    longest = max(standstills, key=lambda one: one.end_us - one.start_us, default=None)
    kept = [one for one in standstills if one is longest or one.end_us - one.start_us >= LONG_US]
    by_second = (Lag((second + 1) * _SECOND_US, *lag) for second, lag in sorted(lags.items()))
    return StableOffsets(advances, int(t_us[-1]), int(stable[-1]), int(end[-1]), tuple(kept), tuple(by_second))


def _epochs(t_us: Longs, end: Longs) -> list[tuple[int, int]]:
    """Return the parts of the samples of one log, as index ranges: a part ends where the log stays shorter."""
    parts: list[tuple[int, int]] = []
    start = 0
    while True:
        lower = end[start:] < np.maximum.accumulate(end[start:])
        edges = np.flatnonzero(np.diff(np.r_[False, lower, False].astype(np.int8)))
        dips = [
            start + int(first)
            for first, stop in zip(edges[::2], edges[1::2], strict=True)
            if t_us[start + stop - 1] - t_us[start + first] >= GAP_US
        ]
        if not dips:
            return [*parts, (start, len(end))]
        parts.append((start, dips[0]))
        start = dips[0]


def _standstills(t_us: Longs, offsets: Longs, ends: Longs) -> list[Standstill]:
    behind = offsets < ends
    changed = np.r_[True, (np.diff(offsets) > 0) | np.diff(behind) | (np.diff(t_us) > GAP_US)]
    firsts = np.flatnonzero(changed)
    lasts = np.r_[firsts[1:], len(t_us)] - 1
    return [
        Standstill(int(offsets[first]), int(ends[last]), int(t_us[first]), int(t_us[last]))
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
        if behind[first] and last > first
    ]
