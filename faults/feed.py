"""Can each SLO be judged by this plan? Its words must name what is there, and the load must feed it enough records.

A quantile needs 10/(1-q) records (design 5.4); how many a window will hold is the arm's rate times the window's
length by plan. What can't be fed is refused here, with the length or the rate that would do, rather than INCONCLUSIVE
an hour later.
"""

import math
import re
from collections.abc import Iterator

from aftershock.faults.draft import Draft
from aftershock.faults.fault import Fault
from aftershock.faults.lasting import length_ms, window_ms
from aftershock.faults.plan import Timing, Workload
from aftershock.faults.problem import Loc, Problem, did_you_mean
from aftershock.faults.units import format_duration, format_rate
from aftershock.results.slo import Recovery, Slo, SloSyntaxError, parse


def objectives(draft: Draft) -> Iterator[Problem]:
    """Everything that keeps an SLO of the plan from being judged."""
    for index, text in draft.slo.items():
        loc: Loc = ("slo", index)
        try:
            slo = parse(text)
        except SloSyntaxError as error:
            yield Problem(loc, f"this is no SLO, at its character {error.column}: {error}")
            continue
        unnamed = [*_unknown_fault(draft, slo, loc), *_unknown_arms(draft, slo, loc)]
        yield from unnamed or _fed(draft, slo, loc)


def _unknown_fault(draft: Draft, slo: Slo, loc: Loc) -> Iterator[Problem]:
    faults = draft.faults
    ids = {each.id for each in faults.expansion.placed}
    if faults.unreadable or not faults.expansion.certain:
        ids |= set(faults.ids.values())
    if slo.fault is not None and not _may_be(slo.fault, ids, draft) and not faults.nameless:
        yield Problem(loc, f"the plan has no fault `{slo.fault}`; {did_you_mean(slo.fault, ids)}")
    if slo.window in ("fault", "recovery") and not ids and not faults.nameless:
        yield Problem(
            loc, f"the plan has no faults, so `in {slo.window}` matches nothing: add a fault, or take it away"
        )


def _may_be(name: str, ids: set[str], draft: Draft) -> bool:
    """Whether a fault may have this id: that of a round adds its number, and draws decide how many there are."""
    return name in ids or (not draft.faults.expansion.certain and re.sub(r"(-\d+)+$", "", name) in ids)


def _unknown_arms(draft: Draft, slo: Slo, loc: Loc) -> Iterator[Problem]:
    known = {arm for workload in draft.workloads.values() for arm in workload.arms} | draft.unreadable_arms
    for arm in slo.arms:
        if arm not in known and not draft.unreadable_workloads:
            yield Problem(loc, f"the plan has no arm `{arm}`; {did_you_mean(arm, known)}")


def _fed(draft: Draft, slo: Slo, loc: Loc) -> Iterator[Problem]:
    if slo.side is None or draft.timing is None or draft.unreadable_workloads:
        return
    rates = {arm: _rate_per_s(draft, slo, arm) for arm in slo.arms or _arms_on(draft, slo.side)}
    idle = [arm for arm, rate in rates.items() if rate == 0]
    if idle or not rates:
        who = f"the arm `{idle[0]}`" if idle else "no workload"
        does = f"does not {slo.side}" if idle else f"{slo.side}s"
        yield Problem(loc, f"{who} {does} anything, so this SLO matches nothing: give a workload a `{slo.side}`")
        return
    arm, rate = min(rates.items(), key=lambda item: item[1])
    window, length = _window(draft, slo, draft.timing)
    n = None if length is None else int(rate * length / 1000)
    if n is not None and n < slo.needs():
        enough = format_duration(math.ceil(slo.needs() / rate) * 1000)
        faster = format_rate(math.ceil(slo.needs() * 1000 / length)) if length else None
        yield Problem(
            loc,
            f"this SLO needs {slo.needs()} records in {window}, and `{arm}` at {format_rate(rate)} gives {n} there: "
            f"make {window} last {enough}" + (f", or have {faster}" if faster else ""),
        )


def _arms_on(draft: Draft, side: str) -> list[str]:
    return [arm for workload in draft.workloads.values() if getattr(workload, side) for arm in workload.arms]


def _rate_per_s(draft: Draft, slo: Slo, arm: str) -> float:
    """How many a second this arm produces or commits; or is due to consume, from every arm that produces there."""
    mine = [workload for workload in draft.workloads.values() if arm in workload.arms]
    if slo.side == "produce":
        return sum(workload.produce.rate for workload in mine if workload.produce)
    if slo.side == "commit":
        return sum(workload.commit.rate for workload in mine if workload.commit)
    topics = {workload.consume.topic for workload in mine if workload.consume}
    return sum(_into(workload, topics) for workload in draft.workloads.values())


def _into(workload: Workload, topics: set[str]) -> float:
    if workload.produce is None or workload.produce.topic not in topics:
        return 0.0
    return workload.produce.rate * len(workload.arms)


def _window(draft: Draft, slo: Slo, timing: Timing) -> tuple[str, int | None]:
    """What the SLO's window is called, and how long it lasts by plan in ms; None if that can't be told."""
    if isinstance(slo, Recovery) or slo.window == "steady":
        return "steady", timing.steady
    if slo.window == "warmup":
        return "warmup", timing.warmup.min
    return _window_after_steady(draft, slo, timing)


def _window_after_steady(draft: Draft, slo: Slo, timing: Timing) -> tuple[str, int | None]:
    if draft.faults.unreadable or not draft.faults.expansion.certain:
        return slo.window or "the run", None
    faults = [each.fault for each in draft.faults.expansion.placed]
    if slo.fault is not None:
        chosen = [fault for fault in faults if fault.id == slo.fault]
        return f"fault/{slo.fault}", _covered_ms(chosen, timing, allowances=False)
    if slo.window == "fault":
        return "fault", _covered_ms(faults, timing, allowances=False)
    if slo.window == "recovery":
        began = min((fault.at for fault in faults), default=0)
        return "recovery", length_ms(faults, timing) - began - _covered_ms(faults, timing, allowances=True)
    return "the run", timing.steady + length_ms(faults, timing)


def _covered_ms(faults: list[Fault], timing: Timing, *, allowances: bool) -> int:
    """The length of the union of the faults' windows."""
    spans = sorted((f.at, f.at + window_ms(f, timing) + f.allowance_ms * allowances) for f in faults)
    covered, reached = 0, 0
    for begin, end in spans:
        covered += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return covered
