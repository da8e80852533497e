"""SLOs that no run can pass, which are refused, and SLOs that a run hardly passes, which get a warning.

A limit is impossible if it contradicts itself (``lost < 0``), the offered load (a gap shorter than the time between two
records), or what a fault of its own window does to every request of the client (``outages.py``). Quantiles: if a share
s of a window's records is at least d late, the quantile q is at least d once s exceeds 1 - q; if they wait for the end
of an outage of the length T, it is at least T x (1 - (1 - q) / s), because they are due evenly over the outage.

Slack: an outage begins when the fault is in force, and the planned times of faults shift by up to a second on a busy
host. So an outage counts a second less (``SLACK_MS``), and a share must exceed 1 - q by a twentieth (``SHARE_SLACK``).
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from aftershock.faults.plan.expand import length_ms
from aftershock.faults.plan.outages import Outage, client_outages, session_timeout_ms, unwritable
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.plan.sample_size import SampleSize, arms_on, faults_in, intervals, is_certain, sample_sizes
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import format_duration, format_rate
from aftershock.faults.sections.workloads import Timing, Workload
from aftershock.results.slo import Count, Measure, Recovery, Selection, Slo, SloSyntaxError, aggregate_name

SLACK_MS = 1_000
SHARE_SLACK = 0.05
STEADY_MS_MIN = 50  # a quantile in steady counts as at least this in a recovery (results/measure/recovery.py)
RECOVERY_SLOTS = 20  # of a calm period, the resolution of a recovery (the same file)
BOUNDARY = Decimal("1.05")  # share of the load that a window may have beside its own: records on their way at its start
_HALF = 0.5
_BELOW = ("<", "<=")


def unpassable(draft: Draft) -> Iterator[Problem]:
    """Yield a problem for each SLO that no run of the plan can pass."""
    for index, slo in draft.slo.items():
        if isinstance(slo, SloSyntaxError):
            continue
        if sentence := _contradiction(slo) or (_contradicts_plan(draft, slo) if _is_complete(draft) else None):
            yield Problem(("slo", index), f"this SLO can't pass: {sentence}")


def hardly_passable(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for each SLO that a run passes only if a fault has hardly any effect, or that says little."""
    for index, slo in draft.slo.items():
        sentence = None
        if isinstance(slo, Count) and slo.op == "==" and slo.limit:
            sentence = f"this SLO passes only if exactly {slo.limit} records are {slo.rule}: write <= {slo.limit}"
        elif isinstance(slo, Measure) and isinstance(slo.of.aggregate, float) and slo.of.aggregate < _HALF:
            q = aggregate_name(slo.of.aggregate)
            sentence = f"{q} limits only the fastest {q[1:]}% of the records: limit p95, or another high quantile"
        elif isinstance(slo, Measure) and slo.of.metric.endswith(".throughput") and isinstance(slo.limit, Decimal):
            limit, sizes = slo.limit, sample_sizes(draft, slo) if _is_complete(draft) else ()
            if size := next((size for size in sizes if 0 < _rate(size) <= limit), None):
                sentence = (
                    f"`{size.arm}` offers {format_rate(_rate(size))}, so that a single late record fails this SLO, or "
                    "only a backlog passes it: lower the limit below the load"
                )
        elif isinstance(slo, Recovery) and _is_complete(draft):
            sentence = _hasty_recovery(draft, slo)
        if sentence:
            yield Problem(("slo", index), sentence)


def _is_complete(draft: Draft) -> bool:
    return is_certain(draft) and draft.timing is not None and not draft.unreadable_workloads


def _contradiction(slo: Slo) -> str | None:
    """Return why an SLO contradicts itself."""
    if isinstance(slo, Count):
        return "no count is below 0: write == 0" if (slo.op, slo.limit) == ("<", 0) else None
    if isinstance(slo, Measure) and isinstance(slo.limit, Decimal):
        unit = slo.of.about.unit
        if unit not in ("time", "share") and slo.op == "<" and not slo.limit:
            return "no count is below 0: write <= 0"
        if unit == "share" and slo.op == ">" and slo.limit >= 1:
            return "no share exceeds 100%: write >= 100%"
    return None


