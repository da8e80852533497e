"""Lenient reading of a plan, which yields a ``Draft`` of all valid parts, and a problem for each invalid part.

Each part of a plan is validated on its own, so that one invalid part does not hide problems elsewhere. A fault is
validated for every combination of the ends of its ranges. The draft also holds the names of invalid topics, arms and
faults, so that references to these names are not reported as undeclared.
"""

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import EXTERNAL, KINDS
from aftershock.faults.plan.expand import Expansion, expand, fault_ids, steps_max
from aftershock.faults.plan.model import (
    BLOCKS_MAX,
    STEPS_MAX,
    AnyElement,
    Choose,
    Plan,
    Ranged,
    SloEntry,
    Then,
    Wait,
    dump,
    element_model,
)
from aftershock.faults.sections.cluster import Attach, Cluster
from aftershock.faults.sections.document import Location, Problem, did_you_mean
from aftershock.faults.sections.units import (
    RANGES_MAX,
    corners,
    format_duration,
    format_size,
    parse_duration_ms,
    parse_range,
    parse_size_bytes,
    ranges_in,
)
from aftershock.faults.sections.workloads import Timing, Topic, Workload
from aftershock.results.slo import Slo, SloSyntaxError
from aftershock.results.slo import parse as parse_slo

_TEMPLATES: dict[str, str] = {
    "int_type": "must be an integer, got {value}",
    "int_parsing": "must be an integer, got {value}",
    "bool_type": "must be true or false, got {value}",
    "string_type": "must be text, got {value}: put it in quotes",
    "greater_than": "must be greater than {gt}, got {value}",
    "greater_than_equal": "must be at least {ge}, got {value}",
    "less_than_equal": "must be at most {le}, got {value}",
    "string_pattern_mismatch": "must match {pattern}, got {value}",
    "literal_error": "must be {expected}, got {value}",
    "too_short": "needs {min_length} or more entries: add one",
    "too_long": "has more than {max_length} entries: remove some",
    "dict_type": "must be a mapping of keys to values, got {value}",
    "model_type": "must be a mapping of keys to values, got {value}",
    "tuple_type": "must be a list, got {value}",
}


def validation_errors(error: ValidationError, model: type[BaseModel], data: object, prefix: Location) -> list[Problem]:
    """Translate pydantic's errors about the plan's part at ``prefix``; keep the first error of each location."""
    translated = [_translate(detail, model, data) for detail in error.errors(include_url=False)]
    problems = {problem.loc: problem for problem in reversed(translated)}  # the first of each location
    return [Problem(prefix + problem.loc, problem.sentence, problem.on_key) for problem in reversed(problems.values())]


def _translate(detail: Mapping[str, Any], model: type[BaseModel], data: Any) -> Problem:
    loc: Location = detail["loc"]
    kind: str = detail["type"]
    if kind == "missing":
        return Problem(loc, f"the key `{loc[-1]}` is missing here: add the key")
    if kind == "extra_forbidden":
        return Problem(loc, f"unknown key `{loc[-1]}`; {did_you_mean(loc[-1], keys_at(model, loc[:-1]))}", on_key=True)
    on_key = loc[-1:] == ("[key]",)
    place = loc  # shortened to what exists in the data: pydantic appends steps of its own
    current = data
    for count, step in enumerate(loc):
        try:
            current = current[step]
        except (TypeError, LookupError):  # not a container, or no such entry
            place = loc[:count]
            break
    name = next((step for step in reversed(place) if isinstance(step, str)), None)
    if kind == "value_error":  # raised by a validator of Aftershock, with a complete sentence
        sentence = str(detail["ctx"]["error"])
        return Problem(place, sentence if on_key or name is None else f"`{name}`: {sentence}", on_key)
    if template := _TEMPLATES.get(kind):
        value = detail["input"]
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        shown = f"`{text}`" if len(text) <= 60 else f"`{text[:57]}...`"  # noqa: PLR2004 -- fits a line
        context = {key: _in_unit_of(detail["input"], limit) for key, limit in detail.get("ctx", {}).items()}
        sentence = template.format(**context, value=shown)
    else:
        sentence = f"is not valid ({detail['msg']}): correct it"
    if on_key:
        sentence = f"this name {sentence}"
    elif name is not None:
        sentence = f"`{name}` {sentence}"
    return Problem(place, sentence, on_key)


