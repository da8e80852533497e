"""What the judge left in a run directory. The reports, the story and the comparisons are drawn from it alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.checks.check import Verdict, from_json
from aftershock.results.evidence.files import read_json, read_object


def verdict_of(home: Path) -> Verdict:
    """The verdict as it was written. Raises EvidenceError where the run was not judged."""
    path = _written(home, "verdict.json")
    try:
        return from_json(read_json(path))
    except (KeyError, TypeError, ValueError) as broken:
        again = f"judge the run again: aftershock verdict {home}"
        raise EvidenceError(f"{path}: not as it was written ({broken!r}); {again}") from broken


def analysis_of(home: Path) -> Mapping[str, Any]:
    """The measurements as they were written. Raises EvidenceError where the run was not judged."""
    return read_object(_written(home, "analysis.json"))


def older(home: Path, what: str) -> str:
    """What to say in the place of something that an older version did not measure."""
    return f"The run was judged by an older version, without {what}; `aftershock verdict {home}` adds it."


def _written(home: Path, name: str) -> Path:
    if not (home / name).exists():
        raise EvidenceError(f"{home / name}: missing; judge the run first: aftershock verdict {home}")
    return home / name
