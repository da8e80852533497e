"""Sample sizes of a plan's SLOs; an SLO for which a run of the plan has too few samples is refused.

A quantile q needs 10/(1-q) samples (design 5.4) for each subject (such as a partition) and time slot of an SLO. The
expected number of samples is the length of the SLO's window (or slot) times the rate of samples per subject.

* A partition gets an arm's rate, divided by the topic's partitions, as records without keys are spread evenly.
* A rack or broker gets an arm's rate, divided by the cluster's racks or brokers, as leaders are spread evenly.
* The slowest producing arm determines the rate for SLOs per producer.
* The plan does not determine the rate for SLOs per leader epoch.
* Lag and freshness are sampled once a second.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.expand import length_ms, window_ms
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.sections.document import Location, Problem, did_you_mean
from aftershock.faults.sections.units import format_duration, format_rate
from aftershock.faults.sections.workloads import Timing
from aftershock.results.slo import EachWord, Measure, Recovery, Side, Slo, SloSyntaxError

BLOCKS_MIN, BLOCKS_ADVISED = 6, 12  # fewer pairs can't be told from chance at 1 in 20 (results/compare/comparison.py)


def window(draft: Draft, name: str | None, timing: Timing) -> tuple[str, int | None]:
    """Return the label of an SLO's window and its planned length in ms; None if the plan does not determine it."""
    if name == "steady":
        return "steady", timing.steady
    if name == "warmup":
        return "warmup", timing.warmup.min
    label = name or "the run"
    if not is_certain(draft):
        return label, None
    faults = [scheduled.fault for scheduled in draft.faults.expansion.schedule]
    if name is not None and name.startswith("fault"):
        return label, sum(end - start for start, end in intervals(faults_in(draft, name), timing, allowances=False))
    if name == "recovery":
        start_ms = min((fault.at for fault in faults), default=0)
        covered_ms = sum(end - start for start, end in intervals(faults, timing, allowances=True))
        return label, length_ms(faults, timing) - start_ms - covered_ms
    return label, timing.steady + length_ms(faults, timing)


def longest_ms(draft: Draft, name: str | None, timing: Timing) -> int | None:
    """Return the longest contiguous part of an SLO's window in ms, with the time reserved for heals."""
    if name is None or not name.startswith("fault"):
        return None if name == "warmup" else window(draft, name, timing)[1]
    if not is_certain(draft):
        return None
    lengths = [end - start for start, end in intervals(faults_in(draft, name), timing, allowances=True)]
    return max(lengths, default=None)


def is_certain(draft: Draft) -> bool:
    """Return True if all faults of the plan are valid and none depends on a random draw."""
    return draft.faults.expansion.certain and not draft.faults.unreadable


def faults_in(draft: Draft, name: str) -> list[Fault]:
    """Return all repetitions of the faults that an SLO's window ``fault`` or ``fault/<id>`` selects."""
    fault_id = name.removeprefix("fault").removeprefix("/")
    schedule = draft.faults.expansion.schedule
    return [scheduled.fault for scheduled in schedule if fault_id in ("", scheduled.id, scheduled.entry)]