def _in_unit_of(given: object, limit: Any) -> Any:
    """Return a limit in the plan's notation if the value that exceeds it is a duration or a size with a unit."""
    if isinstance(given, str) and type(limit) is int:
        for parse, write in ((parse_duration_ms, format_duration), (parse_size_bytes, format_size)):
            with suppress(ValueError):
                parse(given)
                return write(limit)
    return limit


def keys_at(model: type[BaseModel], loc: Location) -> list[str]:
    """Return the valid keys of the pydantic model at ``loc``, in YAML's notation."""

    def fields(at: type[BaseModel]) -> list[tuple[str, Any]]:
        return [(field.alias or name, field) for name, field in at.model_fields.items()]

    current: Any = model
    for step in loc:
        if get_origin(current) is dict:  # the step is a name that the plan chooses
            current = get_args(current)[1]
            continue
        current = _model_in(current)
        if isinstance(step, str) and _is_model(current):
            current = next((field.annotation for key, field in fields(current) if key == step), None)
    current = _model_in(current)
    return [key for key, _ in fields(current)] if _is_model(current) else []


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _model_in(annotation: Any) -> Any:
    """Return the model class inside Optional, Annotated, tuple or dict; else the annotation itself."""
    if get_origin(annotation) not in (Union, types.UnionType, Annotated, tuple, dict):
        return annotation
    inner: Callable[[Any], Any] = _model_in
    return next((model for model in map(inner, get_args(annotation)) if _is_model(model)), annotation)


M = TypeVar("M", bound=BaseModel)
LIST_MAX = {"topics": 100, "workloads": 50, "faults": STEPS_MAX, "slo": 500}
"""Longest permitted length of each list of a plan."""


@dataclass
class PartReader:
    """Validates parts of a plan's data and collects their problems."""

    data: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)

    def entries(self, key: str) -> list[Any]:
        """Return the plan's list at ``key`` up to its longest permitted length; empty if the value is not a list."""
        items = self.data.get(key)
        return items[: LIST_MAX[key]] if isinstance(items, list) else []

    def add_problem(self, loc: Location, sentence: str) -> None:
        self.problems.append(Problem(loc, sentence))

    def read(self, item: object, model: type[M], loc: Location) -> M | None:
        """Validate a part of a plan and return it without its unknown keys; None if the part is otherwise invalid."""
        try:
            return model.model_validate(item)
        except ValidationError as error:
            self.problems += validation_errors(error, model, item, loc)
            unknown = [detail["loc"] for detail in error.errors() if detail["type"] == "extra_forbidden"]
        if not unknown:
            return None
        pruned = deepcopy(item)
        for *path, key in unknown:
            current: Any = pruned
            for step in path:
                current = current[step]
            del current[key]
        try:
            return model.model_validate(pruned)
        except ValidationError:
            return None

    def read_entries(self, key: str, model: type[M]) -> dict[int, M]:
        """Validate the entries of the plan's top-level list ``key``; return the valid entries by index."""
        parts = ((index, self.read(item, model, (key, index))) for index, item in enumerate(self.entries(key)))
        return {index: part for index, part in parts if part is not None}

    def read_key(self, key: str, model: type[M], default: M) -> M | None:
        """Validate a top-level key of the plan; return the default for an absent key, None for an invalid value."""
        return self.read(self.data[key], model, (key,)) if key in self.data else default


_WORDS_OF_KINDS = {
    "kill": "crash die sigkill broker_down node_down broker_dies",
    "stop": "shutdown shut_down sigterm",
    "pause": "freeze hang suspend sigstop",
    "restart": "reboot bounce",
    "latency": "delay slow slow_network network_delay network_latency lag",
    "cut": "partition network_partition isolate split_brain disconnect unplug",
    "blackhole": "drop_traffic timeout",
    "packet_loss": "loss drop drop_packets network_loss",
    "packet_corrupt": "corrupt bit_flip",
    "packet_duplicate": "duplicate",
    "packet_reorder": "reorder",
    "bandwidth": "throttle rate_limit limit_rate",
    "disk_full": "fill_disk full_disk disk_fill no_space",
    "disk_errors": "io_error io_errors eio disk_failure disk_fault",
    "slow_disk": "disk_latency io_latency disk_delay",
    "cpu_quota": "cpu cpu_stress cpu_hog cpu_limit stress",
    "memory_limit": "memory oom memory_stress memory_hog",
    "gc_pause": "gc stop_the_world",
    "lose_rack": "kill_rack rack_down zone_down az_down lose_zone",
    "power_loss": "power_failure power_cut power_off blackout",
    "clock_bump": "clock clock_jump time_travel ntp time_skew",
    "clock_skew": "clock_drift drift",
    "kill_client": "client_crash crash_client kill_consumer kill_producer consumer_dies",
    "pause_client": "freeze_client hang_client pause_consumer",
    "elect": "leader_election election preferred_leader move_leader",
    "reassign": "move_partitions rebalance_partitions rotate_leaders",
    "churn": "rebalance scale",
}
OTHER_WORDS = {word: kind for kind, words in _WORDS_OF_KINDS.items() for word in words.split()}
"""Kinds of fault by names that other tools or users give them."""

