"""What the judge left in a run directory, and what a list of runs says of each. The reports are drawn from it alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.files import read_json, read_object
from aftershock.results.shown import run_s
from aftershock.results.verdict import Verdict, from_json


@dataclass(frozen=True)
class Run:
    """A run of several: its verdict, or ``why`` it has none. ``took_s`` is None where it did not get that far.

    ``rehearsal``: nothing was injected.
    """

    home: Path
    id: str
    verdict: Verdict | None
    why: str
    took_s: float | None
    rehearsal: bool = False


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


def run_at(home: Path) -> Run:
    """The run in ``home``, whatever state it is in: a list of runs must not end at a broken one."""
    try:
        told = read_object(home / "run.json")
    except EvidenceError as broken:
        return Run(home, home.name, None, str(broken), None)
    name, rehearsal = str(told.get("run_id", home.name)), told.get("rehearse") is True
    try:
        return Run(home, name, verdict_of(home), "", run_s(told), rehearsal)
    except EvidenceError as unjudged:
        return Run(home, name, None, _why(told, unjudged), run_s(told), rehearsal)


def _why(told: Mapping[str, Any], unjudged: EvidenceError) -> str:
    """The run's own reason if it did not finish, else that it was not judged."""
    status = told.get("status")
    return str(unjudged) if status == "complete" else f"the run is {status}: {told.get('why') or 'it does not say why'}"


def _written(home: Path, name: str) -> Path:
    if not (home / name).exists():
        raise EvidenceError(f"{home / name}: missing; judge the run first: aftershock verdict {home}")
    return home / name
