"""From the rows that Spark's jobs gave to a run's ``Facts``. Pure: nothing here knows Spark but by its rows' names.

What recovery is looked for, how fast is calm, and where it may have begun. Pure; Spark's part is in ``recovery.py``.

Rules: calm is a client's own pace in steady times a factor. Where in time it may begin, and where it must, is told by
counts of slots, with certainty; between the two the records decide.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aftershock.results.checks.obligations.stalls import SECOND_US
from aftershock.results.evidence.phases import RUN, Interval
from aftershock.results.measure.facts import (
    MAX,
    Calm,
    Distribution,
    Failed,
    Finding,
    Host,
    Longest,
    Outage,
    Perf,
    RackFlow,
    Recovered,
    Slow,
    Stall,
    Wanted,
)
from aftershock.results.measure.latency import Histogram
from aftershock.results.measure.recovery import GAP_SLOT_US
from aftershock.results.measure.tables import Longs, Scene
from aftershock.results.slo import quantile_needs

PERF_METRIC, PERF_QS = "produce.service", (0.5, 0.95, 0.99, 0.999)

Key = tuple[str, str, str]
Shares: TypeAlias = npt.NDArray[np.float64]
Spread = Mapping[Key, Distribution]
Answers = dict[int, list[Any]]
"""Rows by the number of their run."""


def by_run(rows: Iterable[Any]) -> Answers:
    """Sorts rows out."""
    sorted_out: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        sorted_out[row["run"]].append(row)
    return sorted_out


def distribution(row: Any, asked: Sequence[float], qs: Collection[float]) -> Distribution:
    """Of a row of ``latency.quantiles`` for ``asked``; of those ``qs`` alone."""
    at = {q: row[f"q{index}"] for index, q in enumerate(asked) if q in qs}
    return Distribution(row["n"], row["censored"], row["slowest_us"], at, row["mean_us"])


def banded(told: Distribution, seen: Histogram, qs: Iterable[float], confidences: Iterable[float]) -> Distribution:
    """``told`` with its bands: the values at the ranks between which the quantiles of what was sampled lie.

    How many of n samples lie below a quantile is binomial (order statistics; see Hahn and Meeker, Statistical
    Intervals, 5.2). It says how far chance in sampling may have moved the figure, and nothing of anything else.
    """
    asked = [(q, confidence) for q in qs if q < MAX for confidence in confidences]
    ps = [[(1 + side * confidence) / 2 for _, confidence in asked] for side in (-1, 1)]
    ends = binomial_quantiles(np.array(ps), told.n, np.array([q for q, _ in asked])).tolist()
    bands = {one: (seen.at_rank(low), seen.at_rank(high + 1)) for one, low, high in zip(asked, *ends, strict=True)}
    return replace(told, bands=bands)


def binomial_quantiles(p: Shares, n: int, q: Shares) -> Longs:
    """The fewest of ``n`` that no more than so many are with a probability of at least ``p``, each being so with ``q``.

    (``scipy.stats`` has it as well, and takes a second to import.)
    """
    from scipy.special import bdtr, bdtrik  # noqa: PLC0415 - a quarter of a second, in which Spark starts

    near = np.ceil(bdtrik(p, n, q)) if n else np.zeros(np.broadcast(p, q).shape)
    found: Longs = (near - ((near > 0) & (bdtr(near - 1, n, q) >= p))).astype(np.int64)
    return found


def rack_flows(found: Iterable[RackFlow]) -> tuple[RackFlow, ...]:
    """What went between racks, in the order of its names."""

    def name(flow: RackFlow) -> tuple[str, ...]:
        return flow.op, flow.client, flow.window, flow.client_rack or "", flow.broker_rack or ""

    return tuple(sorted(found, key=name))


def slowest(rows: Iterable[Any]) -> dict[tuple[str, str], tuple[Slow, ...]]:
    """The slowest by op and client, the worst first."""
    told: dict[tuple[str, str], list[Slow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["op"], row["client"], row["place"])):
        told[row["op"], row["client"]].append(Slow(*[row[one.name] for one in fields(Slow)]))
    return {key: tuple(some) for key, some in told.items()}


def host(row: Any) -> Host:
    """How the host fared."""
    return Host(*[row[one.name] for one in fields(Host)])


def backwards(seen: Mapping[Key, Histogram], scene: Scene) -> int:
    """Records and phases in which the clock went backwards."""
    phases = sum(phase.end_us < phase.start_us for phase in scene.evidence.phases)
    told = (one for (metric, _, window), one in seen.items() if window in ("warmup", RUN) and metric in _TAKEN)
    return phases + sum(one.backwards for one in told)


_TAKEN = ("produce.service", "consume.latency", "commit.service")
"""Where it shows that something was done before it was begun: one metric of each kind of row."""


def longest(rows: Iterable[Any], scene: Scene, spread: Spread, slot_us: int = GAP_SLOT_US) -> dict[Key, Longest]:
    """Gaps by window, of rows of ``recovery.stretches``; a shorter one than a slot counts as one.

    Where records were due and none succeeded, the gap is as long as the window.
    """
    due = {(f"{metric.split('.')[0]}.gap", client, window) for metric, client, window in spread}
    silent = {key: Longest(0, max(end - start for start, end in scene.windows[key[2]])) for key in due}
    mine: dict[tuple[str, str], dict[int, Any]] = defaultdict(dict)
    for row in rows:
        mine[row["metric"], row["client"]][row["segment"]] = row
    found = {
        (*whose, window): _longest(some, spans, scene, slot_us)
        for whose, some in mine.items()
        for window, spans in scene.windows.items()
    }
    return silent | {key: gap for key, gap in found.items() if gap.n}


def _longest(stretches: Mapping[int, Any], spans: Iterable[Interval], scene: Scene, slot_us: int) -> Longest:
    """The window's ends count as successes would; a part of it without any is one gap."""
    gaps, n = [], 0
    for start_us, end_us in spans:
        at_us = start_us
        for segment in scene.segments.of([(start_us, end_us)]):
            if row := stretches.get(segment):
                gaps += [row["first_us"] - at_us, row["gap_us"]]
                at_us, n = row["last_us"], n + row["n"]
        gaps.append(end_us - at_us)
    return Longest(n, max(slot_us, *gaps))


