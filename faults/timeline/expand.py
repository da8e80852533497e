"""How long things last by plan, in ms: a fault's window, its effect, and the load as a whole.

What the faults of a plan come to: single steps, each with its time, its id and its stream of draws. Pure.

Rules. A fault's id is its own, else ``<kind>-<n>``, the n-th of its kind as the plan is written; each ``repeat``
around it adds the round: ``slow-2``; a plan's ``blocks`` are rounds around all of it: ``slow-3-2``. So ids depend on
no draw. A stream is named by the explicit id, else by what the entry of the list says (canonical JSON), how many
before it said the very same, and the place in it; then by the rounds, and for a range by its place. So adding an
entry, anywhere, moves no draw of another; within one entry an id of its own keeps a step's draws.

Without a seed only what is sure comes out: what no choice and no range can keep away, move or change.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

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
from aftershock.faults.plan.document import Location, Problem
from aftershock.faults.plan.units import Range, filled, parse, ranges_in
from aftershock.faults.plan.workloads import Timing


def window_ms(fault: Fault, timing: Timing) -> int:
    """How long the fault's window lasts by plan, its allowance for injecting and healing left out."""
    return timing.fault if fault.for_ is None else fault.for_


def end_ms(fault: Fault) -> int:
    """When its effect is over by plan; an action without ``for`` is over when it is done."""
    return fault.at + (fault.allowance_ms if fault.for_ is None else fault.for_)


def length_ms(faults: Iterable[Fault], timing: Timing) -> int:
    """The end of the load: the end of the last fault, with its allowance, and ``recovery`` after it."""
    ends = [fault.at + window_ms(fault, timing) + fault.allowance_ms for fault in faults]
    return max(ends, default=timing.fault) + timing.recovery


Rounds = tuple[int, ...]


@dataclass(frozen=True)
class Placed:
    """A fault with its time and id settled, where it stands in the plan, and the stream it draws from.

    ``entry``: its id in the plan, before any round; ``block``: 1, 2, ..., or 0 where the plan has none.
    """

    loc: Location
    fault: Fault
    stream: str
    entry: str
    block: int

    @property
    def id(self) -> str:
        """The step's id."""
        return str(self.fault.id)


@dataclass(frozen=True)
class Expansion:
    """The faults in the order of the plan, block by block. ``blocks_ms``: when each block begins, none without blocks.

    ``certain``: no draw decides about any; ``problems``: of what was drawn.
    """

    placed: tuple[Placed, ...] = ()
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
    """Every fault that these elements come to with this seed; without one, every fault that is sure.

    ``ids``: of each fault, by its place (``fault_ids``). A block begins when ``recovery`` after the one before is over.
    """
    layout = _Layout(ids, _streams(elements), seed)
    begins_ms = []
    begin_ms: int | None = 0
    for block in range(1, blocks + 1) if blocks > 1 else (0,):
        begins_ms += [begin_ms] if block and begin_ms is not None else []
        layout.block = block
        for loc, element in elements.items():
            layout.lay(element, loc, begin_ms, (block,) if block else ())
        begin_ms = length_ms((each.fault for each in layout.placed), timing or Timing()) if layout.certain else None
    return Expansion(tuple(layout.placed), layout.certain, tuple(layout.problems), tuple(begins_ms))


def fault_ids(faults: Iterable[tuple[Location, str, str | None]]) -> dict[Location, str]:
    """The id of each, before any round is added to it, from its place, its kind and its own id."""
    seen: Counter[str] = Counter()
    ids = {}
    for loc, kind, own in faults:
        seen[kind] += 1
        ids[loc] = own or f"{kind}-{seen[kind]}"
    return ids


def leaves(elements: Mapping[Location, AnyElement]) -> Iterator[tuple[Location, Fault | Ranged]]:
    """Every fault they hold, alternatives and all, in the order of the document."""
    for loc, element in elements.items():
        yield from ((place, leaf) for place, leaf in walk(element, loc) if isinstance(leaf, Fault | Ranged))


def steps_max(element: AnyElement) -> int:
    """The most steps that the element can come to."""
    inside = [steps_max(child) for _, child in children(element)]
    match element:
        case Fault() | Ranged():
            return 1
        case Repeat():
            first_ms = int(element.at.low) if isinstance(element.at, Range) else element.at
            return element.rounds(first_ms) * inside[0]
        case Choose():
            return max(inside)
        case _:
            return min(sum(inside), STEPS_MAX + 1)


def random_of(seed: int, stream: str) -> random.Random:
    """The source of one stream."""
    digest = hashlib.sha256(f"{seed}\n{stream}".encode()).digest()
    return random.Random(int.from_bytes(digest))  # noqa: S311 -- repeatable on purpose


