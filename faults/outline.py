"""What a cluster kept for ad-hoc work needs of a plan: its ``cluster`` and its ``topics``, both optional.

A whole plan serves as well: what else it says is not read, only named. What is wrong with the two parts, and a key that
no plan has, is reported as in a plan, all at once with its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from aftershock.errors import PlanError
from aftershock.faults.crosscheck import crosscheck
from aftershock.faults.document import dump, load
from aftershock.faults.draft import Draft, read_draft
from aftershock.faults.plan import Cluster, Plan, Topic
from aftershock.faults.problem import Problem, worded

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
