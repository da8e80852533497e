"""Figures of an audit's clients, counted from their records: intended times, ends and statuses in ``outcomes/``.

Nothing is taken from ``analysis.json``, so a stored card can be recounted from its evidence without Spark. Recoveries
follow the definition in docs/SLO.md, by the same rules as the judge's (``measure/recovery.py``).

A **unit** is one copy of a client in one repetition of the fault. Only repetitions count in which every fault was
witnessed and met traffic.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.files import read_lines
from aftershock.results.evidence.phases import Phase
from aftershock.results.measure.answers import STEADY_US_MIN, Search
from aftershock.results.measure.recovery import SLOTS, Slots, recovered
from aftershock.results.model.facts import Recovered, RecoveryCriterion
from aftershock.results.slo.metrics import quantile_needs
from aftershock.results.studies.part import Part
from aftershock.results.studies.suite import COPIES, Row, copies
from aftershock.results.tables.dims import Longs, Mask, Scene, firsts, longs

_US = 1_000_000
_NEVER_US = 1 << 62
CALM = RecoveryCriterion("", 0.95, 10.0, 2 * _US)
"""As before: in every 2 s, the p95 latency is at most ten times that of the steady phase."""
COLUMNS = ("intended_us", "done_us", "deadline_us", "status")


class Unit(NamedTuple):
    """Repetition of the fault, from 1, and copy of the client, from 0."""

    block: int
    copy: int


@dataclass(frozen=True)
class Value:
    """Figure of a unit in seconds; if it is ``healed``, the heal ended what the client alone would have prolonged.

    A healed value, and one that is ``open`` because the repetition ended first, are lower bounds.
    """

    s: float
    healed: bool = False
    open: bool = False

    @property
    def is_bound(self) -> bool:
        return self.healed or self.open


Values: TypeAlias = Mapping[Unit, Value]


@dataclass(frozen=True, eq=False)
class Records:
    """Records of one arm and operation, by intended time; ``end_us`` is ``_NEVER_US`` if a record has no end."""

    due_us: Longs
    end_us: Longs
    ok: Mask

    @classmethod
    def of(cls, rows: pa.Table) -> "Records":
        due_us = longs(rows["intended_us"])
        order = np.argsort(due_us, kind="stable")
        done_us, deadline_us = (longs(rows[name], _NEVER_US) for name in ("done_us", "deadline_us"))
        ended_us = np.where(done_us == _NEVER_US, deadline_us, done_us)
        acknowledged = np.asarray(rows["status"].to_pylist(), dtype=object) == "ok"
        return cls(due_us[order], ended_us[order], acknowledged[order])

    def between(self, start_us: int, end_us: int) -> "Records":
        """Return the records that were due from ``start_us`` until ``end_us``."""
        rows = slice(*np.searchsorted(self.due_us, [start_us, end_us]).tolist())
        return Records(self.due_us[rows], self.end_us[rows], self.ok[rows])

    def quantile_us(self, q: float) -> int | None:
        """Return the nearest-rank quantile of the latencies; None if it is a record that was never acknowledged."""
        took_us = np.where(self.ok, self.end_us - self.due_us, _NEVER_US)
        rank = math.ceil(Fraction(repr(q)) * len(took_us))
        value = int(np.sort(took_us)[max(0, rank - 1)]) if len(took_us) else _NEVER_US
        return None if value == _NEVER_US else value

    def longest_us(self, until_us: int) -> int:
        """Return the longest time that a record took or, if it was open at ``until_us``, had taken by then."""
        return int((np.minimum(self.end_us, until_us) - self.due_us).max(initial=0))

    def slots(self, cuts: tuple[int, ...], limit_us: int, slot_us: int) -> Slots:
        """Count the records by span between two ``cuts`` and by slot, as ``measure/recovery.py`` does with Spark."""
        edges = np.array(cuts, dtype=np.int64)
        span = np.searchsorted(edges, self.due_us, side="right") - 1
        inside = (span >= 0) & (span < len(edges) - 1)
        span, due_us, end_us, ok = span[inside], self.due_us[inside], self.end_us[inside], self.ok[inside]
        start_us, until_us = edges[span], edges[span + 1]
        is_open = end_us >= until_us
        known_us = np.minimum(end_us, until_us)
        failed = ~ok & ~is_open
        slow = failed | (known_us - due_us > limit_us)
        carried = is_open & ~slow & (~ok | (end_us - due_us > limit_us))
        before = span == 0
        slot = np.where(before, 0, (due_us - start_us) // slot_us)
        order = np.lexsort((slot, span))
        order = order[(~before | carried)[order]]
        starts = firsts([span[order], slot[order]]) if len(order) else np.zeros(0, dtype=np.int64)

        def counted(rows: Mask) -> Longs:
            return np.add.reduceat(rows[order].astype(np.int64), starts) if len(starts) else starts

        def latest(rows: Mask, times_us: Longs) -> Longs:
            marked = np.where(rows, times_us, 0)[order]
            return np.maximum.reduceat(marked, starts) if len(starts) else starts

        return Slots(
            span=span[order][starts],
            slot=slot[order][starts],
            n=counted(np.ones(len(span), dtype=np.bool_)),
            failed=counted(failed),
            slow=counted(slow),
            slow_end_us=latest(slow, known_us),
            carried_us=latest(carried, end_us),
        )


class Recount:
    """Figures of the arms of one workload of a part and of its copies, counted from records."""

    def __init__(self, part: Part, workload: str) -> None:
        self.part = part
        of_row = [row for row in part.run.timeline["workloads"] if row["name"] in (workload, workload + COPIES)]
        self.arms = {name: arm for row in of_row for name, arm in row["arms"].items()}
        self._workload_of = {name: row for row in of_row for name in row["arms"]}
        self._outcomes: dict[str, pa.Table] = {}
        self._records: dict[tuple[str, str], Records] = {}

    @cached_property
    def scene(self) -> Scene:
        """Phases, injects and heals of the run. Its clients are left out: no fault of an audit stops a producer."""
        phases = [
            Phase(row["name"], row["fault"], row["start_us"], row["end_us"], row.get("block", 0), row.get("entry"))
            for row in self.part.windows()
        ]
        journal = tuple(read_lines(self.part.home / "journal.jsonl"))
        run, timeline = self.part.run.run, self.part.run.timeline
        return Scene(
            Evidence(self.part.home, run, timeline, (), {}, tuple(phases), (), journal, (), {}, manifested=True)
        )

    @cached_property
    def faults(self) -> dict[int, list[str]]:
        """Ids of the faults by repetition in which all took effect."""
        trials, _ = self.part.run.trials()
        found: dict[int, list[str]] = {}
        for step in self.part.run.timeline["steps"]:
            if trials and step.get("block") in trials:
                found.setdefault(step["block"], []).append(step["id"])
        return found

    def sides(self, arm: str) -> list[str]:
        return [side for side in ("produce", "consume") if self._workload_of[arm].get(side)]

    def key(self, arm: str) -> str:
        """Return the name of an arm in measurements, ``workload/arm``."""
        return f"{self._workload_of[arm]['name']}/{arm}"

    def records(self, arm: str, op: str = "produce") -> Records:
        if (arm, op) not in self._records:
            # of all arms at once, because opening the files takes longer than reading them
            if op not in self._outcomes:
                self._outcomes[op] = self.part.outcomes(op, ("workload", "arm", *COLUMNS))
            of_arm = (pc.field("workload") == self._workload_of[arm]["name"]) & (pc.field("arm") == arm)
            self._records[arm, op] = Records.of(self._outcomes[op].filter(of_arm))
        return self._records[arm, op]

    def values(self, row: Row, client: str) -> dict[Unit, Value]:
        """Return the units of a client, with the figure of a row."""
        measures = {
            "recovery": self._recovery,
            "after_heal": self._after_heal,
            "wait": self._wait,
            "silence": self._silence,
            "p95": self._p95,
        }
        found = {}
        for copy, arm in enumerate(self.arms_of(client)):
            for block in self.faults:
                if (value := measures[row.figure](arm, block)) is not None:
                    found[Unit(block, copy)] = value
        return found

    def arms_of(self, client: str) -> list[str]:
        """Return the arms of a client: its copies."""
        return [arm for arm in copies(client) if arm in self.arms]

    def recovered(self, arm: str, fault: str) -> Recovered | None:
        """Return the recovery of an arm from a fault; None if the arm had too few records in the steady phase."""
        scene, records = self.scene, self.records(arm)
        at_us = scene.inject_us(fault)
        limit_us = self.limit_us(arm)
        if at_us is None or at_us >= scene.end_us or limit_us is None:
            return None
        until_us, cuts = scene.until_us(at_us, CALM.for_us), scene.recovery_spans.cuts
        search = Search(0, arm, CALM, at_us, until_us, limit_us, scene.heal_us(fault))
        return recovered(search, records.slots(cuts, limit_us, -(-CALM.for_us // SLOTS)), cuts)

    def limit_us(self, arm: str) -> int | None:
        """Return what a record of an arm may take; None with too few records in the steady phase."""
        steady = self._in_window(self.records(arm), "steady")
        steady_us = steady.quantile_us(CALM.q)
        if steady_us is None or len(steady.due_us) < quantile_needs(CALM.q):
            return None
        return int(CALM.factor) * max(steady_us, STEADY_US_MIN)

    def slowdown(self, client: str) -> float | None:
        """Return the p95 latency under the fault relative to the steady phase, of all copies of a client."""
        under, steady = (
            self._quantile_us([self._in_window(self.records(arm), window) for arm in self.arms_of(client)])
            for window in ("fault", "steady")
        )
        return under / steady if under is not None and steady else None

    def gaps_s(self, arm: str, side: str) -> dict[int, float]:
        """Return the longest time without a success of an operation in each repetition; none if it has none."""
        if side not in self.sides(arm):
            return {}
        ended_us = self._successes_us(arm, side)
        return {block: self._longest_gap_s(ended_us, *self._span(block)) for block in self.faults}

    def failed(self, arm: str) -> int:
        return int((~self.records(arm).ok).sum())

    def failed_by_block(self, arm: str) -> dict[int, int]:
        """Return the number of records that an arm gave up, by the repetition in which they were due."""
        records = self.records(arm)
        spans = {block: self._span(block) for block in self.faults}
        return {block: int((~records.between(*span).ok).sum()) for block, span in spans.items()}

    def slowest(self, client: str) -> str:
        """Describe the record under a fault that a client wrote and that took longest.

        For example, ``its record 0:1841 of orders/3 took 4.9 s``.
        """
        from_us = min((self._span(block)[0] for block in self.faults), default=0)
        worst: dict[str, Any] | None = None
        for arm in self.arms_of(client):
            columns = ("producer_id", "seq", "topic", "partition", *COLUMNS)
            rows = self.part.outcomes("produce", columns, self.key(arm)).to_pylist()
            for row in (row for row in rows if row["status"] == "ok" and row["intended_us"] >= from_us):
                if worst is None or row["done_us"] - row["intended_us"] > worst["done_us"] - worst["intended_us"]:
                    worst = row
        if worst is None:
            return "no record of it was acknowledged"
        took_s = (worst["done_us"] - worst["intended_us"]) / _US
        place = f"{worst['topic']}/{worst['partition']}"
        return f"its record {worst['producer_id']}:{worst['seq']} of {place} took {took_s:.1f} s"

    def _recovery(self, arm: str, block: int) -> Value | None:
        return _slowest(map(_until_heal, self._recoveries(arm, block)))

    def _after_heal(self, arm: str, block: int) -> Value | None:
        return _slowest(map(_from_heal, self._recoveries(arm, block)))

    def _recoveries(self, arm: str, block: int) -> list[Recovered]:
        found = [self.recovered(arm, fault) for fault in self.faults[block]]
        return [
            recovery for recovery in found if recovery is not None and (recovery.observed_us or recovery.recovered_us)
        ]

    def _wait(self, arm: str, block: int) -> Value | None:
        start_us, until_us = self._span(block)
        due = self.records(arm).between(start_us, until_us)
        longest_us = due.longest_us(self.scene.end_us)
        is_open = bool(((due.end_us > self.scene.end_us) | ~due.ok).any())
        return Value(longest_us / _US, open=is_open) if len(due.due_us) else None

    def _silence(self, arm: str, block: int) -> Value | None:
        columns = ("partition", "done_us")
        rows = self.part.outcomes("consume", columns, self.key(arm)).drop_null()
        partition, done_us = (longs(rows[name]) for name in columns)
        start_us, until_us = self._span(block)
        gaps_s = [
            self._longest_gap_s(np.sort(done_us[partition == number]), start_us, until_us)
            for number in np.unique(partition)
        ]
        return Value(max(gaps_s)) if gaps_s else None

    def _p95(self, arm: str, block: int) -> Value | None:
        spans = [
            (phase.start_us, phase.end_us)
            for phase in self.scene.evidence.phases
            if phase.name == "fault" and phase.fault in self.faults[block]
        ]
        due = self.records(arm).between(min(start for start, _ in spans), max(end for _, end in spans))
        if len(due.due_us) < quantile_needs(CALM.q):
            return None
        us = due.quantile_us(CALM.q)
        return Value(due.longest_us(self.scene.end_us) / _US, open=True) if us is None else Value(us / _US)

    def _span(self, block: int) -> tuple[int, int]:
        """Return the time from the first inject of a repetition to its end."""
        injects_us = [self.scene.inject_us(fault) for fault in self.faults[block]]
        ends_us = [phase.end_us for phase in self.scene.evidence.phases if phase.block == block]
        return min(at_us for at_us in injects_us if at_us is not None), max(ends_us)

    def _successes_us(self, arm: str, side: str) -> Longs:
        records = self.records(arm, side)
        done = records.end_us if side == "consume" else records.end_us[records.ok]
        return np.sort(done[done < _NEVER_US])

    def _longest_gap_s(self, times_us: Longs, start_us: int, end_us: int) -> float:
        """Return the longest time between two of the ordered times; the edges of the span count as times."""
        inside = times_us[slice(*np.searchsorted(times_us, [start_us, end_us]).tolist())]
        edges = np.concatenate([[start_us], inside, [end_us]])
        return float(np.diff(edges).max()) / _US

    def _in_window(self, records: Records, window: str) -> Records:
        parts = [records.between(*span) for span in self.scene.windows.get(window, ())]
        return _joined(parts)

    def _quantile_us(self, parts: Iterable[Records]) -> int | None:
        joined = _joined([*parts])
        return joined.quantile_us(CALM.q)


def _joined(parts: list[Records]) -> Records:
    if not parts:
        return Records(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    return Records(*[np.concatenate([getattr(part, name) for part in parts]) for name in ("due_us", "end_us", "ok")])


def _until_heal(recovery: Recovered) -> Value:
    """Return the time from the inject until a client was normal again by itself, at least until the heal."""
    if recovery.before_heal is False and recovery.heal_us is not None:
        return Value(recovery.heal_us / _US, healed=True)
    if recovery.recovered_us is None:
        return Value(recovery.observed_us / _US, open=True)
    return Value(recovery.recovered_us / _US)


def _from_heal(recovery: Recovered) -> Value:
    """Return the time from the heal until a client was normal again, 0 if it was before."""
    heal_us = recovery.heal_us or 0
    if recovery.recovered_us is None:
        return Value(max(0, recovery.observed_us - heal_us) / _US, open=True)
    return Value(max(0, recovery.recovered_us - heal_us) / _US)


def _slowest(values: Iterable[Value]) -> Value | None:
    return max(values, key=lambda value: (value.s, value.is_bound), default=None)
