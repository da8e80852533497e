"""What a search begins with: the plan with the SLOs at stake only, and with a name for each fault.

A fault without an id is called by its kind and its number among them, so those after one that is dropped would change
their names, and SLOs would read the windows of others. A fault with an id of its own draws from a stream of that name
(``expand.py``), so naming one that draws may make another fault of it: then the named plan is a candidate like others.

Fewer rounds: ``blocks`` and ``repeat``, whose every round costs its time again in each run. So they go first.

Where faults stand: a choice settled, two alike that follow each other made one, gaps between faults closed.

Less load: one workload, one arm, one side of it, half the rate. What can't feed an SLO, the check refuses.

Less time: every ``for`` and every phase half as long, again and again, down to what can still be seen.

A smaller cluster: topics, partitions, settings, racks, brokers. Last, since most of it takes another launch.

Weaker faults: a delay half as long, a bandwidth twice as wide, one way of a link instead of both.

Only where a kind's words have one meaning wherever they are used; a new kind's other parameters stay as they are.

The whole search, in the order of what is likely to gain most: rounds, faults, where and how long, load, cluster.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.cluster import Cluster
from aftershock.faults.plan.document import Location
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.parsing import draft_of
from aftershock.faults.plan.units import (
    format_bytes_per_s,
    format_duration,
    format_rate,
    parse_bytes_per_s,
    parse_duration_ms,
    parse_rate_per_s,
    parse_size_bytes,
    ranges_in,
)
from aftershock.faults.plan.workloads import Timing
from aftershock.faults.search.candidates import (
    Candidate,
    Document,
    Search,
    changed,
    compiled,
    fails,
    fewest,
    name_of,
    reduced,
    tampers,
    units,
    value_at,
    without,
)
from aftershock.faults.timeline.expand import end_ms
from aftershock.results.slo import parse


def focused(document: Document, checks: Collection[str]) -> Document:
    """The plan with those of its SLOs that these checks come from. An integrity rule needs none to be judged.

    A plan that has the wire proxy for its faults' sake keeps it without them, so that all candidates share a cluster.
    """
    kept = [entry for entry in document.get("slo") or () if _id(entry) in {*checks, *map(_unnumbered, checks)}]
    values: dict[Location, Any] = {("slo",): kept}
    if tampers(document):
        values["cluster", "wire_proxy"] = True
    return changed(document, values)


def named(document: Document, seed: int) -> Search[Document]:
    """The plan with an id for each fault, unless that makes other faults of them that no longer fail."""
    ids = draft_of(Plan.model_validate(document)).faults.ids
    candidate = changed(document, {(*loc, "id"): name for loc, name in ids.items()})
    if compiled(candidate, seed).steps == compiled(document, seed).steps:
        return candidate
    kept = yield from fails(Candidate("each fault with an id, so that others are drawn", candidate), seed)
    return candidate if kept else document


def _id(entry: object) -> str:
    return parse(entry["slo"] if isinstance(entry, dict) else str(entry)).check_id()


def _unnumbered(check: str) -> str:
    """Of two SLOs that say the same with other thresholds, the second's check has a number: both stay."""
    return re.sub(r"-\d+$", "", check)


def rounds(document: Document) -> Iterator[Candidate]:
    """One block, or half of them; then the same of each ``repeat``."""
    blocks = document.get("blocks", 1)
    for fewer in _fewer(blocks):
        yield Candidate(f"{fewer} of {blocks} blocks", changed(document, {("blocks",): fewer}))
    for loc in _repeats(document):
        times = value_at(document, (*loc, "repeat"))
        for fewer in _fewer(times or 1):
            yield Candidate(
                f"entry {int(loc[1]) + 1}: {fewer} of {times} rounds", changed(document, {(*loc, "repeat"): fewer})
            )
        if times is None:
            once = changed(without(document, (*loc, "until")), {(*loc, "repeat"): 1})
            yield Candidate(
                f"entry {int(loc[1]) + 1}: one round, not until {value_at(document, (*loc, 'until'))}", once
            )


