"""A plan that may fail the same way, and what was done to make it. Documents are plain data, as YAML reads them."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from aftershock.faults.problem import Loc

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """``said``: how it differs from what it was made of, for the log."""

    said: str
    document: Document


Reduction = Callable[[Document], Iterator[Candidate]]
"""Ways to make a document smaller in one respect, the one that is likely to gain most first."""


def value_at(document: Document, loc: Loc) -> Any:
    """What stands there; None where nothing does."""
    here: Any = document
    for step in loc:
        known = step in here if isinstance(here, Mapping) else isinstance(step, int) and step < len(here)
        if not known:
            return None
        here = here[step]
    return here


def changed(document: Document, values: Mapping[Loc, Any]) -> Document:
    """A copy with other values at these places."""
    copy: Any = deepcopy(dict(document))
    for (*path, last), value in values.items():
        here = copy
        for step in path:
            here = here.setdefault(step, {}) if isinstance(here, dict) else here[step]
        here[last] = value
    return dict(copy)


def without(document: Document, *places: Loc) -> Document:
    """A copy that lacks what stands at these places."""
    copy: Any = deepcopy(dict(document))
    for *path, last in sorted(places, key=lambda place: [str(step).zfill(4) for step in place], reverse=True):
        here = copy
        for step in path:
            here = here[step]
        del here[last]
    return dict(copy)


def digest(*what: Any) -> str:
    """A name for plain data: the same for the same."""
    said = json.dumps(what, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:16]
