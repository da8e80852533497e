"""Search for the smallest set of faults with which a failing plan still fails.

A search is a generator that yields a `Candidate` plan, receives True if the candidate fails the same way as the
original plan, and returns the smallest plan. A plan document is a plan as plain data. A candidate that ``plan check``
or the compiler refuses counts as not failing and is never run.
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
from aftershock.faults.plan.model import Plan
from aftershock.faults.sections.document import Location
from aftershock.faults.sections.units import format_duration, parse_duration_ms
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.timeline import Timeline

T = TypeVar("T")
Item = TypeVar("Item")
Question = TypeVar("Question")
Answer = TypeVar("Answer")
Items = tuple[Item, ...]
Document = Mapping[str, Any]

_LISTS = ("together", "then")


@dataclass(frozen=True)
class Candidate:
    """A smaller or simpler plan to test; ``change`` describes the change for the log."""

    change: str
    document: Document


Search = Generator[Candidate, bool, T]
Reduction = Callable[[Document], Iterator[Candidate]]
"""Reductions of a plan in one respect, as smaller plans to try; the largest expected gain comes first."""


def value_at(document: Document, loc: Location) -> Any:
    """Return the value at a location in a plan document, or None if the location doesn't exist."""
    value: Any = document
    for step in loc:
        exists = step in value if isinstance(value, Mapping) else isinstance(step, int) and step < len(value)
        if not exists:
            return None
        value = value[step]
    return value


def with_values(document: Document, values: Mapping[Location, Any]) -> Document:
    """Copy a plan document with the value at each location replaced; create missing parent mappings."""
    copy = deepcopy(dict(document))
    for (*path, last), value in values.items():
        parent: Any = copy
        for step in path:
            parent = parent.setdefault(step, {}) if isinstance(parent, dict) else parent[step]
        parent[last] = value
    return copy


def without(document: Document, loc: Location) -> Document:
    copy = deepcopy(dict(document))
    del value_at(copy, loc[:-1])[loc[-1]]
    return copy


def digest(*values: Any) -> str:
    """Return 16 hexadecimal digits, a hash that identifies plain data."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def refusal_of(document: Document, seed: int) -> str:
    """Return why the plan can't run with this seed; an empty text if the plan can run."""
    try:
        compile_document(document, seed)
    except PlanError as error:
        return error.problems[0]
    return ""


def compile_document(document: Document, seed: int) -> Timeline:
    """Compile a plan document with a seed; raise PlanError if the plan can't run."""
    try:
        plan = Plan.model_validate(document)
    except ValidationError as error:
        details = [(detail["loc"], detail["msg"].removeprefix("Value error, ")) for detail in error.errors()]
        raise PlanError([f"plan: {loc}: {message}" for loc, message in details]) from error
    check(plan)
    return compile_plan(plan, seed, str(document["name"]), [""] * len(plan.slo))


def still_fails(candidate: Candidate, seed: int) -> Search[bool]:
    """Return True if the candidate plan can run and fails the same way as the original plan."""
    return not refusal_of(candidate.document, seed) and (yield candidate)


def apply_reduction(document: Document, reduction: Reduction, seed: int) -> Search[Document]:
    """Return the plan with all changes of a reduction after which the plan still fails; try each change only once."""
    tried: set[str] = set()
    while True:
        for candidate in reduction(document):
            if candidate.change not in tried:
                tried.add(candidate.change)
                if (yield from still_fails(candidate, seed)):
                    document = candidate.document
                    break
        else:
            return document