def intervals(faults: Sequence[Fault], timing: Timing, *, allowances: bool) -> list[tuple[int, int]]:
    """Return the windows of faults, with overlapping and adjacent windows merged."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((f.at, f.at + window_ms(f, timing) + f.allowance_ms * allowances) for f in faults):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


TRANSACTIONS = "transactions"
"""Unit of the samples of ``transaction.latency`` and ``transaction.success``."""


@dataclass(frozen=True)
class SampleSize:
    """Number of samples that one arm is expected to yield for one selection of an SLO.

    ``subjects`` is the number of subjects (such as partitions) that share the arm's rate, ``length_ms`` the length of
    the SLO's window, and ``slot_ms`` the length of the SLO's time slots. None stands for an unknown value.
    """

    arm: str
    side: Side
    needs: int
    rate_per_s: float
    where: str
    length_ms: int | None
    unit: str = "records"
    each: EachWord | None = None
    subjects: int | None = 1
    slot_ms: int | None = None
    starved: bool = False

    def problem(self) -> str | None:
        """Return why an SLO has too few samples, with a sufficient length and rate; None if it has enough samples."""
        if self.starved:
            cause = f"no workload produces to the topics that the arm `{self.arm}` consumes"
            return f"this SLO matches no record, because {cause}: add a `produce` to one of them"
        if not self.rate_per_s:
            if self.unit == TRANSACTIONS:
                return "this SLO matches no transaction: give a `produce` a `transaction`"
            cause = f"the arm `{self.arm}` does not {self.side}" if self.arm else f"no workload {self.side}s"
            return f"this SLO matches no record, because {cause}: give a workload a `{self.side}`"
        length_ms = self.length_ms if self.slot_ms is None else self.slot_ms
        if length_ms is None or self.subjects is None or math.isinf(self.rate_per_s):
            return None
        n = int(self.rate_per_s * length_ms / 1000 / self.subjects)
        if n >= self.needs:
            return None
        of_each = f" of each {self.each}" if self.each else ""
        slot = f"each {format_duration(self.slot_ms)} of " if self.slot_ms else ""
        among = f" among {self.subjects} {self.each}s" if self.each and self.subjects != 1 else ""
        enough = format_duration(math.ceil(self.needs * (self.subjects or 1) / self.rate_per_s) * 1000)
        longer = f"use slots of {enough}" if slot else f"make {self.where} last {enough}"
        sentence = f"this SLO needs {self.needs} {self.unit}{of_each} in {slot}{self.where}"
        if self.unit == "seconds":
            return f"{sentence}, which has {n}: {longer}"
        faster = math.ceil(self.needs * (self.subjects or 1) * 1000 / length_ms) if length_ms else 0
        rate = f", or use a rate of {format_rate(faster)}" if faster and self.unit != TRANSACTIONS else ""
        return f"{sentence}, and `{self.arm}` at {format_rate(self.rate_per_s)}{among} gives {n} there: {longer}{rate}"


def sample_sizes(draft: Draft, slo: Slo) -> Iterator[SampleSize]:
    """Yield the sample size of the arm with the fewest samples, for each window that an SLO measures."""
    if isinstance(slo, Measure):
        for selection in slo.selections:
            where, length_ms = window(draft, selection.window, draft.timing) if draft.timing else ("", None)
            slot_ms = None if selection.every_us is None else selection.every_us // 1000
            about = selection.about
            needs = slo.needs_of(selection)
            size = SampleSize("", about.side, needs, 0, where, length_ms, each=slo.each, slot_ms=slot_ms)
            size = replace(size, unit=TRANSACTIONS) if about.source == "transaction" else size
            size = _smallest(draft, size, selection.arm)
            if about.sampled:  # each subject has a value in each second
                size = replace(size, unit="seconds", rate_per_s=min(size.rate_per_s, 1), subjects=1)
            yield size
    elif isinstance(slo, Recovery) and draft.timing:
        where, length_ms = window(draft, "steady", draft.timing)
        yield _smallest(draft, SampleSize("", "produce", slo.needs(), 0, where, length_ms), slo.arm)


def _smallest(draft: Draft, size: SampleSize, arm: str | None) -> SampleSize:
    """Return the sample size of an arm; without ``arm``, of the arm with the lowest rate per subject."""
    workloads, declared = draft.workloads.values(), [topic.name for topic in draft.topics.values()]
    sizes = []
    for name in [arm] if arm else arms_on(draft, size.side):
        sections = _sections(draft, size.side, name)
        if size.side in ("consume", "pipe"):  # records of every arm that produces to the topics are due
            topics = {name for section in sections for name in section.topic_names(declared)}
            produces = [workload.produce for workload in workloads if workload.produce for _ in workload.arms]
            sent = [(produce.rate, produce.topic_names(declared)) for produce in produces]
            rates = [rate * len(topics.intersection(to)) / len(to) for rate, to in sent if topics.intersection(to)]
        elif size.unit == TRANSACTIONS:
            rates = [section.rate / section.transaction.records for section in sections if section.transaction]
        else:  # the rate of a closed loop depends on the cluster
            rates = [math.inf if section.rate is None else section.rate for section in sections]
        rate = min(rates, default=0.0) if size.each == "producer" else sum(rates)
        subjects = subject_count(draft, size.side, name, size.each)
        starved = size.side in ("consume", "pipe") and bool(sections) and not rates
        sizes.append(replace(size, arm=name, rate_per_s=rate, subjects=subjects, starved=starved))
    return min(sizes, key=lambda size: size.rate_per_s / (size.subjects or 1), default=size)


def subject_count(draft: Draft, side: Side, arm: str, each: EachWord | None) -> int | None:
    """Return the number of subjects (such as partitions) among which an arm's records divide; None if unknown."""
    if each == "partition":
        partitions = {topic.name: topic.partitions for topic in draft.topics.values()}
        named = [section.topic_names(partitions) for section in _sections(draft, side, arm)]
        return max((sum(partitions.get(name, 0) for name in names) for names in named), default=0) or None
    if each in ("rack", "broker"):
        broker_racks = draft.cluster.broker_racks if draft.cluster else {}
        return len(set(broker_racks.values()) if each == "rack" else broker_racks) or None
    return None if each == "epoch" else 1


