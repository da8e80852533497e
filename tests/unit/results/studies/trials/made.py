"""Judged runs of trials with given figures, for tests of the statements about these figures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aftershock.results.evidence.stored import JudgedRun
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.studies.part import Part
from aftershock.results.studies.statement import UNITS_MIN, Judged, Measured
from aftershock.results.studies.trials.claim import Parts, Registration


def decide(registration: Registration, claim_id: str, measured: Measured) -> Judged:
    """Judge a measurement by the rule of a registered claim, of six units."""
    claim = next(claim for claim in registration.claims if claim.id == claim_id)
    assert claim.rule
    return claim.rule.decide(measured, claim.unit, UNITS_MIN)


def measure(registration: Registration, claim_id: str, parts: Parts) -> Measured:
    return next(claim for claim in registration.claims if claim.id == claim_id).measure(parts)


def judge(registration: Registration, claim_id: str, parts: Parts) -> Judged:
    """Judge a registered claim by made parts, of which six units are enough."""
    return decide(registration, claim_id, measure(registration, claim_id, parts))


Values = Mapping[str, Sequence[float | None]]
"""Milliseconds of each block, by client."""


def part(
    name: str,
    values_ms: Values,
    client: str = "",
    *,
    metric: str = "produce.latency",
    window: str = "fault",
    checks: Sequence[Check] = (),
    status: str = "complete",
) -> Part:
    """Return a part whose clients have these worst latencies, block by block; its faults are ``move-1``,
    ``move-2`` ... Its only consumer is a ``client``, if there is one.
    """
    blocks = len(next(iter(values_ms.values())))
    cuts = [_cut(metric, window, client, some) for client, some in values_ms.items()]
    steps = [{"id": f"move-{number}", "entry": "move", "block": number} for number in range(1, blocks + 1)]
    reader = {"name": "r", "consume": {"topic": "t"}, "arms": {"own": {"client": client, "settings": {}}}}
    timeline: dict[str, Any] = {"cluster": {}, "workloads": [reader] if client else [], "steps": steps}
    analysis: dict[str, Any] = {"distributions": [], "gaps": [], "recoveries": [], "cuts": cuts}
    run = {"run_id": f"run-{name}", "status": status, "why": None}
    return Part(name, JudgedRun(Path(name), run, timeline, analysis, verdict(name, checks)))


def verdict(name: str, checks: Sequence[Check] = ()) -> Verdict:
    """Return the verdict of a run with this name."""
    return Verdict(f"run-{name}", "plan", 1, (), tuple(checks))


def written(made: Part, home: Path) -> Path:
    """Write the documents of a judged run to a folder of its own below ``home``."""
    folder = home / made.run.run_id
    folder.mkdir(parents=True)
    documents = {"run": made.run.run, "timeline": made.run.timeline, "analysis": made.run.analysis}
    for name, document in {**documents, "verdict": made.run.verdict.to_json()}.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


def doubted(check: str, kind: str) -> Check:
    """Return an INCONCLUSIVE check of the harness or of a witness."""
    return Check(check, kind, "run", Status.INCONCLUSIVE, 0, 1, "", "the host was starved")


def _cut(metric: str, window: str, client: str, values_ms: Sequence[float | None]) -> dict[str, Any]:
    slices = [
        {"subject": f"block={number}", "start_us": None, "n": 50, "censored": 0, "slowest_us": None}
        | {"at": {"1.0": None if ms is None else round(ms * 1e3)}}
        for number, ms in enumerate(values_ms, 1)
    ]
    return {"metric": metric, "window": window, "each": "block", "every_us": None, "client": client, "slices": slices}