class _Layout:
    """Lays elements out in time. A moment that only a draw decides is None where there is no seed."""

    def __init__(self, ids: Mapping[Location, str], streams: Mapping[Location, str], seed: int | None) -> None:
        self.ids = ids
        self.streams = streams
        self.seed = seed
        self.placed: list[Placed] = []
        self.problems: list[Problem] = []
        self.certain = True
        self.block = 0

    def lay(self, element: AnyElement, loc: Location, from_ms: int | None, rounds: Rounds) -> int | None:
        """Place all of it that there is, and say when it is over."""
        if from_ms is None:
            self.certain = False
            return None
        match element:
            case Fault():
                return self._put(element, loc, from_ms, rounds)
            case Ranged():
                return self._ranged(element, loc, from_ms, rounds)
            case Wait():
                return self._after(element.wait, loc, from_ms, rounds)
            case _:
                return self._composed(element, loc, self._after(element.at, loc, from_ms, rounds), rounds)

    def _composed(
        self, element: Together | Then | Repeat | Choose, loc: Location, begin_ms: int | None, rounds: Rounds
    ) -> int | None:
        match element:
            case Together():
                return _latest([self.lay(child, (*loc, *at), begin_ms, rounds) for at, child in children(element)])
            case Then():
                for at, child in children(element):
                    begin_ms = self.lay(child, (*loc, *at), begin_ms, rounds)
                return begin_ms
            case Repeat():
                return self._repeat(element, loc, begin_ms, rounds)
            case Choose():
                return self._choose(element, loc, begin_ms, rounds)

    def _put(self, fault: Fault, loc: Location, from_ms: int, rounds: Rounds) -> int:
        fault_id = "-".join([self.ids[loc], *map(str, rounds)])
        settled = fault.model_copy(update={"id": fault_id, "at": from_ms + fault.at})
        self.placed.append(Placed(loc, settled, self._stream(loc, rounds), self.ids[loc], self.block))
        return end_ms(settled)

    def _ranged(self, element: Ranged, loc: Location, from_ms: int, rounds: Rounds) -> int | None:
        if self.seed is None:
            self.certain = False
            ends = {end_ms(fault) for fault in element.corners()}
            return from_ms + ends.pop() if len(ends) == 1 else None
        words = element.words()
        drawn = {place: parse(value).said(self._share(loc, rounds, *place)) for place, value in ranges_in(words)}
        try:
            fault = KINDS[element.kind].model_validate(filled(words, drawn))
        except ValidationError as error:  # good at every corner, and yet not in between
            said = ", ".join(f"{'.'.join(map(str, place))}: {value}" for place, value in drawn.items())
            self.problems.append(Problem(loc, f"{said} does not do ({error.errors()[0]['msg']}): mend the range"))
            return from_ms
        return self._put(fault, loc, from_ms, rounds)

    def _repeat(self, element: Repeat, loc: Location, begin_ms: int | None, rounds: Rounds) -> int | None:
        if begin_ms is None:
            return self.lay(element.fault, loc, None, rounds)
        ends: list[int | None] = [begin_ms]
        for number in range(element.rounds(self._ms(element.at, loc, rounds) or 0)):
            turn_ms = ends[-1] if element.every is None else begin_ms + number * element.every
            ends.append(self.lay(element.fault, (*loc, "fault"), turn_ms, (*rounds, number + 1)))
        return _latest(ends)

    def _choose(self, element: Choose, loc: Location, begin_ms: int | None, rounds: Rounds) -> int | None:
        if self.seed is None:
            self.certain = False
            return None
        bounds = list(accumulate(choice.weight for choice in element.choose))
        drawn = self._share(loc, rounds, "choose") * bounds[-1]
        index = next(index for index, bound in enumerate(bounds) if drawn < bound)
        return self.lay(element.choose[index].fault, (*loc, "choose", index, "fault"), begin_ms, rounds)

    def _after(self, moment: int | Range, loc: Location, from_ms: int, rounds: Rounds) -> int | None:
        ms = self._ms(moment, loc, rounds)
        return None if ms is None else from_ms + ms

    def _ms(self, moment: int | Range, loc: Location, rounds: Rounds) -> int | None:
        if not isinstance(moment, Range):
            return moment
        if self.seed is None:
            self.certain = False
            return None
        return int(moment.value(self._share(loc, rounds, "at")))

    def _share(self, loc: Location, rounds: Rounds, *what: str | int) -> float:
        """A number in [0, 1) for one thing to be drawn. There is a seed."""
        stream = "/".join([self._stream(loc, rounds), "of", *map(str, what)])
        return random_of(self.seed or 0, stream).random()

    def _stream(self, loc: Location, rounds: Rounds) -> str:
        return "/".join([self.streams[loc], *map(str, rounds)])


def _latest(ends: list[int | None]) -> int | None:
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None


def _streams(elements: Mapping[Location, AnyElement]) -> dict[Location, str]:
    """The name of each element's stream, before any round is added to it."""
    seen: Counter[str] = Counter()
    streams = {}
    for top, entry in elements.items():
        said = _said(entry)
        for loc, element in walk(entry, top):
            own = getattr(element, "id", None)
            inside = [f"said:{said}#{seen[said]}", *map(str, loc[len(top) :])]
            streams[loc] = f"id:{own}" if own else "/".join(inside)
        seen[said] += 1
    return streams


def _said(element: Any) -> str:
    return json.dumps(element.model_dump(mode="json", by_alias=True), sort_keys=True)
