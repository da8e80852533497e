"""Expansion of a plan's composed faults into single faults, each with its time, its id and its random stream.

``resolve`` makes all random choices of a plan: each range becomes a value, each ``choose`` the drawn alternative, and
each round of a ``repeat`` and each block a part of its own, because it has its own draws. ``schedule`` gives the faults
of the resolved plan their times, and knows no seed. ``expand`` does both.

A fault's id is its explicit ``id``, else ``<kind>-<n>`` for the n-th fault of its kind in the plan; each
``repeat`` around it appends the round (``slow-2``), and the ``blocks`` of a plan are rounds around all faults
(``slow-3-2``). A fault's id never depends on random draws.

The name of a fault's random stream is the fault's explicit id; without an id, the content of its entry in the plan
(canonical JSON), the number of identical entries before it, and the location inside the entry. The stream's name ends
with the fault's round numbers and, for a range of values, the range's location. Therefore an added entry changes no
draw of the plan's other entries, and within an entry an explicit id preserves a fault's draws.

Without a seed, the expansion contains only the faults that no random choice or range can remove, move or change.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from pydantic import ValidationError

from aftershock.faults.kinds.client.membership import Join
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.model import (
    STEPS_MAX,
    AnyElement,
    Choose,
    Ranged,
    Repeat,
    Then,
    Together,
    Wait,
    children,
    walk,
)
from aftershock.faults.sections.document import Location, Problem
from aftershock.faults.sections.units import Range, fill_ranges, parse_range, ranges_in
from aftershock.faults.sections.workloads import Timing

Rounds = tuple[int, ...]


def window_ms(fault: Fault, timing: Timing) -> int:
    """Return the planned length of a fault's window, without the time reserved for injecting and healing."""
    return timing.fault if fault.for_ is None else fault.for_


def end_ms(fault: Fault) -> int:
    """Return the planned end of a fault; a fault without ``for`` lasts for the time reserved for its kind."""
    return fault.at + (fault.allowance_ms if fault.for_ is None else fault.for_)


def length_ms(faults: Iterable[Fault], timing: Timing) -> int:
    """Return the end of the load, that is ``timing.recovery`` after the last fault should be healed."""
    ends = [fault.at + window_ms(fault, timing) + fault.allowance_ms for fault in faults]
    return max(ends, default=timing.fault) + timing.recovery


@dataclass(frozen=True)
class ScheduledFault:
    """A fault with its final id, its location in the plan, and its random stream; its time is set by ``schedule``.

    ``entry`` is the fault's id in the plan, ``block`` the number of the repetition of all faults, 0 without ``blocks``.
    """

    loc: Location
    fault: Fault
    stream: str
    entry: str
    block: int

    @property
    def id(self) -> str:
        return str(self.fault.id)


@dataclass(frozen=True)
class Group:
    """Resolved faults and groups that start ``at_ms`` after the group's own start, together or ``in_turn``."""

    at_ms: int
    parts: "tuple[Resolved, ...]" = ()
    in_turn: bool = False


@dataclass(frozen=True)
class Undrawn:
    """Fault or composed element that depends on a draw, without a seed; its length is None if it depends on it, too."""

    length_ms: int | None = None


Resolved = ScheduledFault | Group | Undrawn


@dataclass(frozen=True)
class ResolvedPlan:
    """Faults of a plan with plain values; ``blocks`` has those of each block, one without ``blocks``.

    ``certain`` is False if a random choice was not made, because there was no seed; ``problems`` result from draws.
    """

    blocks: tuple[tuple[Resolved, ...], ...]
    certain: bool
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Expansion:
    """Single faults of a plan; ``certain`` is True if no fault depends on a draw; ``problems`` result from draws.

    ``blocks_ms`` has the start of each block (repetition of the plan's faults), and is empty without blocks.
    """

    schedule: tuple[ScheduledFault, ...] = ()
    certain: bool = False
    problems: tuple[Problem, ...] = ()
    blocks_ms: tuple[int, ...] = ()


def expand(
    elements: Mapping[Location, AnyElement],
    ids: Mapping[Location, str],
    seed: int | None,
    blocks: int = 1,
    timing: Timing | None = None,
) -> Expansion:
    """Return all faults of a plan with the draws of a seed; without a seed, all faults that depend on no draw.

    ``ids`` has the id of each fault, by its location in the plan.
    """
    return schedule(resolve(elements, ids, seed, blocks), timing or Timing())


