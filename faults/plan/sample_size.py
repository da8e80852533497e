"""How long the windows that an SLO names last by plan. Real ones last longer: faults take time to heal.

How many values an SLO will have to be judged by: an arm's rate, times a window, over subjects and slots.

===============  ====================================================================================================
partition        the arm's rate over the partitions of its topic: records without keys go to all alike, and of keys
                 there may be fewer than partitions
rack, broker     the rate over those that there are: leaders are spread over them alike
producer         the rate of one of the arms that produce
epoch            can't be told by plan
every 1s of …    what comes in one slot
lag, freshness   one value a second
===============  ====================================================================================================

Can each SLO be judged by this plan? Its words must name what is there, and the load must feed it enough records.

A quantile needs 10/(1-q) values (design 5.4) in each subject and slot it is asked of; how many there will be is
``fed``'s arithmetic. What can't be fed is refused here, with the length or the rate that would do, rather than
INCONCLUSIVE an hour later. What could never fail is allowed, with a warning.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.document import Location, Problem, did_you_mean
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.plan.units import format_duration, format_rate
from aftershock.faults.plan.workloads import Timing, Workload
from aftershock.faults.timeline.expand import length_ms, window_ms
from aftershock.results.slo import EachWord, Measure, Recovery, Selection, Side, Slo, SloSyntaxError, parse


def window(draft: Draft, name: str | None, timing: Timing) -> tuple[str, int | None]:
    """What the window is called, and how long it lasts in all, in ms; None if that can't be told."""
    if name == "steady":
        return "steady", timing.steady
    if name == "warmup":
        return "warmup", timing.warmup.min
    called = name or "the run"
    if draft.faults.unreadable or not draft.faults.expansion.certain:
        return called, None
    faults = _all(draft)
    if name is not None and name.startswith("fault"):
        return called, covered_ms(_meant(draft, name), timing, allowances=False)
    if name == "recovery":
        began = min((fault.at for fault in faults), default=0)
        return called, length_ms(faults, timing) - began - covered_ms(faults, timing, allowances=True)
    return called, timing.steady + length_ms(faults, timing)


def longest_ms(draft: Draft, name: str | None, timing: Timing) -> int | None:
    """The longest stretch of the window without a break, and at its most: with all that healing may take."""
    if name is None or not name.startswith("fault"):
        return None if name == "warmup" else window(draft, name, timing)[1]
    if draft.faults.unreadable or not draft.faults.expansion.certain:
        return None
    return max((end - begin for begin, end in _stretches(_meant(draft, name), timing, allowances=True)), default=None)


def covered_ms(faults: Sequence[Fault], timing: Timing, *, allowances: bool) -> int:
    """The length of the union of the faults' windows."""
    return sum(end - begin for begin, end in _stretches(faults, timing, allowances=allowances))


def _all(draft: Draft) -> list[Fault]:
    return [each.fault for each in draft.faults.expansion.placed]


def _meant(draft: Draft, name: str) -> list[Fault]:
    """The faults of ``fault`` or ``fault/<id>``; an id means every round and block of it."""
    fault = name.removeprefix("fault").removeprefix("/")
    return [each.fault for each in draft.faults.expansion.placed if fault in ("", each.id, each.entry)]


