"""Reading of the cluster spec of ``cluster up``, and of the fault on the command line of ``inject``.

A cluster spec has the sections ``cluster`` and ``topics`` of a plan, both optional. A whole plan is accepted as a
cluster spec too, with a message about its ignored keys. The fault of an ``inject`` command, such as ``inject pause
broker="leader of t/0" --for 5s``, passes the same checks as the faults of a plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aftershock.errors import PlanError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.conflicts import fault_warnings
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.parsing import read_draft
from aftershock.faults.plan.references import reference_problems
from aftershock.faults.sections.cluster import Cluster
from aftershock.faults.sections.document import Location, Problem, dump_yaml, format_problems, load
from aftershock.faults.sections.units import ranges_in
from aftershock.faults.sections.workloads import Topic

_PARTS = ("cluster", "topics")


@dataclass(frozen=True)
class ClusterDocument:
    """Cluster spec with its topics; ``ignored`` lists the other keys of the document, in order."""

    cluster: Cluster = field(default_factory=Cluster)
    topics: tuple[Topic, ...] = ()
    ignored: tuple[str, ...] = ()

    def on(self, kafka: str) -> "ClusterDocument":
        """Return a copy of the cluster spec for another version of Kafka; an image of the user's stays."""
        if self.cluster.image:
            return self
        return replace(self, cluster=self.cluster.model_copy(update={"kafka": kafka}))

    def to_yaml(self) -> str:
        """Return the cluster spec as YAML."""
        topics = [topic.model_dump(mode="json", exclude_defaults=True) for topic in self.topics]
        return dump_yaml({"cluster": self.cluster.model_dump(mode="json", exclude_none=True), "topics": topics})


def read_cluster_spec(source: Path | str) -> ClusterDocument:
    """Read a cluster spec from a file (Path) or a text (str); raise PlanError with all problems of the spec."""
    document = load(source)
    draft, problems = read_draft(document.data)
    may_lack_topics = document.data.get("topics") in (None, [])
    relevant = []
    for problem in problems:
        is_unknown_key = len(problem.loc) == 1 and problem.loc[0] not in Plan.model_fields
        is_allowed = problem.loc == ("topics",) and may_lack_topics
        if is_unknown_key or (problem.loc[:1] in (("cluster",), ("topics",)) and not is_allowed):
            relevant.append(problem)
    relevant += [problem for problem in reference_problems(draft) if problem.loc[0] in _PARTS]
    if draft.attach:
        sentence = "`attach` only works with `aftershock run`: describe a cluster to launch instead"
        relevant.append(Problem(("cluster", "attach"), sentence))
    if relevant or draft.cluster is None:
        raise PlanError(format_problems(relevant, document))
    ignored = tuple(key for key in document.data if key not in _PARTS)
    return ClusterDocument(draft.cluster, tuple(draft.topics.values()), ignored)


_NOT_A_PARAMETER = {
    "at": "an injection begins at once: remove `at`",
    "for": "the duration of an injection is an option: write --for 10s",
    "id": "the id of an injection is generated: remove `id`",
    "kind": "the fault kind is the first argument of the command: remove `kind`",
}


@dataclass(frozen=True)
class InjectCommand:
    """The fault of an ``inject`` command, and warnings about it."""

    fault: Fault
    warnings: tuple[str, ...]


class _CommandSourceMap:
    """Positions in an ``inject`` command for error messages, each like ``inject pause broker``."""

    def __init__(self, kind: str) -> None:
        self._command = f"inject {kind}"

    def position(self, loc: Location) -> str:
        words = [f"--{step}" if step == "for" else str(step) for step in loc[2:]]
        return " ".join([self._command, ".".join(words)]).rstrip()

    key_position = position


def parse_inject(
    kind: str, pairs: Sequence[str], duration: str | None, cluster: Cluster, topics: Sequence[Topic], fault_id: str
) -> InjectCommand:
    """Parse and check ``inject KIND key=value … --for DURATION``; raise PlanError with all problems of the command."""
    parameters: dict[str, Any] = {}
    mistakes: list[str] = []
    for pair in pairs:  # ["move.from=1", "move.to=2"] becomes {"move": {"from": 1, "to": 2}}; values are YAML
        key, equals, text = pair.partition("=")
        if not equals or not key:
            mistakes.append(f"inject {kind} {pair}: write a parameter as KEY=VALUE, like broker=1 or delay=50ms")
            continue
        if refusal := _NOT_A_PARAMETER.get(key):
            mistakes.append(f"inject {kind} {pair}: {refusal}")
            continue
        try:
            value = load(f"value: {text}", f"inject {kind} {key}").data["value"]
        except PlanError as error:
            mistakes += error.problems
            continue
        *path, last = key.split(".")
        current: Any = parameters
        for step in path:
            current = current.setdefault(step, {}) if isinstance(current, dict) else current
        if not isinstance(current, dict) or last in current:
            mistakes.append(f"inject {kind} {key}: the parameter is given twice; give it once")
        else:
            current[last] = value
    if any(ranges_in(parameters)):
        mistakes.append(f"inject {kind}: ranges are only allowed in plans: give a single value")
    if mistakes:
        raise PlanError(mistakes)
    for_ = {} if duration is None else {"for": duration}
    fault = {"kind": kind, "id": fault_id, "at": "0s", **for_, **parameters}
    draft, problems = read_draft({"faults": [fault]})
    by_index = dict(enumerate(topics))
    draft = replace(draft, cluster=cluster, topics=by_index, unreadable_workloads=True, topics_source="on the cluster")
    problems = [problem for problem in (*problems, *reference_problems(draft)) if problem.loc[:1] == ("faults",)]
    source_map = _CommandSourceMap(kind)
    if problems:
        raise PlanError(format_problems(problems, source_map))
    (located,) = draft.faults.readable
    warnings = format_problems(fault_warnings(draft), source_map)
    return InjectCommand(located.fault, tuple(warnings))