def _contradicts_plan(draft: Draft, slo: Slo) -> str | None:
    """Return why the load or the faults of the plan rule an SLO out."""
    if isinstance(slo, Recovery):
        for arm, workload in _arms(draft, slo, "produce"):
            for outage in _outages(draft, workload, "produce"):
                if slo.after not in _names(draft, outage) or outage.delay_ms is not None:
                    continue
                if slo.limit_us < (outage.length_ms - SLACK_MS) * 1000:
                    return (
                        f"`{outage.fault}` lets no record of `{arm}` succeed for {format_duration(outage.length_ms)}: "
                        "raise the limit above that, or shorten the fault"
                    )
        return None
    if not isinstance(slo, Measure) or not isinstance(slo.limit, Decimal):
        return None
    for arm, workload in _arms(draft, slo, slo.side):
        if sentence := _beyond_load(draft, slo, arm) or _beyond_outage(draft, slo, arm, workload):
            return sentence
    return None


def _beyond_load(draft: Draft, slo: Measure, arm: str) -> str | None:
    """Return why the offered load rules an SLO on gaps or throughput out."""
    size = next((size for size in sample_sizes(draft, slo) if size.arm == arm), None)
    rate = _rate(size) if size else 0.0
    if not size or not rate or not isinstance(slo.limit, Decimal):
        return None
    load = f"`{arm}` at {format_rate(size.rate_per_s)}"
    among = f" among {size.subjects} {size.each}s" if size.each and size.subjects != 1 else ""
    if slo.of.metric.endswith(".gap") and slo.op in _BELOW and slo.limit < Decimal(1_000_000 / rate):
        return f"{load}{among} has {1000 / rate:.3g} ms between two records: raise the limit, or the rate"
    # in these windows no backlog is acknowledged, apart from records that are on their way as the window begins
    without_backlog = slo.of.window in (None, "steady") and slo.of.every_us is None
    if slo.of.metric.endswith(".throughput") and without_backlog and slo.limit > Decimal(rate) * BOUNDARY:
        return f"{load}{among} offers less than {slo.limit:f} records/s: lower the limit, or raise the rate"
    return None


def _rate(size: SampleSize) -> float:
    """Return the records per second of each subject of an SLO; 0 if the plan does not tell."""
    rate = size.rate_per_s / (size.subjects or 1)
    return rate if 0 < rate < float("inf") and size.unit == "records" else 0.0


def _beyond_outage(draft: Draft, slo: Measure, arm: str, workload: Workload) -> str | None:
    """Return why a fault in the window of an SLO rules its limit out for an arm."""
    if not isinstance(slo.limit, Decimal) or draft.timing is None:
        return None
    windows = _window_intervals(draft, slo.of, draft.timing)
    total_ms = sum(end - start for start, end in windows)
    where = slo.of.window_text
    for outage in _outages(draft, workload, slo.side):
        met_ms = sum(
            max(0, min(end, outage.end_ms) - max(start, outage.start_ms) - (outage.delay_ms is None) * SLACK_MS)
            for start, end in windows
        )
        if met_ms <= 0 or not total_ms:
            continue
        share = met_ms / total_ms
        if slo.of.every_us is not None:
            if met_ms < 2 * slo.of.every_us / 1000:
                continue
            share = 1.0  # one slot of the window, which has a value of its own, lies within the outage
        least = _least_value(slo.of, outage, share, met_ms, workload)
        if least is None:
            continue
        is_time = slo.of.about.unit == "time"
        if slo.of.metric.endswith(".throughput"):
            return f"`{outage.fault}` stops every request of `{arm}` for whole slots of {where}: name another window"
        if is_time and slo.op in _BELOW and float(slo.limit) < least * 1000:
            did = f"adds {outage.delay_ms} ms to" if outage.delay_ms is not None else "stops"
            return (
                f"`{outage.fault}` {did} every request of `{arm}` for {format_duration(met_ms)} of {where}: write a "
                f"limit above {format_duration(int(least))}, or another window"
            )
        if not is_time and slo.op not in _BELOW and float(slo.limit) > 1 - least:
            return (
                f"`{outage.fault}` stops every request of `{arm}` for {format_duration(met_ms)} of {where}, longer "
                "than the deadline: lower the limit, lengthen the deadline, or write another window"
            )
    return None