def resolve(
    elements: Mapping[Location, AnyElement], ids: Mapping[Location, str], seed: int | None, blocks: int = 1
) -> ResolvedPlan:
    """Return a plan's faults with the draws of a seed in the place of ranges, choices and rounds."""
    draws = _Draws(elements, ids, seed)
    resolved = []
    for block in range(1, blocks + 1) if blocks > 1 else (0,):
        rounds = (block,) if block else ()
        resolved.append(tuple(draws.resolve(element, loc, rounds) for loc, element in elements.items()))
    return ResolvedPlan(tuple(resolved), draws.certain, tuple(draws.problems))


def schedule(plan: ResolvedPlan, timing: Timing) -> Expansion:
    """Return the faults of a resolved plan with their times.

    A block (repetition of all faults) starts when the recovery phase after the previous block ends.
    """
    scheduled: list[ScheduledFault] = []
    starts_ms = []
    for block, parts in enumerate(plan.blocks, 1 if len(plan.blocks) > 1 else 0):
        start_ms = length_ms((fault.fault for fault in scheduled), timing) if block > 1 else 0
        starts_ms += [start_ms] if block else []
        for part in parts:
            scheduled += [replace(fault, block=block) for fault in _placed(part, start_ms)[1]]
        if not plan.certain:
            break  # the start of the next block depends on a draw
    return Expansion(tuple(scheduled), plan.certain, plan.problems, tuple(starts_ms))


def _placed(part: Resolved, start_ms: int | None) -> tuple[int | None, list[ScheduledFault]]:
    """Return the end of a resolved part of a plan that starts at ``start_ms``, and its faults with their times.

    The end is None if it depends on a draw. What starts at an unknown time (None) is left out.
    """
    if start_ms is None:
        return None, []
    match part:
        case ScheduledFault(fault=fault):
            final = fault.model_copy(update={"at": start_ms + fault.at})
            return end_ms(final), [replace(part, fault=final)]
        case Undrawn(length_ms=length):
            return None if length is None else start_ms + length, []
    ends: list[int | None] = [start_ms + part.at_ms]
    faults: list[ScheduledFault] = []
    for inner in part.parts:
        end, inside = _placed(inner, ends[-1] if part.in_turn else ends[0])
        ends.append(end)
        faults += inside
    certain_ends = [end for end in ends if end is not None]
    return max(certain_ends) if len(certain_ends) == len(ends) else None, faults


def fault_ids(faults: Iterable[tuple[Location, str, str | None]]) -> dict[Location, str]:
    """Return the id of each fault of a plan, without rounds, from its location, kind and explicit id."""
    counts: Counter[str] = Counter()
    ids = {}
    for loc, kind, own_id in faults:
        counts[kind] += 1
        ids[loc] = own_id or f"{kind}-{counts[kind]}"
    return ids


def steps_max(element: AnyElement) -> int:
    """Return the largest number of single faults and waits to which a fault or composed element can expand."""
    inside = [steps_max(child) for _, child in children(element)]
    match element:
        case Fault() | Ranged() | Wait():
            return 1
        case Repeat():
            first_ms = int(element.at.low) if isinstance(element.at, Range) else element.at
            return element.rounds(first_ms) * inside[0]
        case Choose():
            return max(inside)
        case _:
            return min(sum(inside), STEPS_MAX + 1)


def random_of(seed: int, stream: str) -> random.Random:
    """Return the generator of the random stream that has this name."""
    digest = hashlib.sha256(f"{seed}\n{stream}".encode()).digest()
    return random.Random(int.from_bytes(digest))  # noqa: S311 -- repeatable on purpose


