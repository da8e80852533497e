"""Where faults stand: a choice settled, two alike that follow each other made one, gaps between faults closed."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from aftershock.faults.fault import Fault
from aftershock.faults.kinds import KINDS
from aftershock.faults.lasting import end_ms
from aftershock.faults.minimise.candidate import Candidate, Document, changed, value_at
from aftershock.faults.minimise.steps import name_of, units
from aftershock.faults.problem import Loc
from aftershock.faults.ranges import ranges_in
from aftershock.faults.units import format_duration


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
    places: dict[Loc, str] = {}
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