ELEMENTS_MAX = 1_000  # faults, composed elements and waits as written, before anything is repeated
_PLACEHOLDER = Wait(wait="0s")  # replaces nested elements, so that an element's problems are only those of its keys


@dataclass(frozen=True)
class LocatedFault:
    """Fault at its location in the plan, with each range of values replaced by one end of the range."""

    loc: Location
    fault: Fault


@dataclass(frozen=True)
class DraftFaults:
    """Valid faults of a plan; ``ids`` has the id of each fault of the plan, valid or not, without round numbers.

    ``unreadable`` is True if an entry of ``faults`` is invalid, ``nameless`` if any fault has neither kind nor id.
    """

    readable: tuple[LocatedFault, ...] = ()
    elements: Mapping[Location, AnyElement] = field(default_factory=dict)
    ids: Mapping[Location, str] = field(default_factory=dict)
    expansion: Expansion = field(default_factory=Expansion)
    unreadable: bool = False
    nameless: bool = False


def read_faults(reader: PartReader, blocks: int, timing: Timing | None) -> DraftFaults:
    """Validate and schedule the plan's faults, repeated ``blocks`` times; add problems to the reader."""
    items = {("faults", index): item for index, item in enumerate(reader.entries("faults"))}
    faults = _FaultReader(reader)
    for top, item in items.items():
        faults.read_element(item, top, useless_wait=True)
    ids = fault_ids(faults.kinds)
    if faults.elements_read > ELEMENTS_MAX:
        reader.add_problem(("faults",), f"the plan has more than {ELEMENTS_MAX} faults and compositions: remove some")
        return DraftFaults(unreadable=True, nameless=True)
    total = 0
    for loc, element in faults.elements.items():
        total += blocks * steps_max(element)
        if total > STEPS_MAX:
            remedy = f"use fewer than {blocks} `blocks`" if blocks > 1 else "repeat the entry less often"
            sentence = f"with this entry the plan exceeds the limit of {STEPS_MAX} faults and waits: {remedy}"
            reader.add_problem(loc, sentence)
            break
    expansion = expand(faults.elements, ids, None, blocks, timing) if total <= STEPS_MAX else Expansion()
    is_complete = len(faults.elements) == len(items)
    return DraftFaults(tuple(faults.readable), faults.elements, ids, expansion, not is_complete, faults.nameless)


