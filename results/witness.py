"""Whether each fault took hold, as the executor measured it while it lasted. No witness, no verdict.

Rules: a fault needs at least one witness and none that failed; one that was never injected, or not healed, has none.
"""

from collections.abc import Mapping
from typing import Any

from aftershock.results.check import Check, Status
from aftershock.results.evidence import Evidence


def witness(evidence: Evidence, step: Mapping[str, Any]) -> Check:
    """``witness/<fault>``: PASS or INCONCLUSIVE, with what was asked and what was observed."""
    fault = step["id"]
    lines = [line for line in evidence.journal if line["fault"] == fault]
    seen = [line["witness"] for line in lines if line.get("witness")]
    failed = [line for line in lines if line["state"] == "failed"]
    refuted = [told for told in seen if not told.get("ok")]
    told = (refuted or seen or [{}])[-1]
    proven = bool(seen) and not refuted and not failed
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
        why=_why(lines, failed, told),
        next=None if proven else f"read the lines of {fault} in journal.jsonl, mend the cause, run the plan again",
    )


def _why(lines: list[Mapping[str, Any]], failed: list[Mapping[str, Any]], told: Mapping[str, Any]) -> str:
    if failed:
        return f"it failed: {failed[-1].get('why') or 'the journal does not say why'}"
    if not lines:
        return "it was never injected"
    if not told:
        return "it was injected, but nothing proved that it took hold"
    asked, observed = (_shown(told.get(key), told.get("unit")) for key in ("asked", "observed"))
    doubt = "" if told.get("ok") else "it did not take hold, or not to the end: "
    return f"{doubt}{told.get('what', 'witness')}: asked {asked}, observed {observed}"


def _shown(value: object, unit: object) -> str:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{shown} {unit}" if unit and _number(value) is not None else shown


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
