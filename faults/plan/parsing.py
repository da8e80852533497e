"""What pydantic found wrong, in our words: a sentence that says what to do, and the place it is about.

Reading a plan's data part by part: what can be read is given, what can't is a problem with its place.

The ``faults`` of a plan, read one by one, however they are composed and whatever is wrong with the others.

Each fault is read by itself, every alternative of a choice and every corner of its ranges, so that all problems come at
once. An element that can be read wholly is laid out in time as far as no draw decides about it.

The parts of a plan that can be read, each on its own, so that one bad part doesn't hide what is wrong elsewhere.

A draft also knows the *names* in the parts that can't be read (topics, arms, fault ids), so that nothing is reported as
undeclared which is merely misspelt inside.
"""

import types
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import BROUGHT, KINDS
from aftershock.faults.plan.cluster import Attach, Cluster
from aftershock.faults.plan.composition import STEPS_MAX, AnyElement, Choose, Ranged, Then, Wait, sort_of
from aftershock.faults.plan.document import Location, Problem, did_you_mean
from aftershock.faults.plan.model import BLOCKS_MAX, Plan, SloEntry, dump
from aftershock.faults.plan.units import RANGES_MAX, corners, parse, ranges_in
from aftershock.faults.plan.workloads import Timing, Topic, Workload
from aftershock.faults.timeline.expand import Expansion, expand, fault_ids, steps_max

_OURS = frozenset({"unit", "role", "link", "refused"})
_TEMPLATES: dict[str, str] = {
    "int_type": "must be a whole number, and {shown} is none",
    "int_parsing": "must be a whole number, and {shown} is none",
    "bool_type": "must be true or false, and {shown} is neither",
    "string_type": "must be text: put {shown} in quotes, or write a word",
    "greater_than": "must be more than {gt}, and {shown} is not",
    "greater_than_equal": "must be at least {ge}, and {shown} is less",
    "less_than_equal": "must be at most {le}, and {shown} is more",
    "string_pattern_mismatch": "can't be {shown}: it has to look like {pattern}",
    "literal_error": "can't be {shown}: say {expected}",
    "too_short": "needs {min_length} or more in it: add one",
    "too_long": "has more than {max_length} entries: take some away",
    "dict_type": "must be a mapping of keys to values, and {shown} is none",
    "model_type": "must be a mapping of keys to values, and {shown} is none",
    "tuple_type": "must be a list, and {shown} is none",
}


def complaints(error: ValidationError, model: type[BaseModel], data: object, prefix: Location) -> list[Problem]:
    """The problems of one part of the plan, which stands at ``prefix``; the first for each place only."""
    found: dict[Location, Problem] = {}
    for detail in error.errors(include_url=False):
        problem = _complaint(detail, model, data)
        found.setdefault(problem.loc, problem)
    return [Problem(prefix + problem.loc, problem.sentence, problem.on_key) for problem in found.values()]


def _complaint(detail: Mapping[str, Any], model: type[BaseModel], data: object) -> Problem:
    loc: Location = detail["loc"]
    kind: str = detail["type"]
    if kind == "missing":
        return Problem(loc, f"`{loc[-1]}` is missing here: add it")
    if kind == "extra_forbidden":
        return Problem(loc, f"unknown key `{loc[-1]}`; {did_you_mean(loc[-1], keys_at(model, loc[:-1]))}", on_key=True)
    on_key = loc[-1:] == ("[key]",)
    place = _existing(loc, data)
    if kind in _OURS:
        return Problem(place, str(detail["msg"]) if on_key else _named(place, str(detail["msg"]), ": "), on_key)
    template = _TEMPLATES.get(kind)
    facts = {**detail.get("ctx", {}), "shown": _shown(detail["input"])}
    sentence = template.format(**facts) if template else f"is not valid ({detail['msg']}): mend it"
    return Problem(place, f"this name {sentence}" if on_key else _named(place, sentence, " "), on_key)


def keys_at(model: type[BaseModel], loc: Location) -> list[str]:
    """The keys that the model at ``loc`` knows, as YAML writes them."""
    here: Any = model
    for step in loc:
        here = _model_in(here)
        if isinstance(step, str) and _is_model(here):
            here = next((field.annotation for key, field in _fields(here) if key == step), None)
    here = _model_in(here)
    return [key for key, _ in _fields(here)] if _is_model(here) else []


def _fields(model: type[BaseModel]) -> list[tuple[str, Any]]:
    return [(field.alias or name, field) for name, field in model.model_fields.items()]


def _is_model(what: Any) -> bool:
    return isinstance(what, type) and issubclass(what, BaseModel)


