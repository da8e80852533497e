"""Documents of a judged run: its verdict, its measurements, and why parts of them are no evidence.

Reports, stories and comparisons are drawn from these documents alone, without Spark and without the run's rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.checks.check import Status, Verdict, from_json
from aftershock.results.evidence.files import read_json, read_object

CONTROLS = ("baseline", "control")
_SIDES = ("produce", "consume", "commit")


def verdict_of(home: Path) -> Verdict:
    """Return the stored verdict. Raises EvidenceError if the run was not judged."""
    path = _judged_file(home, "verdict.json")
    try:
        return from_json(read_json(path))
    except (KeyError, TypeError, ValueError) as error:
        again = f"judge the run again: aftershock verdict {home}"
        raise EvidenceError(f"{path}: not as it was written ({error!r}); {again}") from error


def analysis_of(home: Path) -> Mapping[str, Any]:
    """Return the stored measurements. Raises EvidenceError if the run was not judged."""
    return read_object(_judged_file(home, "analysis.json"))


def older_version_note(home: Path, measurement: str) -> str:
    """Return the text that replaces a measurement which an older version did not make."""
    return f"The run was judged by an older version, without {measurement}; `aftershock verdict {home}` adds it."


def _judged_file(home: Path, name: str) -> Path:
    if not (home / name).exists():
        raise EvidenceError(f"{home / name}: missing; judge the run first: aftershock verdict {home}")
    return home / name


@dataclass(frozen=True)
class JudgedRun:
    """The documents of a run directory that was judged."""

    home: Path
    run: Mapping[str, Any]
    timeline: Mapping[str, Any]
    analysis: Mapping[str, Any]
    verdict: Verdict

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.run["run_id"])

    def arms(self, workload: Mapping[str, Any]) -> list[str]:
        """Return the arms of a workload: the control (``baseline``, ``control``) first, then by name."""
        return sorted(workload["arms"], key=lambda arm: (arm not in CONTROLS, arm))

    def sides(self, workload: Mapping[str, Any]) -> list[str]:
        """Return the sides of a workload: ``produce``, ``consume``, ``commit``."""
        return [side for side in _SIDES if workload.get(side)]

    def doubt(self) -> str | None:
        """Return why nothing of the run is evidence: it did not finish, or its harness can't be trusted. Else None."""
        if self.run.get("status") != "complete":
            return f"{self.run_id} did not finish: {self.run.get('why') or self.run.get('status')}"
        untrusted = [c for c in self.verdict.checks if c.kind == "harness" and c.status is not Status.PASS]
        return f"{self.run_id}: {untrusted[0].id}: {untrusted[0].why}" if untrusted else None

    def unproven(self) -> dict[str, str]:
        """Return the faults without a witness or without exposure, with the first reason for each."""
        doubts = [c for c in self.verdict.checks if c.kind in ("witness", "exposure") and c.status is not Status.PASS]
        return {check.id.split("/", 1)[1]: check.why for check in reversed(doubts)}

    def trials(self) -> tuple[set[int] | None, tuple[str, ...]]:
        """Return the blocks in which every fault took effect, and a note for each other block.

        The blocks are None for a run without blocks, which counts as a whole.
        """
        unproven, steps = self.unproven(), [step for step in self.timeline["steps"] if step.get("block")]
        if not steps:
            return None, ()
        spoilt = {step["block"]: step["id"] for step in reversed(steps) if step["id"] in unproven}
        notes = [
            f"block {block} of {self.run_id} is left out: {fault}: {unproven[fault]}" for block, fault in spoilt.items()
        ]
        return {step["block"] for step in steps} - spoilt.keys(), tuple(notes)


def read_judged_run(home: Path) -> JudgedRun:
    """Read the run in ``home``. Raises EvidenceError if it was not judged or a document is damaged."""
    verdict, analysis = verdict_of(home), analysis_of(home)
    run, timeline = read_object(home / "run.json"), read_object(home / "timeline.json")
    try:
        _ = run["run_id"], [step["id"] for step in timeline["steps"]], analysis["recoveries"], timeline["cluster"]
        _ = [(workload["name"], dict(workload["arms"])) for workload in timeline["workloads"]]
        _ = [row["n"] for table in ("distributions", "gaps") for row in analysis[table]]
    except (KeyError, TypeError, ValueError) as error:
        again = f"judge the run again: aftershock verdict {home}"
        raise EvidenceError(f"{home}: its documents are not as they were written ({error!r}); {again}") from error
    return JudgedRun(home, run, timeline, analysis, verdict)
