"""Expansion of a plan's composed faults into single faults, each with its time, its id and its random stream.

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
from dataclasses import dataclass
from itertools import accumulate

from pydantic import ValidationError

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.composition import (
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
    """A fault with its final time and id, its location in the plan, and its random stream.

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

    ``ids`` has the id of each fault, by its location in the plan. A block (repetition of all faults) starts when the
    recovery phase after the previous block ends.
    """
    counts: Counter[str] = Counter()
    streams = {}  # the name of each element's random stream, without rounds
    for top, entry in elements.items():
        content = json.dumps(entry.model_dump(mode="json", by_alias=True), sort_keys=True)
        for loc, element in walk(entry, top):
            own_id = getattr(element, "id", None)
            # "said:" is part of the stream's name: another word would change every draw
            place = "/".join([f"said:{content}#{counts[content]}", *map(str, loc[len(top) :])])
            streams[loc] = f"id:{own_id}" if own_id else place
        counts[content] += 1
    scheduler = _Scheduler(ids, streams, seed)
    starts_ms = []
    start_ms: int | None = 0
    for block in range(1, blocks + 1) if blocks > 1 else (0,):
        if block and start_ms is not None:
            starts_ms.append(start_ms)
        scheduler.block = block
        for loc, element in elements.items():
            scheduler.schedule(element, loc, start_ms, (block,) if block else ())
        faults = (scheduled.fault for scheduled in scheduler.scheduled)
        start_ms = length_ms(faults, timing or Timing()) if scheduler.certain else None
    return Expansion(tuple(scheduler.scheduled), scheduler.certain, tuple(scheduler.problems), tuple(starts_ms))


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


class _Scheduler:
    """Scheduler of faults and composed elements; without a seed, a time that depends on a draw is unknown (None)."""

    def __init__(self, ids: Mapping[Location, str], streams: Mapping[Location, str], seed: int | None) -> None:
        self.ids = ids
        self.streams = streams
        self.seed = seed
        self.scheduled: list[ScheduledFault] = []
        self.problems: list[Problem] = []
        self.certain = True
        self.block = 0

    def schedule(self, element: AnyElement, loc: Location, from_ms: int | None, rounds: Rounds) -> int | None:
        """Schedule a fault, or all faults in a composed element; return the end in ms, None if not determined."""
        if from_ms is None or (isinstance(element, Choose) and self.seed is None):
            self.certain = False
            return None
        match element:
            case Fault():
                return self._add(element, loc, from_ms, rounds)
            case Ranged():
                return self._ranged(element, loc, from_ms, rounds)
            case Wait():
                return self._plus(from_ms, element.wait, loc, rounds)
        start_ms = self._plus(from_ms, element.at, loc, rounds)
        match element:
            case Together():
                return _latest(
                    [self.schedule(child, (*loc, *step), start_ms, rounds) for step, child in children(element)]
                )
            case Then():
                for step, child in children(element):
                    start_ms = self.schedule(child, (*loc, *step), start_ms, rounds)
                return start_ms
            case Repeat():
                ends: list[int | None] = [start_ms]
                for number in range(element.rounds(self._ms(element.at, loc, rounds) or 0)):
                    round_ms = ends[-1]
                    if element.every is not None and start_ms is not None:
                        round_ms = start_ms + number * element.every
                    ends.append(self.schedule(element.fault, (*loc, "fault"), round_ms, (*rounds, number + 1)))
                return _latest(ends)
            case Choose():
                bounds = list(accumulate(choice.weight for choice in element.choose))
                draw = self._share(loc, rounds, "choose") * bounds[-1]
                index = next(index for index, bound in enumerate(bounds) if draw < bound)
                return self.schedule(element.choose[index].fault, (*loc, "choose", index, "fault"), start_ms, rounds)

    def _add(self, fault: Fault, loc: Location, from_ms: int, rounds: Rounds) -> int:
        fault_id = "-".join([self.ids[loc], *map(str, rounds)])
        final = fault.model_copy(update={"id": fault_id, "at": from_ms + fault.at})
        self.scheduled.append(ScheduledFault(loc, final, self._stream(loc, rounds), self.ids[loc], self.block))
        return end_ms(final)

    def _ranged(self, element: Ranged, loc: Location, from_ms: int, rounds: Rounds) -> int | None:
        if self.seed is None:
            self.certain = False
            ends = {end_ms(fault) for fault in element.corners()}
            return from_ms + ends.pop() if len(ends) == 1 else None
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
            return from_ms
        return self._add(fault, loc, from_ms, rounds)

    def _plus(self, from_ms: int, moment: int | Range, loc: Location, rounds: Rounds) -> int | None:
        ms = self._ms(moment, loc, rounds)
        return None if ms is None else from_ms + ms

    def _ms(self, moment: int | Range, loc: Location, rounds: Rounds) -> int | None:
        if not isinstance(moment, Range):
            return moment
        if self.seed is None:
            self.certain = False
            return None
        return int(moment.value(self._share(loc, rounds, "at")))

    def _share(self, loc: Location, rounds: Rounds, *purpose: str | int) -> float:
        """Draw a number in [0, 1) from a random stream of the fault or composed element at ``loc``."""
        stream = "/".join([self._stream(loc, rounds), "of", *map(str, purpose)])
        return random_of(self.seed or 0, stream).random()

    def _stream(self, loc: Location, rounds: Rounds) -> str:
        return "/".join([self.streams[loc], *map(str, rounds)])


def _latest(ends: list[int | None]) -> int | None:
    certain_ends = [end for end in ends if end is not None]
    return max(certain_ends) if len(certain_ends) == len(ends) else None