def findings(rows: Iterable[Any]) -> dict[Key, Finding]:
    """What integrity rules found."""

    def one(row: Any) -> Finding:
        samples = tuple((record["producer_id"], record["seq"]) for record in row["samples"] or ())
        return Finding(row["rule"], row["side"], row["client"], row["examined"], row["broken"], samples)

    return {(each.rule, each.side, each.client): each for each in map(one, rows)}


def stalls(rows: Iterable[Any]) -> tuple[Stall, ...]:
    """The stalls, in order of side, client, partition and time."""
    found = [Stall(*[row[name] for name in ("side", "client", "partition", "start_us", "end_us")]) for row in rows]
    return tuple(sorted(found, key=lambda one: (one.side, one.client, _number(one.partition), one.start_us)))


def _number(partition: int | None) -> int:
    return -1 if partition is None else partition


def failures(rows: Iterable[Any]) -> dict[tuple[str, str], tuple[Failed, ...]]:
    """What failed, by side and client, in order of time."""
    failed: dict[tuple[str, str], list[Failed]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["side"], row["client"], row["from_s"], row["to_s"])):
        one = Failed(row["from_s"] * SECOND_US, (row["to_s"] + 1) * SECOND_US, row["n"])
        failed[row["side"], row["client"]].append(one)
    return {key: tuple(some) for key, some in failed.items()}


def unavailable(found: Sequence[Stall], scene: Scene, spread: Spread) -> dict[Key, tuple[Outage, ...]]:
    """How long each partition stood still in each window in which something was due."""
    due = {(metric.split(".")[0], client, window) for metric, client, window in spread if metric.endswith(".latency")}
    return {key: tuple(_outages(key, found, scene)) for key in sorted(due)}


