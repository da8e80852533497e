"""Defects of time: a latency, gap, success rate or recovery beyond an SLO of the plan, and times that can't be."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pandas as pd

from aftershock.tests.judge_mutants import edits
from aftershock.tests.judge_mutants.anatomy import Anatomy, S
from aftershock.tests.judge_mutants.draft import Draft
from aftershock.tests.judge_mutants.kinds import Plant, kind

_UNIT_US = {"us": 1, "ms": 1000, "s": S, "m": 60 * S}
_WHERE = r"(?: in (?P<window>[\w./-]+))?(?: for (?P<arm>[\w.-]+))?"
_LATENCY = re.compile(
    r"(?P<op>produce|consume|commit)\.latency (?P<of>p[\d.]+|max) <=? (?P<limit>[\d.]+)(?P<unit>us|ms|s|m)" + _WHERE
)
_GAP = re.compile(r"(?P<op>produce|consume|commit)\.gap <=? (?P<limit>[\d.]+)(?P<unit>us|ms|s|m)" + _WHERE)
_SUCCESS = re.compile(r"(?P<op>produce|commit)\.success >=? (?P<limit>[\d.]+)(?P<unit>%)" + _WHERE)
_RECOVERY = re.compile(
    r"recovery(?: \([^)]*\))? <=? (?P<limit>[\d.]+)(?P<unit>us|ms|s|m)"
    r" after (?P<fault>[\w.-]+)(?: for (?P<arm>[\w.-]+))?"
)
_NEEDS_MIN = {"p50": 20, "p95": 200, "p99": 1000}


@dataclass(frozen=True)
class Target:
    """An SLO and an arm that it judges, with the arm's rows in each interval of the SLO's window."""

    text: str
    op: str
    arm: str
    match: re.Match[str]
    spans: tuple[tuple[int, int], ...]
    rows: pd.DataFrame

    @property
    def limit_us(self) -> int:
        return int(float(self.match["limit"]) * _UNIT_US[self.match["unit"]])


def spans_of(run: Anatomy, window: str | None) -> tuple[tuple[int, int], ...]:
    """Return the intervals of a window of the plan, such as ``steady``, ``fault/kill-1`` or None: all after warm-up."""
    phases = [phase for phase in run.run.documents["phases.json"] if phase["name"] != "warmup"]
    if window in (None, "run"):
        return ((phases[0]["start_us"], phases[-1]["end_us"]),)
    return tuple(
        (phase["start_us"], phase["end_us"])
        for phase in phases
        if window in (phase["name"], f"{phase['name']}/{phase['fault']}", f"{phase['name']}/{phase.get('entry')}")
    )


def _targets(run: Anatomy, dice: Random, shape: re.Pattern[str]) -> Iterator[Target]:
    """Yield the SLOs of a shape with each arm that they judge, in random order."""
    found = []
    for slo in run.timeline["slo"]:
        match = shape.fullmatch(slo["text"])
        for client in run.clients if match else ():
            op = match.groupdict().get("op") or "produce" if match else ""
            if match is None or op not in client.topics or match["arm"] not in (None, client.arm):
                continue
            spans = spans_of(run, match.groupdict().get("window"))
            rows = run.outcomes[
                (run.outcomes["op"] == op)
                & (run.outcomes["arm"] == client.arm)
                & (run.outcomes["workload"] == client.workload)
            ]
            inside = pd.Series(False, index=rows.index)
            for start, end in spans:
                inside |= rows["intended_us"].ge(start) & rows["intended_us"].lt(end)
            found.append(Target(slo["text"], op, client.arm, match, spans, rows[inside.to_numpy(bool, na_value=False)]))
    yield from dice.sample(found, len(found))


@kind("times", "enough latencies are over the limit of an SLO, at a random place of its window")
def latency_over_the_limit(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for target in _targets(run, dice, _LATENCY):
        rows = target.rows[(target.rows["status"] == "ok").to_numpy(bool, na_value=False)]
        of = target.match["of"]
        if target.op == "consume":
            rows = rows.sort_values("done_us").drop_duplicates(["producer_id", "seq"])
        beyond = 0.0 if of == "max" else 1 - float(of[1:]) / 100
        if len(rows) < _NEEDS_MIN.get(of, 1 if of == "max" else 10 / max(beyond, 1e-9)):
            continue
        count = min(len(rows), int(len(rows) * beyond * 1.2) + dice.randint(3, 10))
        first = dice.randrange(len(rows) - count + 1)
        slow = rows.sort_values("intended_us").index[first : first + count]
        outcomes = draft.table("outcomes")
        late = target.limit_us + dice.randint(1000, max(2000, target.limit_us))
        outcomes.loc[slow, "done_us"] = outcomes.loc[slow, "intended_us"] + late
        place = f"{target.text}: {count} records of {target.arm} at {late / 1000:.0f} ms"
        return Plant(place, (f"slo/{target.op}.latency",), target.arm, touched=frozenset({target.arm}))
    return None


@kind("times", "a client succeeds in nothing for longer than an SLO allows")
def gap_over_the_limit(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for target in _targets(run, dice, _GAP):
        length = target.limit_us + dice.randint(S // 2, 2 * S)
        wide = [(start, end) for start, end in target.spans if end - start > length + S]
        if not wide or target.rows.empty:
            continue
        start, end = dice.choice(wide)
        at_us = dice.randrange(start, end - length)
        edits.hold(draft, run, target.arm, target.op, at_us, at_us + length)
        place = f"{target.text}: {target.arm} from {at_us / S:.1f} s for {length / S:.1f} s"
        return Plant(place, (f"slo/{target.op}.gap",), target.arm, touched=frozenset({target.arm}))
    return None


@kind("times", "more records are without success than an SLO allows")
def success_under_the_limit(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for target in _targets(run, dice, _SUCCESS):
        allowed = 1 - float(target.match["limit"]) / 100
        count = int(len(target.rows) * allowed * 1.5) + 5
        if len(target.rows) < max(1000, 2 * count):
            continue
        gone = [int(row) for row in dice.sample([*target.rows.index], count)]
        edits.mark_undecided(draft, gone)
        place = f"{target.text}: {count} of {len(target.rows)} of {target.arm}"
        return Plant(place, (f"slo/{target.op}.success",), target.arm, touched=frozenset({target.arm}))
    return None


@kind("times", "after a fault a client is slow for longer than an SLO allows it to recover")
def recovery_over_the_limit(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for target in _targets(run, dice, _RECOVERY):
        faults = [fault for fault in run.faults if target.match["fault"] in (fault.name, fault.step.get("entry"))]
        for fault in dice.sample(faults, len(faults)):
            until = fault.start_us + target.limit_us + 4 * S
            next_us = min(
                (each.start_us for each in run.faults if each.start_us > fault.start_us), default=run.load_end_us
            )
            steady = spans_of(run, "steady")
            before = target.rows[target.rows["intended_us"].between(*steady[0])] if steady else target.rows.iloc[:0]
            if until + 4 * S > next_us or len(before) < 200:
                continue
            usual = int((before["done_us"] - before["intended_us"]).quantile(0.95))
            slow = target.rows[target.rows["intended_us"].between(fault.start_us - S // 10, until)]
            outcomes = draft.table("outcomes")
            late = 30 * usual + S
            done = pd.concat(
                [outcomes.loc[slow.index, "done_us"], outcomes.loc[slow.index, "intended_us"] + late], axis=1
            )
            outcomes.loc[slow.index, "done_us"] = done.max(axis=1)
            place = f"{target.text}: {target.arm} until {until / S:.1f} s"
            return Plant(place, ("slo/recovery",), target.arm, touched=frozenset({target.arm}))
    return None


@kind("times", "a client is normal again after a fault, and slow once more before the next fault")
def recovery_that_does_not_last(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Delay every record of three seconds that begin after the limit of the SLO. Older runs measure the first calm."""
    if run.run.documents["run.json"].get("recovery_definition", 1) < 2:
        return None
    for target in _targets(run, dice, _RECOVERY):
        faults = [fault for fault in run.faults if target.match["fault"] in (fault.name, fault.step.get("entry"))]
        for fault in dice.sample(faults, len(faults)):
            next_us = min(
                (each.start_us for each in run.faults if each.start_us > fault.start_us), default=run.load_end_us
            )
            first, last = fault.start_us + target.limit_us + S, next_us - 7 * S
            if first >= last:
                continue
            at_us = dice.randrange(first, last)
            slow = target.rows[target.rows["intended_us"].between(at_us, at_us + 3 * S)]
            slow = slow[slow["status"] == "ok"]
            if len(slow) < 30:
                continue
            outcomes = draft.table("outcomes")
            outcomes.loc[slow.index, "done_us"] = outcomes.loc[slow.index, "intended_us"] + 3 * S
            place = f"{target.text}: {target.arm} from {at_us / S:.1f} s"
            return Plant(place, ("slo/recovery",), target.arm, touched=frozenset({target.arm}))
    return None


