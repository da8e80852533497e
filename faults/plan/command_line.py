"""What a cluster kept for ad-hoc work needs of a plan: its ``cluster`` and its ``topics``, both optional.

A whole plan serves as well: what else it says is not read, only named. What is wrong with the two parts, and a key that
no plan has, is reported as in a plan, all at once with its place.

One fault from the words of the command line: ``inject pause broker="leader of t/0" --for 5s``.

It is read and judged by the code that judges plans, against the cluster and the topics that are there, so that the
same mistakes get the same sentences; only their place is another. What it needs not know of a plan (workloads, and so
consumer groups) is left to the moment of injection, where the cluster answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aftershock.errors import PlanError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.cluster import Cluster
from aftershock.faults.plan.conflicts import grey_failures, surprises
from aftershock.faults.plan.document import Location, Problem, dump, load, worded
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.parsing import Draft, read_draft
from aftershock.faults.plan.references import crosscheck
from aftershock.faults.plan.units import ranges_in
from aftershock.faults.plan.workloads import Topic

_PARTS = ("cluster", "topics")


@dataclass(frozen=True)
class Outline:
    """A cluster and its topics. ``ignored``: the other keys of the document, in order."""

    cluster: Cluster = field(default_factory=Cluster)
    topics: tuple[Topic, ...] = ()
    ignored: tuple[str, ...] = ()

    def on(self, kafka: str) -> "Outline":
        """The same on another version of Kafka."""
        return replace(self, cluster=self.cluster.model_copy(update={"kafka": kafka}))

    def to_yaml(self) -> str:
        """The two parts as a plan says them."""
        topics = [topic.model_dump(mode="json", exclude_defaults=True) for topic in self.topics]
        return dump({"cluster": self.cluster.model_dump(mode="json", exclude_none=True), "topics": topics})


def read_outline(source: Path | str) -> Outline:
    """Read a file (Path) or a text (str). Raises PlanError with everything that is wrong with it."""
    document = load(source)
    draft, problems = read_draft(document.data)
    ours = [*_ours(problems, missing_is_fine=document.data.get("topics") in (None, [])), *_crossed(draft)]
    if draft.attach:
        ours.append(Problem(("cluster", "attach"), "a cluster of your own is only attached by `aftershock run`"))
    if ours or draft.cluster is None:
        raise PlanError(worded(ours, document))
    ignored = tuple(key for key in document.data if key not in _PARTS)
    return Outline(draft.cluster, tuple(draft.topics.values()), ignored)


def _ours(problems: list[Problem], *, missing_is_fine: bool) -> Iterator[Problem]:
    """The problems of the two parts, and of keys that are nobody's."""
    for problem in problems:
        part = problem.loc[0] if problem.loc else None
        if part == "topics" and len(problem.loc) == 1 and missing_is_fine:
            continue
        if part in _PARTS or (part not in Plan.model_fields and len(problem.loc) == 1):
            yield problem


def _crossed(draft: Draft) -> Iterator[Problem]:
    return (problem for problem in crosscheck(draft) if problem.loc[0] in _PARTS)


_NOT_HERE = {
    "at": "an injection begins at once: take `at` away",
    "for": "how long it lasts is said by --for: write --for 10s",
    "id": "an injection is given its id: take `id` away",
    "kind": "the kind is said by the first word: take `kind` away",
}


@dataclass(frozen=True)
class Spoken:
    """A fault as it was asked for, and what may surprise about it."""

    fault: Fault
    warnings: tuple[str, ...]


class _CommandPlaces:
    """Where things stand on a command line: ``inject pause broker``."""

    def __init__(self, kind: str) -> None:
        self._command = f"inject {kind}"

    def position(self, loc: Location) -> str:
        """``inject KIND KEY``, with ``--for`` for ``for``."""
        words = [f"--{step}" if step == "for" else str(step) for step in loc[2:]]
        return " ".join([self._command, ".".join(words)]).rstrip()

    key_position = position


def spoken(
    kind: str, pairs: Sequence[str], lasting: str | None, cluster: Cluster, topics: Sequence[Topic], fault_id: str
) -> Spoken:
    """The fault that ``KIND key=value … --for lasting`` asks for, called ``fault_id``, checked against the cluster.

    Raises PlanError with everything that is wrong with it.
    """
    said = _words(kind, pairs)
    lasts = {} if lasting is None else {"for": lasting}
    draft, problems = _judged({"kind": kind, "id": fault_id, "at": "0s", **lasts, **said}, cluster, topics)
    places = _CommandPlaces(kind)
    if problems:
        raise PlanError(worded(problems, places))
    (one,) = draft.faults.said
    return Spoken(one.fault, tuple(worded([*grey_failures(draft), *surprises(draft)], places)))


def _judged(fault: Mapping[str, Any], cluster: Cluster, topics: Sequence[Topic]) -> tuple[Draft, list[Any]]:
    draft, problems = read_draft({"faults": [fault]})
    here = dict(enumerate(topics))
    draft = replace(draft, cluster=cluster, topics=here, unreadable_workloads=True, topics_are="on the cluster")
    ours = [problem for problem in (*problems, *crosscheck(draft)) if problem.loc[:1] == ("faults",)]
    return draft, ours


def _words(kind: str, pairs: Sequence[str]) -> dict[str, Any]:
    """``["move.from=1", "move.to=2"]`` -> ``{"move": {"from": 1, "to": 2}}``; values are YAML."""
    said: dict[str, Any] = {}
    problems: list[str] = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if why := _refusal(key, equals):
            problems.append(f"inject {kind} {pair}: {why}")
            continue
        try:
            _put(said, key.split("."), load(f"value: {text}", f"inject {kind} {key}").data["value"])
        except (PlanError, KeyError) as error:
            problems += error.problems if isinstance(error, PlanError) else [_twice(kind, key)]
    if any(ranges_in(said)):
        problems.append(f"inject {kind}: a range is for plans, and nothing is drawn here: give one value")
    if problems:
        raise PlanError(problems)
    return said


def _refusal(key: str, equals: str) -> str | None:
    if not equals or not key:
        return "write KEY=VALUE, like broker=1 or delay=50ms"
    return _NOT_HERE.get(key)


def _put(said: dict[str, Any], steps: list[str], value: object) -> None:
    """KeyError if something stands there already."""
    for step in steps[:-1]:
        said = said.setdefault(step, {})
        if not isinstance(said, dict):
            raise KeyError(step)
    if steps[-1] in said:
        raise KeyError(steps[-1])
    said[steps[-1]] = value


def _twice(kind: str, key: str) -> str:
    return f"inject {kind} {key}: said twice; say it once"