def _sections(draft: Draft, side: str, arm: str) -> list[Any]:
    """Return the ``produce``, ``consume`` or ``commit`` section of each workload in which an arm takes part."""
    sections = (getattr(workload, side) for workload in draft.workloads.values() if arm in workload.arms)
    return [section for section in sections if section is not None]


def arms_on(draft: Draft, side: str) -> list[str]:
    """Return the arms of every workload with the section ``side`` (``produce``, ``consume`` or ``commit``)."""
    return [arm for workload in draft.workloads.values() if getattr(workload, side) for arm in workload.arms]


def slo_problems(draft: Draft) -> Iterator[Problem]:
    """Yield a problem for each reason why an SLO of the plan can't be checked."""
    faults = draft.faults
    ids = {name for scheduled in faults.expansion.schedule for name in (scheduled.id, scheduled.entry)}
    if not is_certain(draft):
        ids |= set(faults.ids.values())
    arms = {arm for workload in draft.workloads.values() for arm in workload.arms} | draft.unreadable_arms
    for index, slo in draft.slo.items():
        loc: Location = ("slo", index)
        if isinstance(slo, SloSyntaxError):
            yield Problem(loc, f"invalid SLO at column {slo.column}: {slo}")
            continue
        sentences = []
        if not faults.nameless:
            for fault in slo.faults:
                # rounds add numbers to an id, and draws may decide how many rounds there are
                is_drawn_round = not faults.expansion.certain and re.sub(r"(-\d+)+$", "", fault) in ids
                if fault not in ids and not is_drawn_round:
                    sentences.append(f"the plan has no fault `{fault}`; {did_you_mean(fault, ids)}")
            sentences += [
                f"the plan has no faults, so `in {name}` matches nothing: add a fault, or remove `in {name}`"
                for name in slo.windows
                if name in ("fault", "recovery") and not ids
            ]
        if not draft.unreadable_workloads:
            unknown_arms = [arm for arm in slo.arms if arm not in arms]
            sentences += [f"the plan has no arm `{arm}`; {did_you_mean(arm, arms)}" for arm in unknown_arms]
        if not sentences and draft.timing is not None and not draft.unreadable_workloads:
            # only the first shortage is reported, and it hides what depends on enough samples
            shortages = [size.problem() for size in sample_sizes(draft, slo)]
            sentences = [sentence for sentence in shortages if sentence][:1] or [*_impossible(draft, slo, draft.timing)]
        yield from (Problem(loc, sentence) for sentence in sentences)


