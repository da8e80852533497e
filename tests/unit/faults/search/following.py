"""Plans for searches, and a search driven by an oracle instead of a cluster."""

from collections.abc import Callable, Generator
from copy import deepcopy
from typing import Any

from aftershock.faults.search.candidates import Candidate, Document, fault_units

SEED = 7
FRAME: dict[str, Any] = {
    "name": "big",
    "topics": [{"name": "orders", "partitions": 6, "replication": 3}],
    "workloads": [{"name": "orders", "produce": {"topic": "orders", "rate": "40/s"}, "consume": {"topic": "orders"}}],
    "timing": {"steady": "4s", "fault": "3s", "recovery": "4s"},
    "slo": ["lost == 0"],
}


def plan(*faults: Any, **changes: Any) -> dict[str, Any]:
    return {**deepcopy(FRAME), "faults": list(faults), **changes}


def slow(name: str, at_s: int, **more: Any) -> dict[str, Any]:
    link = "client(a) -> broker"
    return {"id": name, "at": f"{at_s}s", "for": "2s", "kind": "latency", "link": link, "delay": "40ms", **more}


def follow(
    search: Generator[Candidate, bool, Document], fails: Callable[[Document], bool]
) -> tuple[Document, list[Candidate]]:
    """Return the result of the search, and all candidates that it yielded."""
    asked: list[Candidate] = []
    try:
        candidate = next(search)
        while True:
            asked.append(candidate)
            candidate = search.send(fails(candidate.document))
    except StopIteration as end:
        return end.value, asked


def ids(document: Document) -> set[str]:
    """Return the ids of the document's faults."""
    return {_at(document, loc)["id"] for loc in fault_units(document)}


def _at(document: Document, loc: tuple[str | int, ...]) -> Any:
    here: Any = document
    for step in loc:
        here = here[step]
    return here
