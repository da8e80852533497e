"""Minimise a failing plan by a fixed sequence of reductions, largest expected gain first.

Reductions of ``blocks`` and ``repeat`` come first, because each repetition takes time in every run. Reductions of the
cluster come last, because most need another launch of the cluster.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.expand import end_ms
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.parsing import draft_of
from aftershock.faults.search.candidates import (
    Candidate,
    Document,
    Search,
    apply_reduction,
    compile_document,
    fault_name,
    fault_units,
    minimise_faults,
    needs_wire_proxy,
    still_fails,
    value_at,
    with_values,
    without,
)
from aftershock.faults.sections.cluster import Cluster
from aftershock.faults.sections.document import Location
from aftershock.faults.sections.units import (
    format_bytes_per_s,
    format_duration,
    format_rate,
    parse_bytes_per_s,
    parse_duration_ms,
    parse_rate_per_s,
    parse_size_bytes,
    ranges_in,
)
from aftershock.faults.sections.workloads import Timing
from aftershock.results.slo import parse

RATE_PER_S_MIN = 5
FOR_MS_MIN = 500
PHASE_MS_MIN = 2_000

_DELAY_MS_MIN = 10


def minimise(document: Document, seed: int) -> Search[Document]:
    """Return a smaller plan that fails the same way, but passes if any single fault is removed."""
    document = yield from with_fault_ids(document, seed)
    document = yield from apply_reduction(document, reduce_rounds, seed)
    document = yield from minimise_faults(document, seed)
    for reduction in (resolve_choices, merge_faults, close_gaps, shorten, reduce_load, weaken_faults, shrink_cluster):
        document = yield from apply_reduction(document, reduction, seed)
    return document


def focus_slos(document: Document, checks: Collection[str]) -> Document:
    """Return the plan with only the SLOs of the failed checks; an integrity check needs no SLO.

    If any fault of the plan needs the wire proxy, all candidates use the wire proxy, so that they share a cluster.
    """
    # an SLO that differs from another in its threshold only has a numbered check: both SLOs stay
    ids = {*checks, *(re.sub(r"-\d+$", "", check) for check in checks)}
    slos = document.get("slo") or ()
    texts = [entry["slo"] if isinstance(entry, dict) else str(entry) for entry in slos]
    values: dict[Location, Any] = {
        ("slo",): [entry for entry, text in zip(slos, texts, strict=True) if parse(text).check_id() in ids]
    }
    if needs_wire_proxy(document):
        values["cluster", "wire_proxy"] = True
    return with_values(document, values)


def with_fault_ids(document: Document, seed: int) -> Search[Document]:
    """Give each fault of the plan an explicit id, unless the plan then draws other targets and no longer fails.

    Without explicit ids, removing one fault would rename later faults (``kill-2``), to which SLOs refer. An added id
    may change the fault's drawn targets, because the id is the name of the fault's random stream.
    """
    ids = draft_of(Plan.model_validate(document)).faults.ids
    candidate = with_values(document, {(*loc, "id"): name for loc, name in ids.items()})
    if compile_document(candidate, seed).steps == compile_document(document, seed).steps:
        return candidate
    change = "every fault gets an id, which changes the drawn targets"
    return candidate if (yield from still_fails(Candidate(change, candidate), seed)) else document


def reduce_rounds(document: Document) -> Iterator[Candidate]:
    """Try one block and half of the blocks (repetitions of all faults), then fewer rounds of each ``repeat``."""
    blocks = document.get("blocks", 1)
    for fewer in _fewer(blocks):
        yield Candidate(f"{fewer} of {blocks} blocks", with_values(document, {("blocks",): fewer}))
    parents = {loc[:length] for loc in fault_units(document) for length in range(2, len(loc))}
    entries = {loc: value_at(document, loc) for loc in parents}
    for loc, entry in sorted(entries.items(), key=lambda item: (len(item[0]), str(item[0]))):
        # an alternative of a `choose` also has a `fault`, and a `weight`
        if not isinstance(entry, dict) or "fault" not in entry or "weight" in entry:
            continue
        name = f"entry {int(loc[1]) + 1}"
        times = entry.get("repeat")
        for fewer in _fewer(times or 1):
            change = with_values(document, {(*loc, "repeat"): fewer})
            yield Candidate(f"{name}: {fewer} of {times} rounds", change)
        if times is None:
            change = with_values(without(document, (*loc, "until")), {(*loc, "repeat"): 1})
            yield Candidate(f"{name}: one round, not until {entry.get('until')}", change)


def _fewer(count: int) -> list[int]:
    return sorted({1, count // 2} - {0, count})


def resolve_choices(document: Document) -> Iterator[Candidate]:
    """Try to replace each ``choose`` of a plan by one of its alternatives."""
    for loc in fault_units(document):
        entry = value_at(document, loc)
        for number, alternative in enumerate(entry.get("choose") or (), 1):
            fault = {**alternative["fault"], **({"at": entry["at"]} if "at" in entry else {})}
            yield Candidate(f"entry {int(loc[1]) + 1}: choice {number}", with_values(document, {loc: fault}))


def merge_faults(document: Document) -> Iterator[Candidate]:
    """Try to replace two successive faults that differ only in their times by one long fault."""
    for (loc, entry, fault), (_, successor, later) in pairwise(_faults_by_time(document)):
        parameters, successor_parameters = (
            {key: value for key, value in fields.items() if key not in ("id", "at", "for")}
            for fields in (entry, successor)
        )
        if parameters == successor_parameters and fault.for_ and later.for_:
            merged = {**entry, "for": format_duration(end_ms(later) - fault.at)}
            entries = [merged if item is entry else item for item in document["faults"] if item is not successor]
            change = f"the fault {fault_name(document, loc)} merged with the next fault"
            yield Candidate(change, with_values(document, {("faults",): entries}))


def close_gaps(document: Document) -> Iterator[Candidate]:
    """Try to close the gaps between faults, so that a fault starts right after all earlier faults have ended."""
    values: dict[Location, str] = {}
    over_ms = skipped_ms = 0
    for loc, _, fault in _faults_by_time(document):
        skipped_ms += max(0, fault.at - over_ms) if over_ms else 0
        over_ms = max(over_ms, end_ms(fault))
        values[*loc, "at"] = format_duration(fault.at - skipped_ms)
    if skipped_ms:
        yield Candidate(f"gaps of {format_duration(skipped_ms)} closed", with_values(document, values))


def _faults_by_time(document: Document) -> list[tuple[tuple[str, int], Mapping[str, Any], Fault]]:
    """Return the plan's faults by start time; an empty list if any fault is composed or has a range of values."""
    entries = document.get("faults") or ()
    if any("kind" not in entry or any(ranges_in(entry)) for entry in entries):
        return []
    faults = [(("faults", n), entry, KINDS[entry["kind"]].model_validate(entry)) for n, entry in enumerate(entries)]
    return sorted(faults, key=lambda placed: placed[2].at)


