"""One fault from the words of the command line: ``inject pause broker="leader of t/0" --for 5s``.

It is read and judged by the code that judges plans, against the cluster and the topics that are there, so that the
same mistakes get the same sentences; only their place is another. What it needs not know of a plan (workloads, and so
consumer groups) is left to the moment of injection, where the cluster answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aftershock.errors import PlanError
from aftershock.faults.conflicts import grey_failures, surprises
from aftershock.faults.crosscheck import crosscheck
from aftershock.faults.document import load
from aftershock.faults.draft import Draft, read_draft
from aftershock.faults.fault import Fault
from aftershock.faults.plan import Cluster, Topic
from aftershock.faults.problem import Loc, worded
from aftershock.faults.ranges import ranges_in

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

    def position(self, loc: Loc) -> str:
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
