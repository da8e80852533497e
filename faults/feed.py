"""Can each SLO be judged by this plan? Its words must name what is there, and the load must feed it enough records.

A quantile needs 10/(1-q) values (design 5.4) in each subject and slot it is asked of; how many there will be is
``fed``'s arithmetic. What can't be fed is refused here, with the length or the rate that would do, rather than
INCONCLUSIVE an hour later. What could never fail is allowed, with a warning.
"""

import re
from collections.abc import Iterator

from aftershock.faults.draft import Draft
from aftershock.faults.fed import arms_on, loads, parts
from aftershock.faults.lasting import length_ms
from aftershock.faults.plan import Timing
from aftershock.faults.problem import Loc, Problem, did_you_mean
from aftershock.faults.units import format_duration
from aftershock.faults.windows import longest_ms
from aftershock.results.slo import Measure, Recovery, Selection, Slo, SloSyntaxError, parse

BLOCKS_MIN, BLOCKS_ADVISED = 6, 8  # fewer pairs can't be told from chance at 1 in 20 (results/comparing/comparison.py)


def objectives(draft: Draft) -> Iterator[Problem]:
    """Everything that keeps an SLO of the plan from being judged."""
    for index, text in draft.slo.items():
        loc: Loc = ("slo", index)
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