def ddmin(
    items: Items[Item], fails: Callable[[Items[Item]], Generator[Question, Answer, bool]]
) -> Generator[Question, Answer, Items[Item]]:
    """Return a subset of ``items`` that fails, but passes if any single item is removed (1-minimal).

    The algorithm is delta debugging, as in Zeller & Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
    2002. The plan with all items must fail, and the plan with no item must pass. ``fails`` runs the plan with a subset
    of the items, first with each half, then with all items except one quarter, one eighth, and so on. Unlike the
    paper's algorithm, `ddmin` doesn't test a quarter on its own, because if a failure needs two items far apart, all
    small parts pass.
    """
    parts, tried = 2, set[Items[Item]]()
    while len(items) > 1:
        bounds = [len(items) * number // parts for number in range(parts + 1)]
        if parts == 2:  # noqa: PLR2004 -- the complement of a half is the other half
            subsets = [items[low:high] for low, high in pairwise(bounds)]
        else:
            subsets = [items[:low] + items[high:] for low, high in pairwise(bounds)]
        for subset in subsets:
            if subset in tried:  # two of three items are also the larger half
                continue
            tried.add(subset)
            if (yield from fails(subset)):
                items, parts = subset, max(parts - 1, 2)
                break
        else:
            if parts == len(items):
                break
            parts = min(2 * parts, len(items))
    return items


def minimise_faults(document: Document, seed: int) -> Search[Document]:
    """Return the plan with as few faults as possible that still fails; no faults at all, or the result of `ddmin`."""
    everything = fault_units(document)
    if not everything:
        return document
    faultless = with_faults(document, ())
    if (yield from still_fails(Candidate("without any fault", faultless), seed)):
        return faultless

    def fails(subset: Sequence[Location]) -> Search[bool]:
        names = ", ".join(fault_name(document, loc) for loc in subset)
        return still_fails(Candidate(f"only {names}", with_faults(document, subset)), seed)

    minimum = yield from ddmin(everything, fails)
    return with_faults(document, minimum) if len(minimum) < len(everything) else document


def fault_units(document: Document) -> tuple[Location, ...]:
    """Return the locations of the plan's faults at any depth of composition, in the order of the plan.

    A ``choose`` counts as one fault, because one alternative is drawn.
    """

    def inside(entry: Mapping[str, Any], loc: Location) -> Iterator[Location]:
        for word in _LISTS:
            for index, child in enumerate(entry.get(word) or ()):
                yield from inside(child, (*loc, word, index))
        if "fault" in entry:
            yield from inside(entry["fault"], (*loc, "fault"))
        if "kind" in entry or "choose" in entry:
            yield loc

    faults = document.get("faults") or ()
    return tuple(loc for index, entry in enumerate(faults) for loc in inside(entry, ("faults", index)))


def fault_name(document: Document, loc: Location) -> str:
    """Return a fault's name for the log, which is its id, else its kind and its position in the plan."""
    entry = value_at(document, loc) or {}
    return str(entry.get("id") or f"{entry.get('kind', 'choose')} (entry {int(loc[1]) + 1})")


def needs_wire_proxy(document: Document) -> bool:
    """Return True if any fault of the plan needs the wire proxy."""

    def kinds(entry: Any) -> Iterator[str]:
        if isinstance(entry, Mapping):
            yield from [entry["kind"]] if "kind" in entry else []
            entry = list(entry.values())
        for child in entry if isinstance(entry, list) else ():
            yield from kinds(child)

    return any("wire_proxy" in KINDS[kind].needs for kind in kinds(list(document.get("faults") or ())))


def with_faults(document: Document, units: Collection[Location]) -> Document:
    """Return the plan with only some of its faults, moved so that the first fault starts when it did before."""
    entries = list(document.get("faults") or ())
    reduced = [_reduced_entry(entry, ("faults", index), units) for index, entry in enumerate(entries)]
    remaining = [dict(entry) for entry in reduced if entry is not None]
    idle_ms = (_begin_ms(remaining) or 0) - (_begin_ms(entries) or 0)
    if _begin_ms(entries) is not None and idle_ms > 0:
        for entry in remaining:
            entry["at"] = format_duration(parse_duration_ms(entry.get("at", "0s")) - idle_ms)
            if isinstance(entry.get("until"), str):  # counts from the same moment as `at`
                entry["until"] = format_duration(parse_duration_ms(entry["until"]) - idle_ms)
    return with_values(document, {("faults",): remaining})


def _reduced_entry(entry: Mapping[str, Any], loc: Location, units: Collection[Location]) -> Mapping[str, Any] | None:
    """Return an entry of the plan's ``faults`` reduced to the faults at the locations ``units``; None without them."""
    if "kind" in entry or "choose" in entry:
        return entry if loc in units else None
    if not any(unit[: len(loc)] == loc for unit in units):
        return None if "wait" not in entry else entry
    if "fault" in entry:
        return {**entry, "fault": _reduced_entry(entry["fault"], (*loc, "fault"), units)}
    word = next(word for word in _LISTS if word in entry)
    children = [_reduced_entry(child, (*loc, word, index), units) for index, child in enumerate(entry[word])]
    return {**entry, word: [child for child in children if child]}


def _begin_ms(entries: Collection[Mapping[str, Any]]) -> int | None:
    """Return the start of the first fault in ms; None if a start is drawn from a range, or without faults."""
    begins = [entry.get("at", "0s") for entry in entries]
    if not begins or not all(isinstance(at, str) for at in begins):
        return None
    return min(map(parse_duration_ms, begins))