def shorten(document: Document) -> Iterator[Candidate]:
    """Try to halve the lengths of the phases, then the durations of all faults, then each fault's duration."""
    timing = Timing.model_validate(document.get("timing") or {})
    phases = {phase: _half_duration(getattr(timing, phase), PHASE_MS_MIN) for phase in ("recovery", "steady", "fault")}
    values: dict[Location, str] = {("timing", phase): half for phase, half in phases.items() if half is not None}
    if values:
        summary = ", ".join(f"{phase} {half}" for (_, phase), half in values.items())
        yield Candidate(f"phases: {summary}", with_values(document, values))
    durations: dict[Location, str] = {}
    for loc in fault_units(document):
        duration = value_at(document, (*loc, "for"))
        if isinstance(duration, str) and (half := _half_duration(parse_duration_ms(duration), FOR_MS_MIN)) is not None:
            durations[*loc, "for"] = half
    if len(durations) > 1:
        summary = ", ".join(f"{loc[1]} {half}" for loc, half in durations.items())
        yield Candidate(f"every fault half as long: {summary}", with_values(document, durations))
    for loc, half in durations.items():
        change = f"{fault_name(document, loc[:-1])} for {half}, not {value_at(document, loc)}"
        yield Candidate(change, with_values(document, {loc: half}))


def _half_duration(ms: int, min_ms: int) -> str | None:
    """Return half of a duration, rounded down to 100 ms; None if that is shorter than ``min_ms``."""
    half_ms = ms // 200 * 100
    return format_duration(half_ms) if half_ms >= min_ms else None