def _outages(key: Key, found: Sequence[Stall], scene: Scene) -> list[Outage]:
    side, client, window = key
    lasted: dict[int | None, list[int]] = defaultdict(list)
    for stall in found:
        if (stall.side, stall.client) == (side, client):
            shared = [min(stall.end_us, end) - max(stall.start_us, start) for start, end in scene.windows[window]]
            lasted[stall.partition] += [us for us in shared if us > 0]
    return [
        Outage(partition, sum(some), max(some), len(some))
        for partition, some in sorted(lasted.items(), key=lambda item: _number(item[0]))
        if some
    ]


def perf(seen: Mapping[Key, Histogram], stretches: Iterable[Any], scene: Scene) -> dict[str, Perf]:
    """The figures of ``kafka-producer-perf-test`` for each client, from warm-up's end to its last success."""
    last: dict[str, int] = defaultdict(int)
    for row in stretches:
        if row["metric"] == "produce.gap":
            last[row["client"]] = max(last[row["client"]], row["last_us"])
    return {
        client: _perf(one, seen["produce.latency", client, RUN].bytes, last[client] - scene.judged_from_us)
        for (metric, client, window), one in sorted(seen.items(), key=itemgetter(0))
        if (metric, window) == (PERF_METRIC, RUN) and one.valued
    }


def _perf(seen: Histogram, bytes_: int, lasted_us: int) -> Perf:
    """Its quantiles are of what was acknowledged: the tool's index counts from 0, and is cut to whole numbers."""
    n, seconds = seen.valued, max(lasted_us, 1) / 1e6
    took_us = [seen.mean_us, seen.slowest_us, *(seen.at_rank(min(n, int(q * n) + 1)) for q in PERF_QS)]
    return Perf(n, seconds, n / seconds, bytes_ / 2**20 / seconds, *((us or 0) / 1e3 for us in took_us))


SLOT_US = 100_000
Counts: TypeAlias = npt.NDArray[np.int64]


def calms_of(scene: Scene, wanted: Wanted) -> list[Calm]:
    """As is usual, for every fault that began, and as the SLOs have it."""
    begun = [step["id"] for step in scene.evidence.steps if scene.inject_us(step["id"]) is not None]
    asked = [calm for calm in wanted.recoveries if calm.fault in begun]
    return list(dict.fromkeys([*map(Calm, begun), *asked]))


def usual(calm: Calm) -> bool:
    """Whether it is as calm as is looked for where nobody says how."""
    return calm == Calm(calm.fault)


@dataclass(frozen=True)
class Pace:
    """What calm is for a client: for ``for_us`` none fails, and of n at most ``allowed`` take over ``limit_us``."""

    run: int
    client: str
    end_us: int
    limit_us: int
    q: Fraction
    for_us: int

    @property
    def row(self) -> tuple[str, int, int, int, int]:
        """``client end_us limit_us num den``, as the tables have it."""
        return self.client, self.end_us, self.limit_us, *self.q.as_integer_ratio()

    def allowed(self, n: "Counts") -> "Counts":
        """How many of n may be slow: nearest-rank quantile <= limit is the same as at least ceil(q n) within it."""
        found: Counts = n * (self.q.denominator - self.q.numerator) // self.q.denominator
        return found


@dataclass(frozen=True)
class Sought:
    """The ``number``-th calm of a run, looked for at a client's pace."""

    number: int
    calm: Calm
    pace: Pace
    at_us: int


def sought(scenes: Sequence[Scene], calms: Sequence[Sequence[Calm]], spread: Sequence[Spread]) -> list[Sought]:
    """Each calm for each client that has a pace: where steady has too little to tell, there is none."""
    found = []
    for run, scene in enumerate(scenes):
        for number, calm in enumerate(calms[run]):
            for client in scene.evidence.clients:
                limit_us = _limit_us(calm, spread[run].get(("produce.latency", client.key, "steady")))
                at_us = scene.inject_us(calm.fault)
                if limit_us is not None and at_us is not None:
                    pace = Pace(run, client.key, scene.end_us, limit_us, Fraction(repr(calm.q)), calm.for_us)
                    found.append(Sought(number, calm, pace, at_us))
    return found


