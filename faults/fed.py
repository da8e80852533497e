"""How many values an SLO will have to be judged by: an arm's rate, times a window, over subjects and slots.

===============  ====================================================================================================
partition        the arm's rate over the partitions of its topic: records without keys go to all alike, and of keys
                 there may be fewer than partitions
rack, broker     the rate over those that there are: leaders are spread over them alike
producer         the rate of one of the arms that produce
epoch            can't be told by plan
every 1s of …    what comes in one slot
lag, freshness   one value a second
===============  ====================================================================================================
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from aftershock.faults.draft import Draft
from aftershock.faults.plan import Workload
from aftershock.faults.units import format_duration, format_rate
from aftershock.faults.windows import window
from aftershock.results.slo import EachWord, Measure, Recovery, Selection, Side, Slo


@dataclass(frozen=True)
class Load:
    """What one arm feeds to one selection. ``rate_per_s`` is the arm's; ``parts``: among how many it is divided.

    ``length_ms`` None: can't be told. ``slot_ms``: the length of each slot, if it is asked for slots.
    """

    arm: str
    side: Side
    needs: int
    rate_per_s: float
    where: str
    length_ms: int | None
    counted: str = "records"
    each: EachWord | None = None
    parts: int | None = 1
    slot_ms: int | None = None

    def idle(self) -> str | None:
        """Why it is fed nothing at all."""
        if self.rate_per_s:
            return None
        who = f"the arm `{self.arm}` does not {self.side}" if self.arm else f"no workload {self.side}s"
        return f"{who} anything, so this SLO matches nothing: give a workload a `{self.side}`"

    def starved(self) -> str | None:
        """Why it is fed too little, and what would do."""
        length_ms = self.length_ms if self.slot_ms is None else self.slot_ms
        if length_ms is None or self.parts is None or math.isinf(self.rate_per_s):
            return None
        n = int(self.rate_per_s * length_ms / 1000 / self.parts)
        return None if n >= self.needs else self._sentence(n, length_ms)

    def _sentence(self, n: int, length_ms: int) -> str:
        of_each = f" of each {self.each}" if self.each else ""
        slot = f"each {format_duration(self.slot_ms)} of " if self.slot_ms else ""
        among = f" among {self.parts} {self.each}s" if self.each and self.parts != 1 else ""
        enough = format_duration(math.ceil(self.needs * (self.parts or 1) / self.rate_per_s) * 1000)
        longer = f"ask for slots of {enough}" if slot else f"make {self.where} last {enough}"
        what = f"this SLO needs {self.needs} {self.counted}{of_each} in {slot}{self.where}"
        if self.counted == "seconds":
            return f"{what}, which has {n}: {longer}"
        faster = math.ceil(self.needs * (self.parts or 1) * 1000 / length_ms) if length_ms else 0
        rate = f", or have {format_rate(faster)}" if faster else ""
        return f"{what}, and `{self.arm}` at {format_rate(self.rate_per_s)}{among} gives {n} there: {longer}{rate}"


def loads(draft: Draft, slo: Slo) -> Iterator[Load]:
    """What each selection of the SLO is fed, by the arm that feeds it least."""
    if isinstance(slo, Measure):
        for selection in slo.selections:
            yield _of_selection(draft, slo, selection)
    elif isinstance(slo, Recovery) and draft.timing:
        where, length_ms = window(draft, "steady", draft.timing)
        yield _least(draft, Load("", "produce", slo.needs(), 0, where, length_ms), slo.arm)


def _of_selection(draft: Draft, slo: Measure, selection: Selection) -> Load:
    where, length_ms = window(draft, selection.window, draft.timing) if draft.timing else ("", None)
    slot_ms = None if selection.every_us is None else selection.every_us // 1000
    about = selection.about
    load = Load("", about.side, slo.needs_of(selection), 0, where, length_ms, slot_ms=slot_ms)
    load = _least(draft, replace(load, each=slo.each), selection.arm)
    return replace(load, counted="seconds", rate_per_s=min(load.rate_per_s, 1)) if about.sampled else load


def _least(draft: Draft, load: Load, arm: str | None) -> Load:
    """The load of the arm, or of the one that feeds the fewest; the arm is "" where there is none."""
    arms = [arm] if arm else arms_on(draft, load.side)
    fed = [_of_arm(draft, load, each) for each in arms]
    return min(fed, key=lambda each: each.rate_per_s / (each.parts or 1), default=load)


def _of_arm(draft: Draft, load: Load, arm: str) -> Load:
    rates = rates_per_s(draft, load.side, arm)
    each = load.each
    rate = min(rates, default=0.0) if each == "producer" else sum(rates)
    return replace(load, arm=arm, rate_per_s=rate, parts=parts(draft, load.side, arm, each))


def parts(draft: Draft, side: Side, arm: str, each: EachWord | None) -> int | None:
    """Among how many subjects an arm's records are divided; None where the plan doesn't tell."""
    if each == "partition":
        topics = {told.topic for told in _sides(draft, side, arm)}
        return max((topic.partitions for topic in draft.topics.values() if topic.name in topics), default=None)
    if each in ("rack", "broker"):
        homes = draft.cluster.broker_racks if draft.cluster else {}
        return len(set(homes.values()) if each == "rack" else homes) or None
    return None if each == "epoch" else 1


def rates_per_s(draft: Draft, side: Side, arm: str) -> list[float]:
    """How many a second each producer feeds it: itself, or every arm that produces to what it consumes.

    Infinite for a closed loop, which feeds as many as the cluster takes.
    """
    if side != "consume":
        return [math.inf if told.rate is None else told.rate for told in _sides(draft, side, arm)]
    topics = {told.topic for told in _sides(draft, "consume", arm)}
    return [rate for workload in draft.workloads.values() for rate in _into(workload, topics)]


def _sides(draft: Draft, side: str, arm: str) -> list[Any]:
    """The ``produce``, ``consume`` or ``commit`` of each workload that has the arm."""
    told = (getattr(workload, side) for workload in draft.workloads.values() if arm in workload.arms)
    return [each for each in told if each is not None]


def arms_on(draft: Draft, side: str) -> list[str]:
    """The arms of every workload that has the side."""
    return [arm for workload in draft.workloads.values() if getattr(workload, side) for arm in workload.arms]


def _into(workload: Workload, topics: set[str | None]) -> list[float]:
    if workload.produce is None or workload.produce.topic not in topics:
        return []
    return [workload.produce.rate] * len(workload.arms)
