"""Whether each fault took hold, as the executor measured it while it lasted. No witness, no verdict.

Rules: a fault needs at least one witness that observed something and none that failed; one that was never injected, or
not healed, has none. In a rehearsal nothing is injected, and every witness must be silent: one that speaks would vouch
for anything.
"""

from collections.abc import Mapping
from typing import Any

from aftershock.results.check import Check, Status
from aftershock.results.evidence import Evidence


def witness(evidence: Evidence, step: Mapping[str, Any]) -> Check:
    """``witness/<fault>``: PASS or INCONCLUSIVE, with what was asked and what was observed."""
    rehearsed = bool(evidence.run.get("rehearse"))
    fault = step["id"]
    lines = [line for line in evidence.journal if line["fault"] == fault]
    seen = [line["witness"] for line in lines if line.get("witness")]
    failed = [line for line in lines if line["state"] == "failed"]
    refuted = [told for told in seen if (_speaks(told) if rehearsed else not told.get("ok"))]
    told = (refuted or seen or [{}])[-1]
    proven = bool(seen if rehearsed else any(map(_speaks, seen))) and not refuted and not failed
    return Check(
        id=f"witness/{fault}",
        kind="witness",
        subject=f"fault={fault}",
        phase=f"fault/{fault}",
        status=Status.PASS if proven else Status.INCONCLUSIVE,
        observed=_number(told.get("observed")),
        threshold=_number(told.get("asked")),
        unit=str(told.get("unit") or ""),
        n=len(seen),
        minimum=1,
        why=_why(lines, failed, told, proven=proven, rehearsed=rehearsed),
        next=None if proven else f"read the lines of {fault} in journal.jsonl, mend the cause, run the plan again",
    )


def _speaks(told: Mapping[str, Any]) -> bool:
    """Whether it says that the fault is there, of its own observation."""
    return bool(told.get("ok")) and bool(told.get("n"))


def _why(
    lines: list[Mapping[str, Any]],
    failed: list[Mapping[str, Any]],
    told: Mapping[str, Any],
    *,
    proven: bool,
    rehearsed: bool,
) -> str:
    if failed:
        return f"it failed: {failed[-1].get('why') or 'the journal does not say why'}"
    if not lines:
        return "it was never injected"
    if not told:
        return "it was injected, but nothing proved that it took hold"
    asked, observed = (_shown(told.get(key), told.get("unit")) for key in ("asked", "observed"))
    said = f"{told.get('what', 'witness')}: asked {asked}, observed {observed}"
    if rehearsed:
        return f"silent, as it must be in a rehearsal: {said}" if proven else f"nothing was injected, yet: {said}"
    return said if proven else f"it did not take hold, or not to the end: {said}"


def _shown(value: object, unit: object) -> str:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{shown} {unit}" if unit and _number(value) is not None else shown


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
