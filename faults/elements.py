"""The ``faults`` of a plan, read one by one, however they are composed and whatever is wrong with the others.

Each fault is read by itself, every alternative of a choice and every corner of its ranges, so that all problems come at
once. An element that can be read wholly is laid out in time as far as no draw decides about it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from aftershock.faults.compose import STEPS_MAX, AnyElement, Choose, Ranged, Then, Wait, sort_of
from aftershock.faults.expand import Expansion, expand, fault_ids, steps_max
from aftershock.faults.fault import Fault
from aftershock.faults.kinds import BROUGHT, KINDS
from aftershock.faults.plan import Timing
from aftershock.faults.problem import Loc, Problem, did_you_mean
from aftershock.faults.ranges import RANGES_MAX, corners, parse, ranges_in
from aftershock.faults.reading import Reading

_NO_KIND = "a fault needs a `kind`: `aftershock plan faults` lists them"
_STILL = Wait(wait="0s")  # stands for what is read by itself
_IDLE = "`wait` delays the next one in `then`, or is an alternative of `choose`; here it does nothing: take it away"


@dataclass(frozen=True)
class Said:
    """A fault as the plan says it, at one corner of its ranges; ``at`` counts from its container."""

    loc: Loc
    fault: Fault


@dataclass(frozen=True)
class Faults:
    """What can be read of a plan's faults.

    ``ids``: of each fault, readable or not, before any round; ``unreadable``: something is; ``nameless``: something
    that can't even be named is.
    """

    said: tuple[Said, ...] = ()
    elements: Mapping[Loc, AnyElement] = field(default_factory=dict)
    ids: Mapping[Loc, str] = field(default_factory=dict)
    expansion: Expansion = field(default_factory=Expansion)
    unreadable: bool = False
    nameless: bool = False


def read_faults(reading: Reading, blocks: int, timing: Timing | None) -> Faults:
    """All that can be read, ``blocks`` times over; problems go to the reading."""
    items = {("faults", index): item for index, item in enumerate(reading.listed("faults"))}
    reader = _Reader(reading)
    for loc, item in items.items():
        reader.element(item, loc, idle=_IDLE)
    ids = fault_ids(reader.named)
    fits = _bounded(reading, reader.elements, blocks)
    expansion = expand(reader.elements, ids, None, blocks, timing) if fits else Expansion()
    whole = len(reader.elements) == len(items)
    return Faults(tuple(reader.said), reader.elements, ids, expansion, not whole, reader.nameless)


def _bounded(reading: Reading, elements: Mapping[Loc, AnyElement], blocks: int) -> bool:
    total = 0
    for loc, element in elements.items():
        total += blocks * steps_max(element)
        if total > STEPS_MAX:
            less = f"have fewer than {blocks} blocks" if blocks > 1 else "repeat less often"
            reading.wrong(loc, f"with this the plan has more than {STEPS_MAX} steps: {less}")
            return False
    return True


class _Reader:
    """Walks the elements. ``named``: place, kind and own id of each fault that has a kind."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.said: list[Said] = []
        self.elements: dict[Loc, AnyElement] = {}
        self.named: list[tuple[Loc, str, str | None]] = []
        self.nameless = False

    def element(self, item: Any, loc: Loc, idle: str | None = None) -> None:
        """Read one. ``idle``: what to say if it is a ``wait``, where that does nothing."""
        model = sort_of(item)
        is_top = len(loc) == 2  # noqa: PLR2004 -- ("faults", index)
        if model is Wait and idle is not None:
            self.reading.wrong(loc, idle)
        if model is None or model in (Fault, Ranged):
            found: AnyElement | None = self._fault(item, loc)
        else:
            self._inside(item, model, loc)
            found = _whole(item, model) if is_top else None
        if is_top and found is not None:
            self.elements[loc] = found

    def _inside(self, item: dict[str, Any], model: type[BaseModel], loc: Loc) -> None:
        if self.reading.read(_shell(item), model, loc) is None:
            self.nameless = True
        idle = None if model in (Then, Choose) else _IDLE
        for place, child in _children(item):
            self.element(child, (*loc, *place), idle)

    def _fault(self, item: Any, loc: Loc) -> Fault | Ranged | None:
        kind = item.get("kind") if isinstance(item, dict) else None
        self._name(item, kind, loc)
        if kind is None:
            self.reading.wrong(loc, _NO_KIND)
        elif not isinstance(kind, str) or kind not in KINDS:
            self.reading.wrong((*loc, "kind"), BROUGHT.refused.get(str(kind)) or _unknown(kind))
        elif any(ranges_in(item)):
            return self._ranged(item, KINDS[kind], loc)
        elif fault := self.reading.read(item, KINDS[kind], loc):
            self.said.append(Said(loc, fault))
            return fault
        return None

    def _ranged(self, item: dict[str, Any], model: type[Fault], loc: Loc) -> Ranged | None:
        if wrong := list(_bad_ranges(item, loc)):
            self.reading.problems += wrong
            return None
        trial = Reading({})
        faults = [trial.read(words, model, loc) for words in corners(item)]
        self.reading.problems += {problem.loc: problem for problem in reversed(trial.problems)}.values()
        self.said += [Said(loc, fault) for fault in faults if fault is not None]
        return None if trial.problems else Ranged.model_validate(item)

    def _name(self, item: Any, kind: object, loc: Loc) -> None:
        own = item.get("id") if isinstance(item, dict) else None
        if isinstance(kind, str):
            self.named.append((loc, kind, None if own is None else str(own)))
        self.nameless |= own is None and kind not in KINDS


def _unknown(kind: object) -> str:
    known = did_you_mean(kind, KINDS)
    return f"there is no fault of kind `{kind}`; {known} All kinds: `aftershock plan faults`"


def _whole(item: dict[str, Any], model: type[BaseModel]) -> AnyElement | None:
    try:
        return cast("AnyElement", model.model_validate(item))
    except ValidationError:  # said already, at its own place
        return None


def _bad_ranges(item: dict[str, Any], loc: Loc) -> Iterator[Problem]:
    found = list(ranges_in(item))
    for place, value in found:
        try:
            parse(value)
        except ValueError as error:
            yield Problem((*loc, *place), f"`{place[-1]}`: {error}")
    if len(found) > RANGES_MAX:
        yield Problem(loc, f"{len(found)} ranges in one fault are more than {RANGES_MAX}: give some of them one value")


def _children(item: dict[str, Any]) -> Iterator[tuple[Loc, Any]]:
    """What a composed element holds, as far as it has the form of one."""
    for word in ("together", "then"):
        listed = item.get(word)
        yield from (((word, index), child) for index, child in enumerate(listed if isinstance(listed, list) else ()))
    choices = item.get("choose")
    for index, choice in enumerate(choices if isinstance(choices, list) else ()):
        if isinstance(choice, dict) and "fault" in choice:
            yield ("choose", index, "fault"), choice["fault"]
    if "fault" in item:
        yield ("fault",), item["fault"]


def _shell(item: dict[str, Any]) -> dict[str, Any]:
    """The element with nothing in it to complain about but its own words."""
    shell = dict(_emptied(item))
    for word in ("together", "then"):
        if isinstance(item.get(word), list):
            shell[word] = [_STILL] * len(item[word])
    if isinstance(item.get("choose"), list):
        shell["choose"] = [_emptied(choice) for choice in item["choose"]]
    return shell


def _emptied(item: Any) -> Any:
    return {**item, "fault": _STILL} if isinstance(item, dict) and "fault" in item else item