@kind("times", "records are done before they were sent")
def negative_latency(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    rows = run.outcomes[(run.outcomes["status"] == "ok") & run.outcomes["sent_us"].notna()]
    if len(rows) < 100:
        return None
    some = rows.loc[dice.sample([*rows.index], dice.randint(1, 20))]
    draft.table("outcomes").loc[some.index, "done_us"] = some["sent_us"] - dice.randint(1, 5000)
    return Plant(f"{len(some)} rows", ("harness/",), status="INCONCLUSIVE")


@kind("times", "a record is delivered before its producer sent it")
def delivered_before_it_was_sent(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    rows = run.delivered.merge(
        run.produced[["producer_id", "seq", "sent_us"]], on=["producer_id", "seq"], suffixes=("", "_there")
    )
    rows.index = run.delivered.index if len(rows) == len(run.delivered) else rows.index
    if rows.empty or len(rows) != len(run.delivered) or rows["sent_us_there"].isna().all():
        return None
    some = rows[rows["sent_us_there"].notna().to_numpy(bool, na_value=False)]
    row = some.iloc[dice.randrange(len(some))]
    draft.table("outcomes").loc[row.name, "done_us"] = int(row["sent_us_there"]) - dice.randint(1000, 50_000)
    place = f"{row['worker']}: {row['topic']}/{row['partition']}@{row['offset']}"
    return Plant(
        place, ("harness/", "integrity/"), row["arm"], "consume", "INCONCLUSIVE", touched=frozenset({row["arm"]})
    )
