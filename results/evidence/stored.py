"""A judged run as its documents say: enough to compare it with others, without Spark and without its rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.checks.check import Status, Verdict
from aftershock.results.evidence.files import read_object
from aftershock.results.evidence.judged import analysis_of, verdict_of

CONTROLS = ("baseline", "control")
_SIDES = ("produce", "consume", "commit")


@dataclass(frozen=True)
class Stored:
    """The documents of a run directory."""

    home: Path
    run: Mapping[str, Any]
    timeline: Mapping[str, Any]
    analysis: Mapping[str, Any]
    verdict: Verdict

    @property
    def run_id(self) -> str:
        """The run's own name."""
        return str(self.run["run_id"])

    def arms(self, workload: Mapping[str, Any]) -> list[str]:
        """The arms of a workload: the control first (``baseline``, ``control``), then by name."""
        return sorted(workload["arms"], key=lambda arm: (arm not in CONTROLS, arm))

    def sides(self, workload: Mapping[str, Any]) -> list[str]:
        """What its arms do."""
        return [side for side in _SIDES if workload.get(side)]

    def doubted(self) -> str | None:
        """Why nothing of it is evidence: it did not finish, or the harness is not to be trusted."""
        if self.run.get("status") != "complete":
            return f"{self.run_id} did not finish: {self.run.get('why') or self.run.get('status')}"
        untrusted = [c for c in self.verdict.checks if c.kind == "harness" and c.status is not Status.PASS]
        return f"{self.run_id}: {untrusted[0].id}: {untrusted[0].why}" if untrusted else None

    def unproven(self) -> dict[str, str]:
        """The faults that were not witnessed, or that nobody met, and why."""
        doubted = [c for c in self.verdict.checks if c.kind in ("witness", "exposure") and c.status is not Status.PASS]
        return {check.id.split("/", 1)[1]: check.why for check in reversed(doubted)}

    def trials(self) -> tuple[set[int] | None, tuple[str, ...]]:
        """The blocks whose faults all took hold (None: whatever there is, as there are no blocks), and what did not."""
        unproven, steps = self.unproven(), [step for step in self.timeline["steps"] if step.get("block")]
        if not steps:
            return None, ()
        spoilt = {step["block"]: step["id"] for step in reversed(steps) if step["id"] in unproven}
        said = [f"block {at} of {self.run_id} is left out: {fault}: {unproven[fault]}" for at, fault in spoilt.items()]
        return {step["block"] for step in steps} - spoilt.keys(), tuple(said)


def stored(home: Path) -> Stored:
    """The run in ``home``. Raises EvidenceError where it was not judged, or a document is damaged."""
    verdict, analysis = verdict_of(home), analysis_of(home)
    run, timeline = read_object(home / "run.json"), read_object(home / "timeline.json")
    try:
        _ = run["run_id"], [step["id"] for step in timeline["steps"]], analysis["recoveries"], timeline["cluster"]
        _ = [(workload["name"], dict(workload["arms"])) for workload in timeline["workloads"]]
        _ = [row["n"] for table in ("distributions", "gaps") for row in analysis[table]]
    except (KeyError, TypeError, ValueError) as broken:
        again = f"judge the run again: aftershock verdict {home}"
        raise EvidenceError(f"{home}: its documents are not as they were written ({broken!r}); {again}") from broken
    return Stored(home, run, timeline, analysis, verdict)