class _FaultReader:
    """Reader of faults and composed elements; ``kinds`` has each fault's location, kind and explicit id."""

    def __init__(self, reader: PartReader) -> None:
        self.reader = reader
        self.readable: list[LocatedFault] = []
        self.elements: dict[Location, AnyElement] = {}
        self.kinds: list[tuple[Location, str, str | None]] = []
        self.nameless = False
        self.elements_read = 0

    def read_element(self, item: Any, loc: Location, *, useless_wait: bool) -> None:
        """Validate a fault or composed element; with ``useless_wait``, a ``wait`` at this location has no effect."""
        self.elements_read += 1
        if self.elements_read > ELEMENTS_MAX:
            return
        model = element_model(item)
        element: AnyElement | None = None
        is_top_level = len(loc) == 2  # noqa: PLR2004 -- ("faults", index)
        if model is Wait and useless_wait:
            self.reader.add_problem(loc, "`wait` has an effect only in `then` or in `choose`: remove `wait` here")
        if model is None or model in (Fault, Ranged):
            element = self._read_fault(item, loc)
        else:
            shell, children = _split(item)
            if self.reader.read(shell, model, loc) is None:
                self.nameless = True
            for place, child in children.items():
                self.read_element(child, (*loc, *place), useless_wait=model not in (Then, Choose))
            if is_top_level:
                with suppress(ValidationError):  # already reported at the location of its cause
                    element = cast("AnyElement", model.model_validate(item))
        if is_top_level and element is not None:
            self.elements[loc] = element

    def _read_fault(self, item: Any, loc: Location) -> Fault | Ranged | None:
        kind = item.get("kind") if isinstance(item, dict) else None
        own_id = item.get("id") if isinstance(item, dict) else None
        if isinstance(kind, str):
            self.kinds.append((loc, kind, None if own_id is None else str(own_id)))
        self.nameless |= own_id is None and not (isinstance(kind, str) and kind in KINDS)
        if kind is None:
            self.reader.add_problem(loc, "a fault needs a `kind`: `aftershock plan faults` lists the kinds")
        elif not isinstance(kind, str) or kind not in KINDS:
            meant = OTHER_WORDS.get(str(kind).lower().replace("-", "_").replace(" ", "_"))
            hint = f"did you mean `{meant}`?" if meant else did_you_mean(kind, KINDS, listed=False)
            unknown = f"there is no fault of kind `{kind}`; {hint}"
            refusal = EXTERNAL.refused.get(str(kind)) or f"{unknown} All kinds: `aftershock plan faults`"
            self.reader.add_problem((*loc, "kind"), refusal)
        elif any(ranges_in(item)):
            return self._read_ranged(item, KINDS[kind], loc)
        elif fault := self.reader.read(item, KINDS[kind], loc):
            self.readable.append(LocatedFault(loc, fault))
            return fault
        return None

    def _read_ranged(self, item: dict[str, Any], model: type[Fault], loc: Location) -> Ranged | None:
        problems = []
        ranges = list(ranges_in(item))
        for place, value in ranges:
            try:
                parse_range(value)
            except ValueError as error:
                problems.append(Problem((*loc, *place), f"`{place[-1]}`: {error}"))
        if len(ranges) > RANGES_MAX:
            sentence = f"{len(ranges)} ranges in one fault exceed the limit of {RANGES_MAX}: use single values instead"
            problems.append(Problem(loc, sentence))
        if any(place == ("id",) for place, _ in ranges):
            problems.append(Problem((*loc, "id"), "`id` can't be drawn from a range: give one id"))
        if problems:
            self.reader.problems += problems
            return None
        at_corners = PartReader({})
        faults = [at_corners.read(data, model, loc) for data in corners(item)]
        # one problem for each location, that of the first corner with one
        self.reader.problems += {problem.loc: problem for problem in reversed(at_corners.problems)}.values()
        self.readable += [LocatedFault(loc, fault) for fault in faults if fault is not None]
        return None if at_corners.problems else Ranged.model_validate(item)


def _split(item: dict[str, Any]) -> tuple[dict[str, Any], dict[Location, Any]]:
    """Return a composed element with placeholders for its nested elements, and the nested elements by location."""
    shell, nested = dict(item), dict[Location, Any]()
    for key in ("together", "then"):
        if isinstance(entries := item.get(key), list):
            nested |= {(key, index): child for index, child in enumerate(entries)}
            shell[key] = [_PLACEHOLDER] * len(entries)
    if isinstance(choices := item.get("choose"), list):
        shell["choose"] = list(choices)
        for index, choice in enumerate(choices):
            if isinstance(choice, dict) and "fault" in choice:
                nested["choose", index, "fault"] = choice["fault"]
                shell["choose"][index] = {**choice, "fault": _PLACEHOLDER}
    if "fault" in item:
        nested["fault",] = item["fault"]
        shell["fault"] = _PLACEHOLDER
    return shell, nested


@dataclass(frozen=True)
class Draft:
    """Valid parts of a plan; the keys of mappings are the indices of list entries in the plan.

    ``slo`` has each SLO of the plan, or the SLO's syntax error. ``topics_source`` tells in error messages where topics
    are declared. An attached cluster has no ``cluster``, because its racks and brokers are unknown. ``is_soak`` is True
    if the plan calls itself a soak in its name or reason, so that hours of steady load are meant.
    """

    cluster: Cluster | None
    topics: Mapping[int, Topic] = field(default_factory=dict)
    workloads: Mapping[int, Workload] = field(default_factory=dict)
    timing: Timing | None = None
    faults: DraftFaults = field(default_factory=DraftFaults)
    slo: Mapping[int, Slo | SloSyntaxError] = field(default_factory=dict)
    unreadable_topics: frozenset[str] = frozenset()
    unreadable_arms: frozenset[str] = frozenset()
    unreadable_workloads: bool = False
    topics_source: str = "among the plan's `topics`"
    attach: Attach | None = None
    is_soak: bool = False


