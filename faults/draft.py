"""The parts of a plan that can be read, each on its own, so that one bad part doesn't hide what is wrong elsewhere.

A draft also knows the *names* in the parts that can't be read (topics, arms, fault ids), so that nothing is reported as
undeclared which is merely misspelt inside.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from aftershock.faults.attach import Attach
from aftershock.faults.complaints import complaints
from aftershock.faults.elements import Faults, read_faults
from aftershock.faults.plan import BLOCKS_MAX, Cluster, Plan, Timing, Topic, Workload, dump
from aftershock.faults.problem import Loc, Problem
from aftershock.faults.reading import Reading
from aftershock.faults.slo_entry import SloEntry

M = TypeVar("M", bound=BaseModel)
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
        loc: Loc = ("slo", index)
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
        loc: Loc = (key, index)
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
