"""A trial as its record and its judged runs have it: what the terminal, JSON, the page and the table are made from.

Rules: from what is stored alone, so that ``aftershock verdict`` on a run and the same command again give the same. A
part with fewer blocks than the trial wants is named, for its interval is wider; a run of another plan than today's
isn't looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.harness.trials import record
from aftershock.harness.trials.record import Record
from aftershock.harness.trials.trial import Planned, Trial
from aftershock.results.comparing.stored import stored
from aftershock.results.trials.claim import stated
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Statement
from aftershock.results.trials.trial import Verdict, verdict


@dataclass(frozen=True)
class Told:
    """All there is to say of a trial. ``shortened``: parts with fewer blocks than wanted, in words."""

    kip: int
    title: str
    verdict: Verdict
    statements: tuple[Statement, ...]
    parts: Mapping[str, Part]
    left_out: Mapping[str, str]
    shortened: tuple[str, ...]

    @property
    def about(self) -> tuple[str, ...]:
        """The hosts and versions of its runs, each once."""
        return tuple(dict.fromkeys(_about(part.run.run) for part in self.parts.values()))


def tell(trial: Trial, home: Path) -> Told:
    """Read and judge what ``home`` holds. EvidenceError where a run's documents are damaged."""
    kept = record.read(home, trial.kip)
    runs = {part: done for part in trial.parts if (done := kept.done(part, None, home))}
    parts = {part.name: Part(part.name, stored(home / done.run)) for part, done in runs.items()}
    left_out = {part.name: _why(part, kept) for part in trial.parts if part not in runs}
    statements = stated(trial.claims, parts, left_out)
    shortened = tuple(
        _short(part, done.blocks) for part, done in runs.items() if (done.blocks or 0) < (part.blocks or 0)
    )
    return Told(trial.kip, trial.title, verdict(statements), statements, parts, left_out, shortened)


def _why(part: Planned, kept: Record) -> str:
    changed = "its plan or seed has changed since"
    return kept.left_out.get(part.name) or (changed if kept.stale(part) else "not asked for yet")


def _short(part: Planned, blocks: int | None) -> str:
    return f"{part.name}: {blocks} of {part.blocks} blocks"


def _about(run: Mapping[str, Any]) -> str:
    host, profile = run.get("host") or {}, run.get("profile") or {}
    versions = {"kafka": "unknown", **(run.get("versions") or {})}
    said = [f"Kafka {versions['kafka']}", f"profile {profile.get('name', 'unknown')}"]
    host_said = [f"{host.get('cores', '?')} cores", f"{host.get('memory_bytes', 0) / 2**30:.0f} GiB"]
    return ", ".join([*said, *host_said, str(host.get("kernel", "unknown")), f"Aftershock {run.get('git')}"])