def _model_in(annotation: Any) -> Any:
    """The model inside Optional, Annotated, tuple or dict; the annotation itself if there is none."""
    if get_origin(annotation) not in (Union, types.UnionType, Annotated, tuple, dict):
        return annotation
    inner: Callable[[Any], Any] = _model_in
    return next((found for found in map(inner, get_args(annotation)) if _is_model(found)), annotation)


def _existing(loc: Location, data: Any) -> Location:
    """The longest part of ``loc`` that is in the data: pydantic adds steps of its own to it."""
    here = data
    for count, step in enumerate(loc):
        try:
            here = here[step]
        except (TypeError, LookupError):  # no mapping or list, or nothing of that name in it
            return loc[:count]
    return loc


def _named(loc: Location, sentence: str, separator: str) -> str:
    name = next((step for step in reversed(loc) if isinstance(step, str)), None)
    return sentence if name is None else f"`{name}`{separator}{sentence}"


def _shown(value: object) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}...`"  # noqa: PLR2004 -- what fits a line


M = TypeVar("M", bound=BaseModel)


@dataclass
class Reading:
    """The data being read, and the problems met so far."""

    data: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)

    def listed(self, key: str) -> list[Any]:
        """The entries of one of the plan's lists; none where it is no list."""
        items = self.data.get(key)
        return items if isinstance(items, list) else []

    def wrong(self, loc: Location, sentence: str) -> None:
        """One more problem."""
        self.problems.append(Problem(loc, sentence))

    def read(self, item: object, model: type[M], loc: Location) -> M | None:
        """The part; without its misspelt keys, if only these are wrong with it; else None."""
        try:
            return model.model_validate(item)
        except ValidationError as error:
            self.problems += complaints(error, model, item, loc)
            unknown = [detail["loc"] for detail in error.errors() if detail["type"] == "extra_forbidden"]
            return _without(unknown, item, model) if unknown else None


def _without(unknown: list[Location], item: object, model: type[M]) -> M | None:
    """The part as it would read if only its misspelt keys were taken away, so that the rest of it is judged as well."""
    pruned = deepcopy(item)
    for *path, key in unknown:
        here: Any = pruned
        for step in path:
            here = here[step]
        del here[key]
    try:
        return model.model_validate(pruned)
    except ValidationError:
        return None


_NO_KIND = "a fault needs a `kind`: `aftershock plan faults` lists them"
_STILL = Wait(wait="0s")  # stands for what is read by itself
_IDLE = "`wait` delays the next one in `then`, or is an alternative of `choose`; here it does nothing: take it away"


@dataclass(frozen=True)
class Said:
    """A fault as the plan says it, at one corner of its ranges; ``at`` counts from its container."""

    loc: Location
    fault: Fault


@dataclass(frozen=True)
class Faults:
    """What can be read of a plan's faults.

    ``ids``: of each fault, readable or not, before any round; ``unreadable``: something is; ``nameless``: something
    that can't even be named is.
    """

    said: tuple[Said, ...] = ()
    elements: Mapping[Location, AnyElement] = field(default_factory=dict)
    ids: Mapping[Location, str] = field(default_factory=dict)
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


def _bounded(reading: Reading, elements: Mapping[Location, AnyElement], blocks: int) -> bool:
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
        self.elements: dict[Location, AnyElement] = {}
        self.named: list[tuple[Location, str, str | None]] = []
        self.nameless = False

    def element(self, item: Any, loc: Location, idle: str | None = None) -> None:
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

    def _inside(self, item: dict[str, Any], model: type[BaseModel], loc: Location) -> None:
        if self.reading.read(_shell(item), model, loc) is None:
            self.nameless = True
        idle = None if model in (Then, Choose) else _IDLE
        for place, child in _children(item):
            self.element(child, (*loc, *place), idle)

    def _fault(self, item: Any, loc: Location) -> Fault | Ranged | None:
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

    def _ranged(self, item: dict[str, Any], model: type[Fault], loc: Location) -> Ranged | None:
        if wrong := list(_bad_ranges(item, loc)):
            self.reading.problems += wrong
            return None
        trial = Reading({})
        faults = [trial.read(words, model, loc) for words in corners(item)]
        self.reading.problems += {problem.loc: problem for problem in reversed(trial.problems)}.values()
        self.said += [Said(loc, fault) for fault in faults if fault is not None]
        return None if trial.problems else Ranged.model_validate(item)

    def _name(self, item: Any, kind: object, loc: Location) -> None:
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


def _bad_ranges(item: dict[str, Any], loc: Location) -> Iterator[Problem]:
    found = list(ranges_in(item))
    for place, value in found:
        try:
            parse(value)
        except ValueError as error:
            yield Problem((*loc, *place), f"`{place[-1]}`: {error}")
    if len(found) > RANGES_MAX:
        yield Problem(loc, f"{len(found)} ranges in one fault are more than {RANGES_MAX}: give some of them one value")


def _children(item: dict[str, Any]) -> Iterator[tuple[Location, Any]]:
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


_LISTS = ("topics", "workloads", "faults", "slo")


@dataclass(frozen=True)
class Draft:
    """What can be judged. The mappings are keyed by the index in the plan; a part that can't be read is absent.

    ``topics_are``: where its topics stand, for the sentence about one that doesn't. ``attach``: what the plan says of a
    cluster that runs already; then there is no ``cluster``, since what that is like is not the plan's to say.
    """

    cluster: Cluster | None
    topics: Mapping[int, Topic] = field(default_factory=dict)
    workloads: Mapping[int, Workload] = field(default_factory=dict)
    timing: Timing | None = None
    faults: Faults = field(default_factory=Faults)
    slo: Mapping[int, str] = field(default_factory=dict)
    unreadable_topics: frozenset[str] = frozenset()
    unreadable_arms: frozenset[str] = frozenset()
    unreadable_workloads: bool = False
    topics_are: str = "among the plan's `topics`"
    attach: Attach | None = None


def draft_of(plan: Plan) -> Draft:
    """A plan is a draft with nothing unreadable."""
    draft, _ = read_draft(dump(plan))
    return draft


def read_draft(data: Mapping[str, Any]) -> tuple[Draft, list[Problem]]:
    """Every part that can be read, and what is wrong with those that can't."""
    reading = Reading(data)
    _frame(reading)
    topics = dict(_items(reading, "topics", Topic))
    workloads = dict(_items(reading, "workloads", Workload))
    cluster = _part(reading, "cluster", Cluster, Cluster())
    attach = cluster.attach if cluster else None
    timing = _part(reading, "timing", Timing, Timing())
    draft = Draft(
        None if attach else cluster,
        topics,
        workloads,
        timing,
        read_faults(reading, _blocks(reading), timing),
        dict(_slos(reading)),
        frozenset(_names(reading.listed("topics"), topics)),
        frozenset(_arms(reading.listed("workloads"), workloads)),
        len(workloads) < len(reading.listed("workloads")),
        attach=attach,
    )
    return draft, reading.problems


def _frame(reading: Reading) -> None:
    """The plan's own keys, with everything that is judged part by part taken for good."""
    shell = {
        key: value
        for key, value in reading.data.items()
        if key in ("name", "why", "blocks", "abort") or key not in Plan.model_fields
    }
    shell |= {"topics": (_ANY_TOPIC,), "workloads": (_ANY_WORKLOAD,)}
    try:
        Plan.model_validate(shell)
    except ValidationError as error:
        reading.problems += complaints(error, Plan, shell, ())
    for key in ("topics", "workloads"):
        if not reading.data.get(key):
            reading.problems.append(Problem((key,), f"`{key}` is missing: a plan needs at least one entry in it"))
    for key in _LISTS:
        if not isinstance(reading.data.get(key, []), list | None):
            reading.problems.append(Problem((key,), f"`{key}` must be a list: put `- ` before each of its entries"))


def _blocks(reading: Reading) -> int:
    """How many there are; one where what the plan says is no number of them, which is said of the plan's own keys."""
    said = reading.data.get("blocks", 1)
    return said if type(said) is int and 1 <= said <= BLOCKS_MAX else 1


def _slos(reading: Reading) -> Iterator[tuple[int, str]]:
    """The text of each, whether it stands by itself or beside its gate."""
    for index, entry in enumerate(reading.listed("slo")):
        loc: Location = ("slo", index)
        if isinstance(entry, str):
            yield index, entry
        elif not isinstance(entry, dict):
            reading.wrong(loc, "an SLO is a line of text: put it in quotes")
        elif read := reading.read(entry, SloEntry, loc):
            yield index, read.slo


def _part(reading: Reading, key: str, model: type[M], default: M) -> M | None:
    return reading.read(reading.data[key], model, (key,)) if key in reading.data else default


def _items(reading: Reading, key: str, model: type[M]) -> Iterator[tuple[int, M]]:
    for index, item in enumerate(reading.listed(key)):
        loc: Location = (key, index)
        read = reading.read(item, model, loc)
        if read is not None:
            yield index, read


def _names(items: list[Any], readable: Mapping[int, object]) -> Iterator[str]:
    return (
        str(it["name"]) for i, it in enumerate(items) if i not in readable and isinstance(it, dict) and "name" in it
    )


def _arms(items: list[Any], readable: Mapping[int, object]) -> Iterator[str]:
    for index, item in enumerate(items):
        arms = item.get("arms") if index not in readable and isinstance(item, dict) else None
        yield from map(str, arms if isinstance(arms, dict) else ())


_ANY_TOPIC = Topic(name="t", partitions=1, replication=1)
_ANY_WORKLOAD = Workload.model_validate({"name": "w", "produce": {"topic": "t", "rate": "1/s"}})