class _Draws:
    """Random choices of a plan; ``certain`` is False once one was not made, because there is no seed."""

    def __init__(self, elements: Mapping[Location, AnyElement], ids: Mapping[Location, str], seed: int | None) -> None:
        self.ids = ids
        self.seed = seed
        self.certain = True
        self.problems: list[Problem] = []
        self.streams: dict[Location, str] = {}  # the name of each element's random stream, without rounds
        counts: Counter[str] = Counter()
        for top, entry in elements.items():
            content = json.dumps(entry.model_dump(mode="json", by_alias=True), sort_keys=True)
            for loc, element in walk(entry, top):
                own_id = getattr(element, "id", None)
                # "said:" is part of the stream's name: another word would change every draw
                place = "/".join([f"said:{content}#{counts[content]}", *map(str, loc[len(top) :])])
                self.streams[loc] = f"id:{own_id}" if own_id else place
            counts[content] += 1

    def resolve(self, element: AnyElement, loc: Location, rounds: Rounds) -> Resolved:
        """Return a fault or composed element with plain values, in one round of the ``repeat`` elements around it."""
        match element:
            case Fault():
                return self._with_id(element, loc, rounds)
            case Ranged():
                return self._drawn_fault(element, loc, rounds)
        moment = element.wait if isinstance(element, Wait) else element.at
        if self.seed is None and (isinstance(moment, Range) or isinstance(element, Choose)):
            self.certain = False
            return Undrawn()
        at_ms = int(moment.value(self._share(loc, rounds, "at"))) if isinstance(moment, Range) else moment
        match element:
            case Wait():
                return Group(at_ms)
            case Together() | Then():
                parts = [self.resolve(child, (*loc, *step), rounds) for step, child in children(element)]
                return Group(at_ms, tuple(parts), in_turn=isinstance(element, Then))
            case Repeat():
                numbers = range(1, element.rounds(at_ms) + 1)
                parts = [self.resolve(element.fault, (*loc, "fault"), (*rounds, number)) for number in numbers]
                if element.every is None:
                    return Group(at_ms, tuple(parts), in_turn=True)
                return Group(at_ms, tuple(Group(index * element.every, (part,)) for index, part in enumerate(parts)))
            case Choose():
                bounds = list(accumulate(choice.weight for choice in element.choose))
                draw = self._share(loc, rounds, "choose") * bounds[-1]
                index = next(index for index, bound in enumerate(bounds) if draw < bound)
                chosen = self.resolve(element.choose[index].fault, (*loc, "choose", index, "fault"), rounds)
                return Group(at_ms, (chosen,))

    def _with_id(self, fault: Fault, loc: Location, rounds: Rounds) -> ScheduledFault:
        # with round numbers, an id may be longer than the limit for ids in plans
        final = fault.model_copy(update={"id": "-".join([self.ids[loc], *map(str, rounds)])})
        return ScheduledFault(loc, final, self._stream(loc, rounds), self.ids[loc], block=0)

    def _drawn_fault(self, element: Ranged, loc: Location, rounds: Rounds) -> Resolved:
        if self.seed is None:
            self.certain = False
            ends = {end_ms(fault) for fault in element.corners()}
            return Undrawn(ends.pop() if len(ends) == 1 else None)
        data = element.data()
        draws = {
            place: parse_range(value).plan_value(self._share(loc, rounds, *place)) for place, value in ranges_in(data)
        }
        try:
            fault = KINDS[element.kind].model_validate(fill_ranges(data, draws))
        except ValidationError as error:  # valid at every corner, but not in between
            values = ", ".join(f"{'.'.join(map(str, place))}: {value}" for place, value in draws.items())
            cause = error.errors()[0]["msg"].removeprefix("Value error, ")
            sentence = f"the fault is not valid with the drawn values {values} ({cause}): correct the range"
            self.problems.append(Problem(loc, sentence))
            return Group(0)
        return self._with_id(fault, loc, rounds)

    def _share(self, loc: Location, rounds: Rounds, *purpose: str | int) -> float:
        """Draw a number in [0, 1) from a random stream of the fault or composed element at ``loc``."""
        stream = "/".join([self._stream(loc, rounds), "of", *map(str, purpose)])
        return random_of(self.seed or 0, stream).random()

    def _stream(self, loc: Location, rounds: Rounds) -> str:
        return "/".join([self.streams[loc], *map(str, rounds)])


def members_in_reserve(workload: str, arm: str, op: str, expansion: Expansion) -> int:
    """Return how many further members faults of the kind ``join`` need; those that leave again can join again."""
    again: dict[str, int] = {}
    reserve = 0
    for scheduled in expansion.schedule:
        fault = scheduled.fault
        if isinstance(fault, Join) and fault.selector.matches(workload, arm, op):
            reserve += fault.members if fault.for_ is None else 0
            again |= {scheduled.entry: fault.members} if fault.for_ is not None else {}
    return reserve + sum(again.values())