def reduce_load(document: Document) -> Iterator[Candidate]:
    """Try to remove each workload, each arm and each produce or consume section, then to halve the rates."""
    workloads: dict[Location, Any] = {("workloads", n): workload for n, workload in enumerate(document["workloads"])}
    for loc, workload in workloads.items() if len(workloads) > 1 else ():
        yield Candidate(f"without workload {workload['name']}", without(document, loc))
    for loc, workload in workloads.items():
        arms = workload.get("arms") or {}
        for arm in arms if len(arms) > 1 else ():
            yield Candidate(f"only arm {arm}", with_values(document, {(*loc, "arms"): {arm: arms[arm]}}))
        for arm in arms if len(arms) > 2 else ():  # noqa: PLR2004 -- of two arms, each was tried alone
            yield Candidate(f"without arm {arm}", without(document, (*loc, "arms", arm)))
    for loc, workload in workloads.items():
        sides = [side for side in ("commit", "consume", "produce") if workload.get(side)]
        for side in sides if len(sides) > 1 else ():
            yield Candidate(f"workload {workload['name']} without {side}", without(document, (*loc, side)))
    for loc, workload in workloads.items():
        for side in ("produce", "commit"):
            rate = value_at(workload, (side, "rate"))
            if rate and (half := parse_rate_per_s(rate) / 2) >= RATE_PER_S_MIN:
                change = f"workload {workload['name']}: {side} at {format_rate(half)}, not {rate}"
                yield Candidate(change, with_values(document, {(*loc, side, "rate"): format_rate(half)}))


def weaken_faults(document: Document) -> Iterator[Candidate]:
    """Try to remove optional parameters of each fault, then to weaken other parameters, such as to halve ``delay``."""
    for loc in fault_units(document):
        fault, name = value_at(document, loc), fault_name(document, loc)
        for parameter in ("jitter", "ramp_to", "spikes"):
            if parameter in fault:
                yield Candidate(f"{name} without {parameter}", without(document, (*loc, parameter)))
        for parameter, weaken in _WEAKER.items():
            strength = fault.get(parameter)
            if isinstance(strength, str | int | float) and (weaker := weaken(strength)) is not None:
                change = f"{name}: {parameter} {weaker}, not {strength}"
                yield Candidate(change, with_values(document, {(*loc, parameter): weaker}))


def _half_delay(delay: str) -> str | None:
    half_ms = parse_duration_ms(delay) // 2
    return format_duration(half_ms) if half_ms >= _DELAY_MS_MIN else None


# parameters that have the same meaning in all fault kinds
_WEAKER: Mapping[str, Callable[[Any], Any]] = {
    "link": lambda link: link.replace("<->", "->") if "<->" in link else None,
    "delay": _half_delay,
    "probability": lambda probability: probability / 2,
    "rate": lambda rate: format_bytes_per_s(2 * parse_bytes_per_s(rate)),
    "cpus": lambda cpus: 2 * cpus,
    "memory": lambda size: 2 * parse_size_bytes(size),
    "bytes": lambda size: 2 * parse_size_bytes(size),
}


def shrink_cluster(document: Document) -> Iterator[Candidate]:
    """Try fewer topics, partitions and settings in a plan, then fewer controllers, disks, racks and brokers."""
    for index, topic in enumerate(document["topics"]):
        loc = ("topics", index)
        if len(document["topics"]) > 1:
            yield Candidate(f"without topic {topic['name']}", without(document, loc))
        for fewer in _fewer(topic["partitions"]):
            change = f"topic {topic['name']}: {fewer} of {topic['partitions']} partitions"
            yield Candidate(change, with_values(document, {(*loc, "partitions"): fewer}))
        yield from _without_settings(document, (*loc, "config"), f"topic {topic['name']}")
    yield from _without_settings(document, ("cluster", "config"), "cluster")
    for word in ("controllers", "disks", "wire_proxy"):
        if value_at(document, ("cluster", word)) and not (word == "wire_proxy" and needs_wire_proxy(document)):
            yield Candidate(f"cluster without {word}", without(document, ("cluster", word)))
    racks = Cluster.model_validate(document.get("cluster") or {}).racks
    for rack, brokers in racks.items():
        for fewer in sorted({0, 1} - {brokers}):
            counts = {name: fewer if name == rack else count for name, count in racks.items()}
            remaining = {name: count for name, count in counts.items() if count}
            values: dict[Location, Any] = {("cluster", "racks"): remaining}
            for index, topic in enumerate(document["topics"]):
                values["topics", index, "replication"] = min(topic["replication"], sum(remaining.values()))
            change = f"rack {rack} with {fewer} of {brokers} brokers" if fewer else f"without rack {rack}"
            yield Candidate(change, with_values(document, values))


def _without_settings(document: Document, loc: Location, owner: str) -> Iterator[Candidate]:
    settings = value_at(document, loc) or {}
    for setting in settings:
        yield Candidate(f"{owner} without {setting}", without(document, (*loc, setting) if len(settings) > 1 else loc))
