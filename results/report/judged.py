"""What a list of runs says of each, whatever state it is in."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.files import read_object
from aftershock.results.judged import verdict_of
from aftershock.results.shown import run_s
from aftershock.results.verdict import Verdict


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