def _impossible(draft: Draft, slo: Slo, timing: Timing) -> Iterator[str]:
    """Yield the reasons why no run of a plan could satisfy or measure an SLO, even with enough samples."""
    if isinstance(slo, Recovery):
        shortest = min(_events(draft, slo, timing), default=None)
        if shortest is not None and slo.for_us > shortest.length_ms * 1000:
            recovered = format_duration(slo.for_us // 1000)
            yield f"the recovered state must last {recovered}, and {shortest.end(slo.after)}: {shortest.remedy}"
    sides = {selection.about.side for selection in slo.selections} if isinstance(slo, Measure) else {slo.side}
    for workload in draft.workloads.values():
        if "produce" in sides and workload.produce and workload.produce.acks == "0":
            names = [name for name in workload.arms if name in (slo.arms or workload.arms)]
            if names:
                yield (
                    f"no record of `{names[0]}` is acknowledged with `acks: 0`, so this SLO can't be measured: "
                    "use `acks: 1` or `acks: all`, or limit consume.latency"
                )
                break
    if not isinstance(slo, Measure):
        return
    longest = longest_ms(draft, slo.of.window, timing)
    if slo.of.every_us is not None and longest is not None and slo.of.every_us > longest * 1000:
        where = f"{slo.of.window or 'the run'}, which lasts {format_duration(longest)} at most"
        yield f"no slot of {format_duration(slo.of.every_us // 1000)} fits into {where}: use shorter slots"
    blocks = len(draft.faults.expansion.blocks_ms) or 1
    if slo.compares_arms and slo.confidence is not None and blocks < BLOCKS_MIN:
        yield (
            f"a comparison of arms with a confidence needs {BLOCKS_MIN} blocks (repetitions of the plan's faults), "
            f"and the plan has {blocks}: set `blocks: {BLOCKS_ADVISED}`, or remove the confidence"
        )
    if slo.compares_arms and len(slo.arms) == 1 and not set(arms_on(draft, slo.side)) - set(slo.arms):
        yield f"`{slo.arms[0]}` is the only arm that {slo.side}s, so there is no arm to compare with it: add an arm"
    if slo.each == "partition":
        partitions = {topic.name: topic.partitions for topic in draft.topics.values()}
        produces = [workload.produce for workload in draft.workloads.values() if workload.produce]
        keyed = [(made.keys, name) for made in produces if made.keys for name in made.topic_names(partitions)]
        for keys, name in keyed:
            if keys < partitions.get(name, 0):
                reached = f"{keys} of the {partitions[name]} partitions of {name}"
                yield f"{keys} keys reach at most {reached}: use more keys, or omit `keys`"
    # Only the reference client reports a record's rack, broker and leader epoch.
    if slo.each in ("rack", "broker") or (slo.each, slo.side) == ("epoch", "produce"):
        judged_arms = {slo.of.arm} if slo.of.arm else set(arms_on(draft, slo.side))
        clients = [(name, arm.client) for workload in draft.workloads.values() for name, arm in workload.arms.items()]
        for name, client in clients:
            if name in judged_arms and client != "reference":
                yield (
                    f"the {client} client of arm `{name}` does not report the {slo.each} of a record: "
                    f"use `client: reference`, or remove `for each {slo.each}`"
                )
                break


def unfailable(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for each SLO that can't fail, because its limit is longer than the observed time."""
    timing = draft.timing
    if timing is None:
        return
    for index, slo in draft.slo.items():
        sentences: list[str] = []
        if isinstance(slo, Recovery):
            longest = max(_events(draft, slo, timing), default=None)
            if longest is not None and slo.limit_us > longest.length_ms * 1000 - slo.for_us:
                sentences.append(
                    f"this SLO can't fail: {longest.end(slo.after)}, before a recovery can be too late: "
                    f"{longest.remedy}"
                )
        elif isinstance(slo, Measure):
            # Gaps and unavailable time are clipped to their window.
            threshold_us = slo.threshold_us if slo.of.metric.endswith((".gap", ".unavailable")) else None
            limit_ms = longest_ms(draft, slo.of.window, timing) if slo.of.every_us is None else slo.of.every_us // 1000
            if threshold_us is not None and limit_ms is not None and threshold_us > limit_ms * 1000:
                sentences.append(
                    f"this SLO can't fail: {slo.of.place or 'the run'} lasts {format_duration(limit_ms)} at most, and "
                    "values are clipped to that time: lower the threshold, or use a longer window"
                )
            arms = (slo.of.arm,) if slo.of.arm else arms_on(draft, slo.side)
            is_divisible = slo.each in ("rack", "broker", "partition")
            if is_divisible and {subject_count(draft, slo.side, arm, slo.each) for arm in arms} == {1}:
                sentences.append(
                    f"`for each {slo.each}` has no effect, as there is one {slo.each} only: remove `for each`"
                )
        yield from (Problem(("slo", index), sentence) for sentence in sentences)


@dataclass(frozen=True, order=True)
class _Event:
    """Time from a fault to the next fault or the end of the load, in which a recovery from the fault is observed."""

    length_ms: int
    by_fault: str = ""

    def end(self, fault: str) -> str:
        what = f"`{self.by_fault}` begins" if self.by_fault else "the load ends"
        return f"{what} {format_duration(self.length_ms)} after `{fault}` begins"

    @property
    def remedy(self) -> str:
        return f"let `{self.by_fault}` begin later" if self.by_fault else "lengthen timing.recovery"


def _events(draft: Draft, slo: Recovery, timing: Timing) -> list[_Event]:
    """Return the event of each repetition of the fault that an SLO names; none if the plan doesn't determine them.

    Faults that follow each other within the length of the recovered state are one event (docs/SLO.md).
    """
    if not is_certain(draft):
        return []
    schedule = sorted(draft.faults.expansion.schedule, key=lambda scheduled: scheduled.fault.at)
    end_ms = length_ms((scheduled.fault for scheduled in schedule), timing)
    events = []
    for index, scheduled in enumerate(schedule):
        if slo.after in (scheduled.id, scheduled.entry):
            pairs = pairwise(schedule[index:])
            gaps = ((after, after.fault.at - before.fault.at) for before, after in pairs)
            following = next((after for after, gap_ms in gaps if gap_ms * 1000 >= slo.for_us), None)
            until_ms = end_ms if following is None else following.fault.at
            events.append(_Event(until_ms - scheduled.fault.at, following.id if following else ""))
    return events
