"""A plan that may fail the same way, and what was done to make it. Documents are plain data, as YAML reads them.

How a search asks: it yields a candidate, is sent whether that fails the same way, and so on till it returns.

Rules. What `plan check` or the compiler would refuse is not asked about: it doesn't fail, and costs nothing. Each
change of a reduction is asked about once, also when another has been accepted in between: what had no chance before
seldom has one afterwards, and a run is dear.

Delta debugging (Zeller & Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): ddmin over a tuple.

Rules. All items together fail, none of them does not: both are known before. First halves are tried; where neither
fails, what is left when one part of several is taken away, the parts getting smaller till they are single items. Then
no single item can be taken away (1-minimal). Parts alone beyond halves are not tried, as the paper does: with two
culprits far apart they all pass, and a run is dear.

The single faults of a plan, wherever they stand in what it composes, and the plan with some of them only.

Rules. A ``choose`` is one unit, since it comes to one fault; of ``repeat``, ``then`` and ``together`` the faults inside
are units, and a container goes with its last one. What is left begins when the plan's first fault did, so that nobody
waits for faults that are gone.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from pydantic import ValidationError

from aftershock.errors import PlanError
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import check
from aftershock.faults.plan.document import Location
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.units import format_duration, parse_duration_ms
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.timeline import Timeline

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """``said``: how it differs from what it was made of, for the log."""

    said: str
    document: Document


Reduction = Callable[[Document], Iterator[Candidate]]
"""Ways to make a document smaller in one respect, the one that is likely to gain most first."""


def value_at(document: Document, loc: Location) -> Any:
    """What stands there; None where nothing does."""
    here: Any = document
    for step in loc:
        known = step in here if isinstance(here, Mapping) else isinstance(step, int) and step < len(here)
        if not known:
            return None
        here = here[step]
    return here


def changed(document: Document, values: Mapping[Location, Any]) -> Document:
    """A copy with other values at these places."""
    copy: Any = deepcopy(dict(document))
    for (*path, last), value in values.items():
        here = copy
        for step in path:
            here = here.setdefault(step, {}) if isinstance(here, dict) else here[step]
        here[last] = value
    return dict(copy)


def without(document: Document, *places: Location) -> Document:
    """A copy that lacks what stands at these places."""
    copy: Any = deepcopy(dict(document))
    for *path, last in sorted(places, key=lambda place: [str(step).zfill(4) for step in place], reverse=True):
        here = copy
        for step in path:
            here = here[step]
        del here[last]
    return dict(copy)


def digest(*what: Any) -> str:
    """A name for plain data: the same for the same."""
    said = json.dumps(what, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


T = TypeVar("T")
Search = Generator[Candidate, bool, T]


def refused(document: Document, seed: int) -> str:
    """Why such a plan can't be run with this seed; nothing where it can."""
    try:
        compiled(document, seed)
    except PlanError as error:
        return error.problems[0]
    return ""


def compiled(document: Document, seed: int) -> Timeline:
    """What it comes to with this seed. PlanError where it can't be run."""
    try:
        plan = Plan.model_validate(document)
    except ValidationError as error:
        raise PlanError([f"plan: {detail['loc']}: {detail['msg']}" for detail in error.errors()]) from error
    check(plan)
    return compile_plan(plan, seed, str(document["name"]), [""] * len(plan.slo))


def fails(candidate: Candidate, seed: int) -> Search[bool]:
    """Whether it can be run and then fails the same way."""
    return not refused(candidate.document, seed) and (yield candidate)


def reduced(document: Document, reduction: Reduction, seed: int) -> Search[Document]:
    """The document with every change of the reduction that keeps it failing."""
    asked: set[str] = set()
    while True:
        for candidate in reduction(document):
            if candidate.said in asked:
                continue
            asked.add(candidate.said)
            if (yield from fails(candidate, seed)):
                document = candidate.document
                break
        else:
            return document


Item = TypeVar("Item")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Items = tuple[Item, ...]


def ddmin(
    items: Items[Item], fails: Callable[[Items[Item]], Generator[Asked, Answer, bool]]
) -> Generator[Asked, Answer, Items[Item]]:
    """A 1-minimal subset that fails, its order kept; ``fails`` asks about one."""
    parts, asked = 2, set[Items[Item]]()
    while len(items) > 1:
        for subset in _smaller(items, parts):
            if subset in asked:  # two of three are also the larger half
                continue
            asked.add(subset)
            if (yield from fails(subset)):
                items, parts = subset, max(parts - 1, 2)
                break
        else:
            if parts == len(items):
                break
            parts = min(2 * parts, len(items))
    return items


def _smaller(items: Items[Item], parts: int) -> list[Items[Item]]:
    """The halves; of more parts, what is left without each."""
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    cuts = list(pairwise(bounds))
    if parts == 2:  # noqa: PLR2004 -- what is left without a half is the other half
        return [items[low:high] for low, high in cuts]
    return [items[:low] + items[high:] for low, high in cuts]


_LISTS = ("together", "then")


def units(document: Document) -> tuple[Location, ...]:
    """Where its faults stand, in the order of the plan."""
    faults = document.get("faults") or ()
    return tuple(loc for index, entry in enumerate(faults) for loc in _inside(entry, ("faults", index)))


def tampers(document: Document) -> bool:
    """Whether any of its faults needs the wire proxy."""
    kinds = (kind for entry in document.get("faults") or () for kind in _kinds(entry))
    return any(KINDS[kind].family == "protocol" for kind in kinds)


def only(document: Document, kept: Collection[Location]) -> Document:
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


def _of(document: Document, kept: Sequence[Location]) -> Candidate:
    names = ", ".join(name_of(document, loc) for loc in kept)
    return Candidate(f"only {names}", only(document, kept))


def name_of(document: Document, loc: Location) -> str:
    """What the log calls a fault: its id, else its kind and where it stands."""
    said = value_at(document, loc) or {}
    return str(said.get("id") or f"{said.get('kind', 'choose')} (entry {int(loc[1]) + 1})")


def _kinds(entry: Any) -> Iterator[str]:
    if isinstance(entry, Mapping):
        yield from [entry["kind"]] if "kind" in entry else []
        entry = list(entry.values())
    for child in entry if isinstance(entry, list) else ():
        yield from _kinds(child)


def _inside(entry: Mapping[str, Any], loc: Location) -> Iterator[Location]:
    for word in _LISTS:
        for index, child in enumerate(entry.get(word) or ()):
            yield from _inside(child, (*loc, word, index))
    if "fault" in entry:
        yield from _inside(entry["fault"], (*loc, "fault"))
    if "kind" in entry or "choose" in entry:
        yield loc


def _left(entry: Mapping[str, Any], loc: Location, kept: Collection[Location]) -> Mapping[str, Any] | None:
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