def _stretches(faults: Sequence[Fault], timing: Timing, *, allowances: bool) -> list[tuple[int, int]]:
    """The faults' windows, those that meet joined."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted((f.at, f.at + window_ms(f, timing) + f.allowance_ms * allowances) for f in faults):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


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


BLOCKS_MIN, BLOCKS_ADVISED = 6, 8  # fewer pairs can't be told from chance at 1 in 20 (results/compare/comparison.py)


def objectives(draft: Draft) -> Iterator[Problem]:
    """Everything that keeps an SLO of the plan from being judged."""
    for index, text in draft.slo.items():
        loc: Location = ("slo", index)
        try:
            slo = parse(text)
        except SloSyntaxError as error:
            yield Problem(loc, f"this is no SLO, at its character {error.column}: {error}")
            continue
        said = [*_unknown_faults(draft, slo), *_unknown_arms(draft, slo)] or _unfed(draft, slo)
        yield from (Problem(loc, sentence) for sentence in said)


def _unknown_faults(draft: Draft, slo: Slo) -> Iterator[str]:
    faults = draft.faults
    ids = {name for each in faults.expansion.placed for name in (each.id, each.entry)}
    if faults.unreadable or not faults.expansion.certain:
        ids |= set(faults.ids.values())
    if faults.nameless:
        return
    for fault in slo.faults:
        if not _may_be(fault, ids, draft):
            yield f"the plan has no fault `{fault}`; {did_you_mean(fault, ids)}"
    for name in slo.windows:
        if name in ("fault", "recovery") and not ids:
            yield f"the plan has no faults, so `in {name}` matches nothing: add a fault, or take it away"


def _may_be(name: str, ids: set[str], draft: Draft) -> bool:
    """Whether a fault may have this id: that of a round adds its number, and draws decide how many there are."""
    return name in ids or (not draft.faults.expansion.certain and re.sub(r"(-\d+)+$", "", name) in ids)


def _unknown_arms(draft: Draft, slo: Slo) -> Iterator[str]:
    known = {arm for workload in draft.workloads.values() for arm in workload.arms} | draft.unreadable_arms
    for arm in slo.arms:
        if arm not in known and not draft.unreadable_workloads:
            yield f"the plan has no arm `{arm}`; {did_you_mean(arm, known)}"


def _unfed(draft: Draft, slo: Slo) -> Iterator[str]:
    """The first thing that is missing: somebody who does it, or enough of what they do, or room for it."""
    if draft.timing is None or draft.unreadable_workloads:
        return
    asked = list(loads(draft, slo))
    said = [each.idle() or each.starved() for each in asked]
    yield from [sentence for sentence in said if sentence][:1] or _impossible(draft, slo, draft.timing)


def _impossible(draft: Draft, slo: Slo, timing: Timing) -> Iterator[str]:
    """What no run of this plan could show, however well it is fed."""
    if isinstance(slo, Recovery):
        room_ms = _after_ms(draft, slo.after, timing)
        if room_ms is not None and slo.for_us > room_ms * 1000:
            yield (
                f"calm has to last {format_duration(slo.for_us // 1000)}, and the load ends "
                f"{format_duration(room_ms)} after `{slo.after}` begins: lengthen timing.recovery"
            )
    if isinstance(slo, Measure):
        yield from _no_slot(draft, slo.of, timing)
        yield from _no_pairs(draft, slo)
        yield from _no_keys(draft, slo)
        yield from _untold(draft, slo)


def _no_slot(draft: Draft, selection: Selection, timing: Timing) -> Iterator[str]:
    length_ms = longest_ms(draft, selection.window, timing)
    if selection.every_us is not None and length_ms is not None and selection.every_us > length_ms * 1000:
        where = f"{selection.window or 'the run'}, which lasts {format_duration(length_ms)} at most"
        yield f"no slot of {format_duration(selection.every_us // 1000)} fits into {where}: ask for shorter ones"


def _no_pairs(draft: Draft, slo: Measure) -> Iterator[str]:
    """Arms are compared with confidence block by block; an arm with itself alone is no comparison."""
    blocks = len(draft.faults.expansion.blocks_ms) or 1
    if slo.compares_arms and slo.confidence is not None and blocks < BLOCKS_MIN:
        yield (
            f"with confidence arms are compared block by block, which needs {BLOCKS_MIN} blocks, and the plan has "
            f"{blocks}: set `blocks: {BLOCKS_ADVISED}`, or take the confidence away"
        )
    others = set(arms_on(draft, slo.side)) - set(slo.arms)
    if slo.compares_arms and len(slo.arms) == 1 and not others:
        yield f"no arm but `{slo.arms[0]}` {slo.side}s, so there is none to compare with it: add an arm"


def _untold(draft: Draft, slo: Measure) -> Iterator[str]:
    """Subjects that a client does not tell of its records."""
    if slo.each not in ("rack", "broker") and (slo.each, slo.side) != ("epoch", "produce"):
        return
    arms = {slo.of.arm} if slo.of.arm else set(arms_on(draft, slo.side))
    told = ((name, arm.client) for each in draft.workloads.values() for name, arm in each.arms.items() if name in arms)
    silent = next((f"`{name}` is a {client} client" for name, client in told if client != "reference"), None)
    if silent:
        yield (
            f"{silent}, which does not tell the {slo.each} of a record, so `for each {slo.each}` matches nothing: "
            "use `client: reference`, or take it away"
        )


def _no_keys(draft: Draft, slo: Measure) -> Iterator[str]:
    """Partitions that no key leads to."""
    if slo.each != "partition":
        return
    partitions = {topic.name: topic.partitions for topic in draft.topics.values()}
    for told in (workload.produce for workload in draft.workloads.values()):
        if told and told.keys and told.keys < partitions.get(told.topic, 0):
            yield (
                f"{told.keys} keys lead to {told.keys} of the {partitions[told.topic]} partitions of {told.topic} at "
                "most, and the others get nothing to be judged by: have more keys, or none"
            )


def toothless(draft: Draft) -> Iterator[Problem]:
    """SLOs that can be judged, and can't fail: the limit is longer than the time that is looked at, or cuts nothing."""
    for index, text in draft.slo.items():
        try:
            said = _toothless(draft, parse(text)) if draft.timing else ()
        except SloSyntaxError:
            continue
        yield from (Problem(("slo", index), sentence) for sentence in said)


