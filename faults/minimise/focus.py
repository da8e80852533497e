"""What a search begins with: the plan with the SLOs at stake only, and with a name for each fault.

A fault without an id is called by its kind and its number among them, so those after one that is dropped would change
their names, and SLOs would read the windows of others. A fault with an id of its own draws from a stream of that name
(``expand.py``), so naming one that draws may make another fault of it: then the named plan is a candidate like others.
"""

import re
from collections.abc import Collection
from typing import Any

from aftershock.faults.draft import draft_of
from aftershock.faults.minimise.candidate import Candidate, Document, changed
from aftershock.faults.minimise.steps import tampers
from aftershock.faults.minimise.trying import Search, compiled, fails
from aftershock.faults.plan import Plan
from aftershock.faults.problem import Loc
from aftershock.results.slo import parse


def focused(document: Document, checks: Collection[str]) -> Document:
    """The plan with those of its SLOs that these checks come from. An integrity rule needs none to be judged.

    A plan that has the wire proxy for its faults' sake keeps it without them, so that all candidates share a cluster.
    """
    kept = [entry for entry in document.get("slo") or () if _id(entry) in {*checks, *map(_unnumbered, checks)}]
    values: dict[Loc, Any] = {("slo",): kept}
    if tampers(document):
        values["cluster", "wire_proxy"] = True
    return changed(document, values)


def named(document: Document, seed: int) -> Search[Document]:
    """The plan with an id for each fault, unless that makes other faults of them that no longer fail."""
    ids = draft_of(Plan.model_validate(document)).faults.ids
    candidate = changed(document, {(*loc, "id"): name for loc, name in ids.items()})
    if compiled(candidate, seed).steps == compiled(document, seed).steps:
        return candidate
    kept = yield from fails(Candidate("each fault with an id, so that others are drawn", candidate), seed)
    return candidate if kept else document


def _id(entry: object) -> str:
    return parse(entry["slo"] if isinstance(entry, dict) else str(entry)).check_id()


def _unnumbered(check: str) -> str:
    """Of two SLOs that say the same with other thresholds, the second's check has a number: both stay."""
    return re.sub(r"-\d+$", "", check)
