"""The single faults of a plan, wherever they stand in what it composes, and the plan with some of them only.

Rules. A ``choose`` is one unit, since it comes to one fault; of ``repeat``, ``then`` and ``together`` the faults inside
are units, and a container goes with its last one. What is left begins when the plan's first fault did, so that nobody
waits for faults that are gone.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from aftershock.faults.kinds import KINDS
from aftershock.faults.minimise.candidate import Candidate, Document, changed, value_at
from aftershock.faults.minimise.ddmin import ddmin
from aftershock.faults.minimise.trying import Search, fails
from aftershock.faults.problem import Loc
from aftershock.faults.units import format_duration, parse_duration_ms

_LISTS = ("together", "then")


def units(document: Document) -> tuple[Loc, ...]:
    """Where its faults stand, in the order of the plan."""
    faults = document.get("faults") or ()
    return tuple(loc for index, entry in enumerate(faults) for loc in _inside(entry, ("faults", index)))


def tampers(document: Document) -> bool:
    """Whether any of its faults needs the wire proxy."""
    kinds = (kind for entry in document.get("faults") or () for kind in _kinds(entry))
    return any(KINDS[kind].family == "protocol" for kind in kinds)


def only(document: Document, kept: Collection[Loc]) -> Document:
    """The plan with these of its faults."""
    pairs = enumerate(document.get("faults") or ())
    entries = [left for index, entry in pairs if (left := _left(entry, ("faults", index), kept)) is not None]
    begin_ms = _begin_ms(document.get("faults") or ())
    return changed(document, {("faults",): _begun(entries, begin_ms)})


def fewest(document: Document, seed: int) -> Search[Document]:
    """The plan with as few faults as still fail: none, if the fault was not theirs; else found by `ddmin`."""
    everything = units(document)
    if not everything:
        return document
    nothing = only(document, ())
    if (yield from fails(Candidate("without any fault", nothing), seed)):
        return nothing
    left = yield from ddmin(everything, lambda kept: fails(_of(document, kept), seed))
    return only(document, left) if len(left) < len(everything) else document


def _of(document: Document, kept: Sequence[Loc]) -> Candidate:
    names = ", ".join(name_of(document, loc) for loc in kept)
    return Candidate(f"only {names}", only(document, kept))


def name_of(document: Document, loc: Loc) -> str:
    """What the log calls a fault: its id, else its kind and where it stands."""
    said = value_at(document, loc) or {}
    return str(said.get("id") or f"{said.get('kind', 'choose')} (entry {int(loc[1]) + 1})")


def _kinds(entry: Any) -> Iterator[str]:
    if isinstance(entry, Mapping):
        yield from [entry["kind"]] if "kind" in entry else []
        entry = list(entry.values())
    for child in entry if isinstance(entry, list) else ():
        yield from _kinds(child)


def _inside(entry: Mapping[str, Any], loc: Loc) -> Iterator[Loc]:
    for word in _LISTS:
        for index, child in enumerate(entry.get(word) or ()):
            yield from _inside(child, (*loc, word, index))
    if "fault" in entry:
        yield from _inside(entry["fault"], (*loc, "fault"))
    if "kind" in entry or "choose" in entry:
        yield loc


def _left(entry: Mapping[str, Any], loc: Loc, kept: Collection[Loc]) -> Mapping[str, Any] | None:
    """What is left of an entry; None where no fault is."""
    if "kind" in entry or "choose" in entry:
        return entry if loc in kept else None
    if not any(place[: len(loc)] == loc for place in kept):
        return None if "wait" not in entry else entry
    if "fault" in entry:
        return {**entry, "fault": _left(entry["fault"], (*loc, "fault"), kept)}
    word = next(word for word in _LISTS if word in entry)
    pairs = enumerate(entry[word])
    return {**entry, word: [left for index, child in pairs if (left := _left(child, (*loc, word, index), kept))]}


def _begin_ms(entries: Collection[Mapping[str, Any]]) -> int | None:
    """When the first begins; None where a draw decides about any."""
    begins = [entry.get("at", "0s") for entry in entries]
    if not begins or not all(isinstance(at, str) for at in begins):
        return None
    return min(map(parse_duration_ms, begins))


def _begun(entries: list[Mapping[str, Any]], begin_ms: int | None) -> list[Mapping[str, Any]]:
    """The entries, all earlier by what the first of them is late."""
    late_ms = (_begin_ms(entries) or 0) - (begin_ms or 0)
    if begin_ms is None or late_ms <= 0:
        return entries
    return [_moved(entry, late_ms) for entry in entries]


def _moved(entry: Mapping[str, Any], earlier_ms: int) -> Mapping[str, Any]:
    moved = {**entry, "at": format_duration(parse_duration_ms(entry.get("at", "0s")) - earlier_ms)}
    if isinstance(entry.get("until"), str):  # counts from the same moment
        moved["until"] = format_duration(parse_duration_ms(entry["until"]) - earlier_ms)
    return moved