def _empty_values(data: object, loc: Location = ()) -> Iterator[Location]:
    """Yield the location of each key below the top level without a value, which YAML reads as null."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if value is None:
                if loc:  # `faults:` without an entry is a plan without faults
                    yield (*loc, key)
            else:
                yield from _empty_values(value, (*loc, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _empty_values(value, (*loc, index))


def draft_of(plan: Plan) -> Draft:
    """Return a plan object as a draft without invalid parts."""
    draft, _ = read_draft(dump(plan))
    return draft


def read_draft(data: Mapping[str, Any]) -> tuple[Draft, list[Problem]]:
    """Return the valid parts of a plan as a draft, and the problems of the invalid parts."""
    reader = PartReader(data)
    # The plan's top-level keys are validated with placeholders for the parts that are read separately.
    read_separately = Plan.model_fields.keys() - {"name", "why", "blocks", "abort"}
    own = {key: value for key, value in data.items() if key not in read_separately}
    any_workload = Workload.model_validate({"name": "w", "produce": {"topic": "t", "rate": "1/s"}})
    own |= {"topics": (Topic(name="t", partitions=1, replication=1),), "workloads": (any_workload,)}
    try:
        Plan.model_validate(own)
    except ValidationError as error:
        reader.problems += validation_errors(error, Plan, own, ())
    for key in ("topics", "workloads"):
        if not data.get(key):
            reader.add_problem((key,), f"the plan needs at least one entry in `{key}`: add one")
    for key in ("topics", "workloads", "faults", "slo"):
        items = data.get(key)
        if not isinstance(items, list | None):
            reader.add_problem((key,), f"`{key}` must be a list: put `- ` before each of its entries")
        elif items and len(items) > LIST_MAX[key]:
            sentence = f"`{key}` has {len(items)} entries, more than the limit of {LIST_MAX[key]}: remove some"
            reader.add_problem((key, LIST_MAX[key]), sentence)
    topics = reader.read_entries("topics", Topic)
    workloads = reader.read_entries("workloads", Workload)
    cluster = reader.read_key("cluster", Cluster, Cluster())
    attach = cluster.attach if cluster else None
    timing = reader.read_key("timing", Timing, Timing())
    blocks = data.get("blocks", 1)
    if type(blocks) is not int or not 1 <= blocks <= BLOCKS_MAX:
        blocks = 1  # reported with the plan's own keys
    slo: dict[int, Slo | SloSyntaxError] = {}
    for index, entry in enumerate(reader.entries("slo")):
        line = entry
        if isinstance(entry, dict):
            slo_entry = reader.read(entry, SloEntry, ("slo", index))
            line = slo_entry and slo_entry.slo
        elif not isinstance(entry, str):
            reader.add_problem(("slo", index), "an SLO must be a line of text: put the SLO in quotes")
        if isinstance(line, str):
            try:
                slo[index] = parse_slo(line)
            except SloSyntaxError as error:
                slo[index] = error
    invalid_topics = [item for index, item in enumerate(reader.entries("topics")) if index not in topics]
    invalid_workloads = [item for index, item in enumerate(reader.entries("workloads")) if index not in workloads]
    arms = [item.get("arms") for item in invalid_workloads if isinstance(item, dict)]
    draft = Draft(
        None if attach else cluster,
        topics,
        workloads,
        timing,
        read_faults(reader, blocks, timing),
        slo,
        frozenset(str(item["name"]) for item in invalid_topics if isinstance(item, dict) and "name" in item),
        frozenset(str(name) for names in arms if isinstance(names, dict) for name in names),
        bool(invalid_workloads),
        attach=attach,
        is_soak="soak" in f"{data.get('name')} {data.get('why')}".lower(),
    )
    empty = {loc: f"`{loc[-1]}` is empty: give it a value, or remove the key" for loc in _empty_values(data)}
    others = [problem for problem in reader.problems if problem.loc not in empty]
    return draft, [*others, *(Problem(loc, sentence) for loc, sentence in empty.items())]