def _limit_us(calm: Calm, steady: Distribution | None) -> int | None:
    """The slowest that counts as calm, in whole microseconds. Not as floats: 1.1 * 3000 is over 3300."""
    at_us = steady.at[calm.q] if steady and steady.n >= quantile_needs(calm.q) else None
    return None if at_us is None else int(Fraction(repr(calm.factor)) * at_us)


@dataclass(frozen=True)
class Look:
    """Where the records have to be looked at one by one: calm begins from ``look_us`` on, before ``until_us``."""

    look_us: int
    until_us: int


@dataclass(frozen=True, eq=False)
class Slots:
    """What was counted at a pace (``recovery.pace_slots``), a row each slot and segment, which is -1 outside of all."""

    segment: Counts
    slot: Counts
    n: Counts
    failed: Counts
    slow: Counts


def where_to_look(one: Sought, slots: Slots | None) -> list[Look]:
    """The slots in which calm may begin, up to the first in which it must; where they are near each other, as one look.

    ::

        slot             |=====|                 the stretch begins with a record of the slot
        surely in it           |---------|       records of the slots that lie wholly in any such stretch
        perhaps in it    |--------------------|  records of the slots that one may reach into

    It may if none failed of those surely in it, and the slow ones of them are few enough for all that are perhaps in
    it; it must if none failed of all, and all that are slow are few enough for those surely in it. ``slots`` are those
    of the pace, if it has any.
    """
    if slots is None:
        return []
    slot_us, pace = slot_us_of(one.pace.for_us), one.pace
    first = slots.slot.min()
    sums = {name: _running(getattr(slots, name), slots.slot - first) for name in ("n", "failed", "slow")}
    at = np.flatnonzero(np.diff(sums["n"]))
    surely = {name: _within(of, at + 1, at + pace.for_us // slot_us) for name, of in sums.items()}
    perhaps = {name: _within(of, at, at + 2 + (pace.for_us - 2) // slot_us) for name, of in sums.items()}
    start_us = (at + first) * slot_us
    after, whole = start_us + slot_us > one.at_us, start_us >= one.at_us
    may = after & (surely["failed"] == 0) & (surely["slow"] <= pace.allowed(perhaps["n"]))
    may &= start_us + pace.for_us <= pace.end_us
    must = whole & (perhaps["failed"] == 0) & (perhaps["slow"] <= pace.allowed(surely["n"]))
    must &= start_us + slot_us + pace.for_us <= pace.end_us
    begins_us = start_us[may & (start_us <= min(start_us[must], default=pace.end_us))]
    apart = np.split(begins_us, np.flatnonzero(np.diff(begins_us) > pace.for_us) + 1)
    return [Look(max(int(some[0]), one.at_us), int(some[-1]) + slot_us) for some in apart if len(some)]


def slot_us_of(for_us: int) -> int:
    """A tenth of a second, or a quarter of what is looked for."""
    return max(1, min(SLOT_US, for_us // 4))


def _running(counted: Counts, at: Counts) -> Counts:
    """How many there were before each slot, and before the end."""
    counts = np.zeros(at.max() + 2, dtype=np.int64)
    np.add.at(counts, at + 1, counted)
    return np.cumsum(counts)


def _within(running: Counts, start: Counts, end: Counts) -> Counts:
    last = len(running) - 1
    found: Counts = running[np.minimum(end, last)] - running[np.minimum(start, last)]
    return found


def recovered(
    looked: Iterable[tuple[Sought, int | None]], slots: Mapping[Pace, Slots], scene: Scene
) -> dict[tuple[Calm, str], Recovered]:
    """The answers of one run by calm and client, with how much there was to look at, and how long."""
    # an inject is the edge of a segment; what is in none was before all
    starts_us = np.array([*(start for start, _ in scene.segments.spans), -1])
    found = {}
    for one, recovered_us in looked:
        seen = slots.get(one.pace)
        begun = seen.n[starts_us[seen.segment] >= one.at_us] if seen else ()
        observed_us = max(0, scene.end_us - one.at_us - one.calm.for_us)
        if len(begun):
            found[one.calm, one.pace.client] = Recovered(int(sum(begun)), recovered_us, observed_us)
    return found
