"""A smaller cluster: topics, partitions, settings, racks, brokers. Last, since most of it takes another launch."""

from collections.abc import Iterator

from aftershock.faults.minimise.candidate import Candidate, Document, changed, value_at, without
from aftershock.faults.minimise.steps import tampers
from aftershock.faults.plan import Cluster
from aftershock.faults.problem import Loc


def smaller(document: Document) -> Iterator[Candidate]:
    """Topics that nobody needs, partitions and settings; then nodes."""
    for index, topic in enumerate(document["topics"]):
        loc = ("topics", index)
        if len(document["topics"]) > 1:
            yield Candidate(f"without topic {topic['name']}", without(document, loc))
        for fewer in sorted({1, topic["partitions"] // 2} - {0, topic["partitions"]}):
            said = f"topic {topic['name']}: {fewer} of {topic['partitions']} partitions"
            yield Candidate(said, changed(document, {(*loc, "partitions"): fewer}))
        yield from _without_each(document, (*loc, "config"), f"topic {topic['name']}")
    yield from _without_each(document, ("cluster", "config"), "cluster")
    yield from _nodes(document)


def _without_each(document: Document, loc: Loc, whose: str) -> Iterator[Candidate]:
    settings = value_at(document, loc) or {}
    for setting in settings:
        yield Candidate(f"{whose} without {setting}", without(document, (*loc, setting) if len(settings) > 1 else loc))


def _nodes(document: Document) -> Iterator[Candidate]:
    cluster = Cluster.model_validate(document.get("cluster") or {})
    for word in ("controllers", "disks", "wire_proxy"):
        if value_at(document, ("cluster", word)) and not (word == "wire_proxy" and tampers(document)):
            yield Candidate(f"cluster without {word}", without(document, ("cluster", word)))
    for rack, brokers in cluster.racks.items():
        for fewer in sorted({0, 1} - {brokers}):
            racks = {name: fewer if name == rack else count for name, count in cluster.racks.items()}
            left = {name: count for name, count in racks.items() if count}
            said = f"rack {rack} with {fewer} of {brokers} brokers" if fewer else f"without rack {rack}"
            yield Candidate(said, _with_racks(document, left))


def _with_racks(document: Document, racks: dict[str, int]) -> Document:
    """With as many replicas as there are brokers, at most."""
    most = sum(racks.values())
    replicas: dict[Loc, int] = {
        ("topics", index, "replication"): min(topic["replication"], most)
        for index, topic in enumerate(document["topics"])
    }
    return changed(document, {("cluster", "racks"): racks, **replicas})