def _least_value(of: Selection, outage: Outage, share: float, met_ms: int, workload: Workload) -> float | None:
    """Return the value in ms that a metric at least has with an outage; for a success rate, the share that fails."""
    lasts_ms, is_delay = float(met_ms), outage.delay_ms is not None
    source = of.about.source
    if of.metric.endswith(".throughput"):  # a window also has the backlog of an outage, a slot within it has nothing
        return 0.0 if of.every_us is not None and not is_delay else None
    if source in ("gap", "stalls"):
        return None if is_delay else lasts_ms
    if of.about.unit == "share":
        section: Any = workload.produce if of.about.side == "produce" else workload.commit
        failing_ms = met_ms - section.deadline if section and not is_delay else 0
        return share * failing_ms / met_ms if failing_ms > 0 and of.target is None else None
    if source not in ("latency", "service"):
        return None
    late_ms = float(outage.delay_ms) if outage.delay_ms is not None else lasts_ms
    if of.aggregate == "max":
        return late_ms
    if of.aggregate == "mean":
        return share * (late_ms if is_delay else late_ms / 2)
    if not isinstance(of.aggregate, float) or share < 1 - of.aggregate + SHARE_SLACK:
        return None
    return late_ms if is_delay else late_ms * (1 - (1 - of.aggregate) / share)


def _window_intervals(draft: Draft, of: Selection, timing: Timing) -> list[tuple[int, int]]:
    """Return the times of an SLO's window in ms from the end of steady, of faults with the time for their heal."""
    faults = [scheduled.fault for scheduled in draft.faults.expansion.schedule]
    if of.window is None:
        return [(-timing.steady, length_ms(faults, timing))]
    if of.window.startswith("fault"):
        return intervals(faults_in(draft, of.window), timing, allowances=True)
    return []  # no fault is in force in warmup, steady and recovery


def _outages(draft: Draft, workload: Workload, side: str) -> Iterator[Outage]:
    """Yield the outages of the clients of a workload on one side; with clients in several racks, those of all."""
    section = getattr(workload, side)
    racks = getattr(section, "racks", ()) or (section.rack or next(iter(draft.cluster.racks if draft.cluster else ())),)
    by_rack = [[*client_outages(draft, rack, consumer=side in ("consume", "pipe"))] for rack in racks]
    yield from (outage for outage in by_rack[0] if all(outage in others for others in by_rack))
    if side == "produce":
        yield from unwritable(draft, section)


def _arms(draft: Draft, slo: Measure | Recovery, side: str) -> Iterator[tuple[str, Workload]]:
    """Yield each arm that an SLO judges with each of its workloads that has the SLO's side."""
    if draft.cluster is None:
        return
    named = slo.of.arm if isinstance(slo, Measure) else slo.arm
    judged = [named] if named else arms_on(draft, side)
    for workload in draft.workloads.values():
        if getattr(workload, side) is not None:
            yield from ((arm, workload) for arm in workload.arms if arm in judged)


def _names(draft: Draft, outage: Outage) -> set[str]:
    """Return the id of an outage's fault with its rounds, and its id in the plan."""
    schedule = draft.faults.expansion.schedule
    return {outage.fault, *(scheduled.entry for scheduled in schedule if scheduled.id == outage.fault)}


def _hasty_recovery(draft: Draft, slo: Recovery) -> str | None:
    """Return why a recovery within the limit needs a fault without much effect."""
    limit_ms = slo.limit_us / 1000
    if limit_ms < slo.for_us / 1000 / RECOVERY_SLOTS:
        shortest = format_duration(slo.for_us // 1000 // RECOVERY_SLOTS)
        return (
            f"a recovery is measured in steps of {shortest}, so this SLO passes only if `{slo.after}` slows no record: "
            "raise the limit"
        )
    for arm, workload in _arms(draft, slo, "produce"):
        for outage in _outages(draft, workload, "produce"):
            if slo.after in _names(draft, outage) and outage.delay_ms and limit_ms < outage.length_ms - SLACK_MS:
                tolerated = outage.delay_ms / float(slo.factor)
                if tolerated >= STEADY_MS_MIN:
                    return (
                        f"`{slo.after}` delays every record of `{arm}` by {outage.delay_ms} ms for "
                        f"{format_duration(outage.length_ms)}, which this SLO can pass only if {slo.spread} in steady "
                        f"is above {tolerated:g} ms: raise the limit above the length of the fault"
                    )
    timeout_ms = session_timeout_ms(draft)
    for scheduled in draft.faults.expansion.schedule:
        fault = scheduled.fault
        is_silent = fault.kind in ("kill", "pause", "lose_rack", "power_loss", "crash_loop")
        # a heartbeat may have arrived just before the end of its interval, a sixth of the timeout or more
        if slo.after in (scheduled.id, scheduled.entry) and is_silent and limit_ms < timeout_ms * 0.75:
            return (
                f"the controller moves the leaders of a silent broker only after {format_duration(timeout_ms)} "
                f"(broker.session.timeout.ms), so this SLO passes only if `{slo.after}` meets no leader of the client: "
                "raise the limit"
            )
    return None
