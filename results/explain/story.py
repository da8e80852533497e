"""The story of a run: how it began, a chapter for each fault in order of time, what was owed, the slowest records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aftershock.results.check import Status
from aftershock.results.evidence import Evidence, read
from aftershock.results.explain.chapter import Chapter, chapter, labels
from aftershock.results.explain.forces import Force, forces
from aftershock.results.explain.moment import Moment
from aftershock.results.explain.slow import Tale, slowest
from aftershock.results.judged import analysis_of, older, verdict_of
from aftershock.results.obligations.lanes import lanes
from aftershock.results.shown import sentence
from aftershock.results.verdict import Verdict


@dataclass(frozen=True)
class Story:
    """``promises``: the obligations, held or not; ``slowest`` is None, and ``missing`` says why, for an older run."""

    run_id: str
    sentence: str
    opening: tuple[Moment, ...]
    chapters: tuple[Chapter, ...]
    promises: tuple[str, ...]
    slowest: tuple[Tale, ...] | None
    labels: Mapping[str, str]
    missing: str | None

    def to_json(self) -> dict[str, Any]:
        """The story as plain data."""
        return asdict(self)


def story(home: Path) -> Story:
    """The story of the judged run in ``home``. Raises EvidenceError where it was not judged."""
    return told(read(home, {}), verdict_of(home), analysis_of(home))


def told(evidence: Evidence, verdict: Verdict, analysis: Mapping[str, Any]) -> Story:
    """The story, of what is already at hand."""
    known = forces(evidence)
    slow = slowest(evidence, analysis, known)
    return Story(
        run_id=verdict.run_id,
        sentence=sentence(verdict),
        opening=tuple(_opening(evidence, analysis)),
        chapters=tuple(_chapters(evidence, analysis, known)),
        promises=tuple(_promises(verdict)),
        slowest=slow,
        labels=labels(evidence),
        missing=None if slow is not None else older(evidence.home, "the slowest records"),
    )


def _chapters(evidence: Evidence, analysis: Mapping[str, Any], known: Sequence[Force]) -> Iterator[Chapter]:
    owed = lanes(evidence)
    load_end_us = (evidence.run.get("marks") or {}).get("load_end_us") or 1 << 62
    begun = sorted((force for force in known if force.window_us), key=lambda force: force.window_us or (0, 0))
    starts_us = [force.window_us[0] for force in begun if force.window_us]
    for force in [*begun, *(force for force in known if not force.window_us)]:
        start_us = force.window_us[0] if force.window_us else 0
        until_us = min((at_us for at_us in starts_us if at_us > start_us), default=load_end_us)
        yield chapter(evidence, analysis, force, until_us, owed)


def _opening(evidence: Evidence, analysis: Mapping[str, Any]) -> Iterator[Moment]:
    marks = evidence.run.get("marks") or {}
    if marks.get("load_start_us") is not None:
        yield Moment(marks["load_start_us"], "the load begins")
    if marks.get("steady_start_us") is not None:
        why = (evidence.run.get("warmup") or {}).get("why")
        yield Moment(marks["steady_start_us"], f"warm-up is over{f': {why}' if why else ''}")
    if marks.get("faults_start_us") is not None:
        calm = "; ".join(_steady(evidence, analysis))
        yield Moment(marks["faults_start_us"], f"steady is over{f': {calm}' if calm else ''}")


def _steady(evidence: Evidence, analysis: Mapping[str, Any]) -> Iterator[str]:
    named = labels(evidence)
    for row in analysis["distributions"]:
        if (row["metric"], row["window"]) == ("produce.latency", "steady") and row["at"].get("0.95") is not None:
            yield f"{named.get(row['client'], row['client'])} p95 {row['at']['0.95'] / 1e3:.4g} ms"


def _promises(verdict: Verdict) -> Iterator[str]:
    words = {Status.PASS: "held", Status.FAIL: "BROKEN"}
    for check in verdict.checks:
        if check.kind == "obligation":
            yield f"{check.id} {check.subject}: {words.get(check.status, 'not decided')}: {check.why}"
