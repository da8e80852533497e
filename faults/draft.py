"""The parts of a plan that can be read, each on its own, so that one bad part doesn't hide what is wrong elsewhere.

A draft also knows the *names* in the parts that can't be read (topics, arms, fault ids), so that nothing is reported as
undeclared which is merely misspelt inside.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from aftershock.faults.compile import fault_ids
from aftershock.faults.complaints import complaints
from aftershock.faults.fault import Fault
from aftershock.faults.kinds import KINDS
from aftershock.faults.plan import Cluster, Plan, Timing, Topic, Workload
from aftershock.faults.problem import Loc, Problem, did_you_mean

M = TypeVar("M", bound=BaseModel)
_LISTS = ("topics", "workloads", "faults", "slo")


@dataclass(frozen=True)
class Draft:
    """What can be judged. The mappings are keyed by the index in the plan; a part that can't be read is absent.

    ``topics_are``: where its topics stand, for the sentence about one that doesn't.
    """

    cluster: Cluster | None
    topics: Mapping[int, Topic]
    workloads: Mapping[int, Workload]
    timing: Timing | None
    faults: Mapping[int, Fault]
    slo: Mapping[int, str]
    fault_ids: Mapping[int, str]
    unreadable_topics: frozenset[str] = frozenset()
    unreadable_arms: frozenset[str] = frozenset()
    unreadable_faults: bool = False
    nameless_faults: bool = False
    unreadable_workloads: bool = False
    topics_are: str = "among the plan's `topics`"


@dataclass
class _Reading:
    """The data being read, and the problems met so far."""

    data: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)


def draft_of(plan: Plan) -> Draft:
    """A plan is a draft with nothing unreadable."""
    return Draft(
        plan.cluster,
        dict(enumerate(plan.topics)),
        dict(enumerate(plan.workloads)),
        plan.timing,
        dict(enumerate(plan.faults)),
        dict(enumerate(plan.slo)),
        dict(enumerate(fault_ids(plan.faults))),
    )


def read_draft(data: Mapping[str, Any]) -> tuple[Draft, list[Problem]]:
    """Every part that can be read, and what is wrong with those that can't."""
    reading = _Reading(data)
    _frame(reading)
    topics = dict(_items(reading, "topics", Topic))
    workloads = dict(_items(reading, "workloads", Workload))
    faults = dict(_faults(reading))
    draft = Draft(
        _part(reading, "cluster", Cluster, Cluster()),
        topics,
        workloads,
        _part(reading, "timing", Timing, Timing()),
        faults,
        {i: text for i, text in enumerate(_list(reading, "slo")) if isinstance(text, str)},
        _ids(_list(reading, "faults")),
        frozenset(_names(_list(reading, "topics"), topics)),
        frozenset(_arms(_list(reading, "workloads"), workloads)),
        len(faults) < len(_list(reading, "faults")),
        any(_nameless(item) for item in _list(reading, "faults")),
        len(workloads) < len(_list(reading, "workloads")),
    )
    return draft, reading.problems


def _frame(reading: _Reading) -> None:
    """The plan's own keys, with everything that is judged part by part taken for good."""
    shell = {
        key: value for key, value in reading.data.items() if key in ("name", "why") or key not in Plan.model_fields
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
    for index, text in enumerate(_list(reading, "slo")):
        if not isinstance(text, str):
            reading.problems.append(Problem(("slo", index), "an SLO is a line of text: put it in quotes"))


def _list(reading: _Reading, key: str) -> list[Any]:
    items = reading.data.get(key)
    return items if isinstance(items, list) else []


def _part(reading: _Reading, key: str, model: type[M], default: M) -> M | None:
    return _read(reading, reading.data[key], model, (key,)) if key in reading.data else default


def _items(reading: _Reading, key: str, model: type[M]) -> Iterator[tuple[int, M]]:
    for index, item in enumerate(_list(reading, key)):
        read = _read(reading, item, model, (key, index))
        if read is not None:
            yield index, read


def _faults(reading: _Reading) -> Iterator[tuple[int, Fault]]:
    for index, item in enumerate(_list(reading, "faults")):
        loc: Loc = ("faults", index)
        kind = item.get("kind") if isinstance(item, dict) else None
        if kind is None:
            reading.problems.append(Problem(loc, "a fault needs a `kind`: `aftershock plan faults` lists them"))
        elif not isinstance(kind, str) or kind not in KINDS:
            sentence = f"there is no fault of kind `{kind}`; {did_you_mean(kind, KINDS)} "
            sentence += "All kinds: `aftershock plan faults`"
            reading.problems.append(Problem((*loc, "kind"), sentence))
        else:
            read = _read(reading, item, KINDS[kind], loc)
            if read is not None:
                yield index, read


def _read(reading: _Reading, item: object, model: type[M], loc: Loc) -> M | None:
    try:
        return model.model_validate(item)
    except ValidationError as error:
        reading.problems += complaints(error, model, item, loc)
        unknown = [detail["loc"] for detail in error.errors() if detail["type"] == "extra_forbidden"]
        return _without(unknown, item, model) if unknown else None


def _without(unknown: list[Loc], item: object, model: type[M]) -> M | None:
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


def _ids(faults: list[Any]) -> dict[int, str]:
    """The ids that faults have or would have; the ones that can't even be named are absent."""
    seen: Counter[str] = Counter()
    ids: dict[int, str] = {}
    for index, item in enumerate(faults):
        kind = item.get("kind") if isinstance(item, dict) else None
        if isinstance(kind, str):
            seen[kind] += 1
            ids[index] = str(item.get("id") or f"{kind}-{seen[kind]}")
    return ids


def _nameless(fault: object) -> bool:
    return not isinstance(fault, dict) or (fault.get("kind") not in KINDS and "id" not in fault)


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