def _fewer(times: int) -> list[int]:
    return sorted({1, times // 2} - {0, times})


def _repeats(document: Document) -> list[Location]:
    """Where something is repeated, the outermost first."""
    places = {loc[:length] for loc in units(document) for length in range(2, len(loc))}
    found = [loc for loc in places if isinstance(said := value_at(document, loc), dict) and "fault" in said]
    return sorted(
        (loc for loc in found if "weight" not in value_at(document, loc)), key=lambda loc: (len(loc), str(loc))
    )


def settled(document: Document) -> Iterator[Candidate]:
    """Each alternative in the place of its ``choose``."""
    for loc in units(document):
        for number, choice in enumerate(value_at(document, (*loc, "choose")) or (), 1):
            fault = {**choice["fault"], **_at(value_at(document, loc))}
            yield Candidate(f"entry {int(loc[1]) + 1}: choice {number}", changed(document, {loc: fault}))


def merged(document: Document) -> Iterator[Candidate]:
    """Neighbours that differ in their times only, as one that lasts from the first's begin to the other's end."""
    placed = _placed(document)
    for (_, one, first), (_, other, second) in pairwise(placed):
        if _alike(one, other) and first.for_ and second.for_:
            lasts = {**one, "for": format_duration(end_ms(second) - first.at)}
            entries = [lasts if entry is one else entry for entry in document["faults"] if entry is not other]
            said = f"{name_of(document, ('faults', document['faults'].index(one)))} and the one after it as one"
            yield Candidate(said, changed(document, {("faults",): entries}))


def closer(document: Document) -> Iterator[Candidate]:
    """Each fault begins when all before it are over; those that overlap go on doing so."""
    places: dict[Location, str] = {}
    over_ms = skipped_ms = 0
    for loc, _, fault in _placed(document):
        skipped_ms += max(0, fault.at - over_ms) if over_ms else 0
        over_ms = max(over_ms, end_ms(fault))
        places[*loc, "at"] = format_duration(fault.at - skipped_ms)
    if skipped_ms:
        yield Candidate(f"gaps of {format_duration(skipped_ms)} closed", changed(document, places))


def _placed(document: Document) -> list[tuple[tuple[str, int], Mapping[str, Any], Fault]]:
    """The plan's entries that are faults with nothing left to draw, in the order of time; none where others are."""
    entries = document.get("faults") or ()
    if any("kind" not in entry or any(ranges_in(entry)) for entry in entries):
        return []
    read = [(("faults", n), entry, KINDS[entry["kind"]].model_validate(entry)) for n, entry in enumerate(entries)]
    return sorted(read, key=lambda each: each[2].at)


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    times = ("id", "at", "for")
    said, said_too = ({key: value for key, value in each.items() if key not in times} for each in (one, other))
    return said == said_too


def _at(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"at": entry["at"]} if "at" in entry else {}


RATE_PER_S_MIN = 5
_SIDES = ("commit", "consume", "produce")


def load(document: Document) -> Iterator[Candidate]:
    """Whole workloads first, the rate last."""
    places: list[Location] = [("workloads", index) for index in range(len(document["workloads"]))]
    for loc in places if len(places) > 1 else ():
        yield Candidate(f"without workload {value_at(document, (*loc, 'name'))}", without(document, loc))
    for loc in places:
        yield from _arms(document, loc)
    for loc in places:
        yield from _sides(document, loc)
    for loc in places:
        yield from _rates(document, loc)


def _arms(document: Document, loc: Location) -> Iterator[Candidate]:
    arms = value_at(document, (*loc, "arms")) or {}
    for arm in arms if len(arms) > 1 else ():
        yield Candidate(f"only arm {arm}", changed(document, {(*loc, "arms"): {arm: arms[arm]}}))
    for arm in arms if len(arms) > 2 else ():  # noqa: PLR2004 -- of two, one without the other was tried
        yield Candidate(f"without arm {arm}", without(document, (*loc, "arms", arm)))


def _sides(document: Document, loc: Location) -> Iterator[Candidate]:
    sides = [side for side in _SIDES if value_at(document, (*loc, side))]
    for side in sides if len(sides) > 1 else ():
        said = f"workload {value_at(document, (*loc, 'name'))} without {side}"
        yield Candidate(said, without(document, (*loc, side)))


def _rates(document: Document, loc: Location) -> Iterator[Candidate]:
    for side in ("produce", "commit"):
        rate = value_at(document, (*loc, side, "rate"))
        if rate and (half := parse_rate_per_s(rate) / 2) >= RATE_PER_S_MIN:
            said = f"workload {value_at(document, (*loc, 'name'))}: {side} at {format_rate(half)}, not {rate}"
            yield Candidate(said, changed(document, {(*loc, side, "rate"): format_rate(half)}))


FOR_MS_MIN = 500
PHASE_MS_MIN = 2_000
_PHASES = ("recovery", "steady", "fault")


def shorter(document: Document) -> Iterator[Candidate]:
    """The phases, all faults at once, then each."""
    halves = dict(_phases(document))
    if halves:
        yield Candidate(f"phases: {_said(halves)}", changed(document, halves))
    fors = dict(_fors(document))
    if len(fors) > 1:
        yield Candidate(f"every fault half as long: {_said(fors)}", changed(document, fors))
    for loc, half in fors.items():
        said = f"{name_of(document, loc[:-1])} for {half}, not {value_at(document, loc)}"
        yield Candidate(said, changed(document, {loc: half}))


def _phases(document: Document) -> Iterator[tuple[Location, str]]:
    timing = Timing.model_validate(document.get("timing") or {})
    for phase in _PHASES:
        if (half := _half(getattr(timing, phase), PHASE_MS_MIN)) is not None:
            yield ("timing", phase), half


def _fors(document: Document) -> Iterator[tuple[Location, str]]:
    for loc in units(document):
        lasts = value_at(document, (*loc, "for"))
        if isinstance(lasts, str) and (half := _half(parse_duration_ms(lasts), FOR_MS_MIN)) is not None:
            yield (*loc, "for"), half


def _half(ms: int, least_ms: int) -> str | None:
    """Half of it, in steps of 100 ms; None where that is too short."""
    half_ms = ms // 200 * 100
    return format_duration(half_ms) if half_ms >= least_ms else None


def _said(halves: dict[Location, str]) -> str:
    return ", ".join(f"{loc[-1] if loc[-1] != 'for' else loc[1]} {half}" for loc, half in halves.items())


def smaller(document: Document) -> Iterator[Candidate]:
    """Topics that nobody needs, partitions and settings; then nodes."""
    for index, topic in enumerate(document["topics"]):
        loc = ("topics", index)
        if len(document["topics"]) > 1:
            yield Candidate(f"without topic {topic['name']}", without(document, loc))
        for fewer in sorted({1, topic["partitions"] // 2} - {0, topic["partitions"]}):
            said = f"topic {topic['name']}: {fewer} of {topic['partitions']} partitions"
            yield Candidate(said, changed(document, {(*loc, "partitions"): fewer}))
        yield from _without_each(document, (*loc, "config"), f"topic {topic['name']}")
    yield from _without_each(document, ("cluster", "config"), "cluster")
    yield from _nodes(document)


def _without_each(document: Document, loc: Location, whose: str) -> Iterator[Candidate]:
    settings = value_at(document, loc) or {}
    for setting in settings:
        yield Candidate(f"{whose} without {setting}", without(document, (*loc, setting) if len(settings) > 1 else loc))


def _nodes(document: Document) -> Iterator[Candidate]:
    cluster = Cluster.model_validate(document.get("cluster") or {})
    for word in ("controllers", "disks", "wire_proxy"):
        if value_at(document, ("cluster", word)) and not (word == "wire_proxy" and tampers(document)):
            yield Candidate(f"cluster without {word}", without(document, ("cluster", word)))
    for rack, brokers in cluster.racks.items():
        for fewer in sorted({0, 1} - {brokers}):
            racks = {name: fewer if name == rack else count for name, count in cluster.racks.items()}
            left = {name: count for name, count in racks.items() if count}
            said = f"rack {rack} with {fewer} of {brokers} brokers" if fewer else f"without rack {rack}"
            yield Candidate(said, _with_racks(document, left))


def _with_racks(document: Document, racks: dict[str, int]) -> Document:
    """With as many replicas as there are brokers, at most."""
    most = sum(racks.values())
    replicas: dict[Location, int] = {
        ("topics", index, "replication"): min(topic["replication"], most)
        for index, topic in enumerate(document["topics"])
    }
    return changed(document, {("cluster", "racks"): racks, **replicas})


_DELAY_MS_MIN = 10
_NEEDLESS = ("jitter", "ramp_to", "spikes")


def weaker(document: Document) -> Iterator[Candidate]:
    """Of each fault: what it can do without, one way instead of two, then half the strength."""
    for loc in units(document):
        fault, name = value_at(document, loc), name_of(document, loc)
        for word in _NEEDLESS:
            if word in fault:
                yield Candidate(f"{name} without {word}", without(document, (*loc, word)))
        for word, value in _milder(fault):
            said = f"{name}: {word} {value}, not {fault[word]}"
            yield Candidate(said, changed(document, {(*loc, word): value}))


def _milder(fault: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for word, half in _HALVES.items():
        if isinstance(fault.get(word), str | int | float) and (value := half(fault[word])) is not None:
            yield word, value


def _one_way(link: str) -> str | None:
    return link.replace("<->", "->") if "<->" in link else None


def _half_delay(delay: str) -> str | None:
    half_ms = parse_duration_ms(delay) // 2
    return format_duration(half_ms) if half_ms >= _DELAY_MS_MIN else None


_HALVES: Mapping[str, Callable[[Any], Any]] = {
    "link": _one_way,
    "delay": _half_delay,
    "probability": lambda odds: odds / 2,
    "rate": lambda rate: format_bytes_per_s(2 * parse_bytes_per_s(rate)),
    "cpus": lambda cpus: 2 * cpus,
    "memory": lambda size: 2 * parse_size_bytes(size),
    "bytes": lambda size: 2 * parse_size_bytes(size),
}


_AFTER_STEPS = (settled, merged, closer, shorter, load, weaker, smaller)


def minimised(document: Document, seed: int) -> Search[Document]:
    """A smaller plan that fails the same way, as the document does; no single fault could be left out of it."""
    document = yield from named(document, seed)
    document = yield from reduced(document, rounds, seed)
    document = yield from fewest(document, seed)
    for reduction in _AFTER_STEPS:
        document = yield from reduced(document, reduction, seed)
    return document
