"""Whether two runs may be compared at all, and what differs between them that may be the reason of a difference.

Rules: what a plan says must be the same, its name, load, topics, timing, cluster and faults: else a difference would be
the plan's. What a comparison is made for may differ, and is noted: Kafka's version, an arm's settings, our revision;
and so is what it suffers from, as another host.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.comparing.stored import Stored


def refuse_unlike(base: Stored, changed: Stored) -> None:
    """Raises EvidenceError where the two can't be compared, with every reason."""
    reasons = list(_unlike(base, changed))
    if reasons:
        said = "; ".join(reasons)
        raise EvidenceError(f"{changed.run_id} can't be compared with {base.run_id}: {said}; compare runs of one plan")


def notes(base: Stored, changed: Stored) -> tuple[str, ...]:
    """What else may be the reason of a difference."""
    told = _told(base), _told(changed)
    names = dict.fromkeys([*told[0], *told[1]])
    pairs = ((name, *(each.get(name) for each in told)) for name in names)
    return tuple(f"{name}: {one} there, {other} here" for name, one, other in pairs if one != other)


def _unlike(base: Stored, changed: Stored) -> Iterator[str]:
    one, other = base.timeline, changed.timeline
    if one["name"] != other["name"]:
        yield f"one is of the plan {one['name']}, the other of {other['name']}"
        return
    yield from _differing("timing", one["timing"], other["timing"])
    yield from _differing("cluster", _cluster(one), _cluster(other))
    for what, of in (("the topics", _topics), ("the load", _load)):
        if of(one) != of(other):
            yield f"{what} of the plan differ{'s' if what.endswith('load') else ''}"
    if _faults(base, changed) != _faults(changed, base):
        yield "the faults of the plan differ"
    if bool(base.run.get("rehearse")) != bool(changed.run.get("rehearse")):
        yield "one is a rehearsal, in which nothing was injected"


def _differing(what: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*one, *other}):
        if one.get(key) != other.get(key):
            yield f"{what}: {key} was {one.get(key)} and is {other.get(key)}"


def _cluster(timeline: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in timeline["cluster"].items() if key != "kafka"}


def _topics(timeline: Mapping[str, Any]) -> Any:
    return timeline["topics"]


def _load(timeline: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in workload.items() if key != "arms"} for workload in timeline["workloads"]]


def _faults(run: Stored, beside: Stored) -> Any:
    """With one seed and as many blocks, every word and draw; else which faults there are, for draws decide the rest."""
    steps = run.timeline["steps"]
    if run.run.get("seed") == beside.run.get("seed") and _blocks(run) == _blocks(beside):
        return steps
    return {(step.get("entry", step["id"]), step["kind"]) for step in steps}


def _blocks(run: Stored) -> int:
    return max((int(step.get("block", 0)) for step in run.timeline["steps"]), default=0)


def _told(run: Stored) -> dict[str, Any]:
    """What may differ, by name."""
    versions = {f"version of {name}": version for name, version in (run.run.get("versions") or {}).items()}
    host = {f"host's {name}": said for name, said in (run.run.get("host") or {}).items()}
    arms = {
        f"arm {workload['name']}/{name}": arm
        for workload in run.timeline["workloads"]
        for name, arm in workload["arms"].items()
    }
    return {"seed": run.run.get("seed"), "revision": run.run.get("git"), **versions, **host, **arms}