def _toothless(draft: Draft, slo: Slo) -> Iterator[str]:
    timing = draft.timing or Timing()
    if isinstance(slo, Recovery):
        room_ms = _after_ms(draft, slo.after, timing)
        if room_ms is not None and slo.limit_us > room_ms * 1000 - slo.for_us:
            last = f"the load ends {format_duration(room_ms)} after `{slo.after}` begins"
            yield f"this can't fail: {last}, and the limit and the calm are longer: lengthen timing.recovery"
    elif isinstance(slo, Measure):
        yield from _clipped(draft, slo, timing)
        yield from _undivided(draft, slo)


def _clipped(draft: Draft, slo: Measure, timing: Timing) -> Iterator[str]:
    """A gap is clipped to its window, and so is time that was unavailable."""
    if slo.threshold_us is None or not slo.of.metric.endswith((".gap", ".unavailable")):
        return
    length_ms = longest_ms(draft, slo.of.window, timing) if slo.of.every_us is None else slo.of.every_us // 1000
    if length_ms is not None and slo.threshold_us > length_ms * 1000:
        where = slo.of.place or "the run"
        yield (
            f"this can't fail: {where} lasts {format_duration(length_ms)} at most, and what is longer is clipped to "
            "it: ask for less, or of a longer window"
        )


def _undivided(draft: Draft, slo: Measure) -> Iterator[str]:
    arms = (slo.of.arm,) if slo.of.arm else arms_on(draft, slo.side)
    if slo.each in ("rack", "broker", "partition") and {parts(draft, slo.side, arm, slo.each) for arm in arms} == {1}:
        yield f"`for each {slo.each}` divides nothing, as there is but one {slo.each}: take it away"


def _after_ms(draft: Draft, fault: str, timing: Timing) -> int | None:
    """From the last time that a fault begins to the end of the load, by plan; None if that can't be told."""
    placed = draft.faults.expansion.placed
    if draft.faults.unreadable or not draft.faults.expansion.certain:
        return None
    begins = [each.fault.at for each in placed if fault in (each.id, each.entry)]
    return length_ms((each.fault for each in placed), timing) - max(begins) if begins else None
