"""What the page says of the run itself: which it was, its faults with their proof, what it was made with."""

from collections.abc import Mapping
from typing import Any

from aftershock.results import shown
from aftershock.results.evidence import Evidence
from aftershock.results.exposure import targets_of
from aftershock.results.report.bands import colours
from aftershock.results.verdict import Verdict


def about(evidence: Evidence, verdict: Verdict) -> list[str]:
    """The line below the sentence: which run, of when, how long, of which arms."""
    took_s = shown.run_s(evidence.run)
    took = None if took_s is None else shown.seconds(took_s)
    rehearsal = "a rehearsal: nothing was injected" if evidence.run.get("rehearse") else None
    attached = "on a cluster that was attached, not launched" if evidence.run.get("attached") else None
    told = [rehearsal, attached, verdict.run_id, evidence.run.get("started_at"), took]
    return [str(one) for one in (*told, f"arms: {', '.join(verdict.arms)}") if one]


def fault(evidence: Evidence, verdict: Verdict, step: Mapping[str, Any]) -> dict[str, Any]:
    """One step of the timeline: when, where, and its witness and exposure."""
    name, window = step["id"], evidence.window_of(step["id"])
    proof = {check.kind: check for check in verdict.checks if check.id in (f"witness/{name}", f"exposure/{name}")}
    return {
        "id": name,
        "kind": step["kind"],
        "colour": colours(evidence)[name],
        "window": f"{window.start_us / 1e6:.1f} - {window.end_us / 1e6:.1f} s" if window else "never began",
        "targets": _listed(targets_of(evidence, name)),
        "parameters": _listed(step.get("parameters") or {}),
        "witness": proof.get("witness"),
        "exposure": proof.get("exposure"),
    }


def environment(evidence: Evidence) -> list[tuple[str, list[str]]]:
    """Each fact with its lines: one for a plain value, else one an entry."""
    run = evidence.run
    facts = {"run": run["run_id"], "started": run.get("started_at"), "seed": run.get("seed"), "git": run.get("git")}
    facts |= {name: run.get(name) for name in ("attached", "versions", "images", "host", "profile", "warmup")}
    return [(name, _lines(value)) for name, value in facts.items() if value not in (None, {}, "")]


def _lines(value: Any) -> list[str]:
    entries = value.items() if isinstance(value, Mapping) else ()
    return [f"{key}: {_flat(entry)}" for key, entry in entries] or [_flat(value)]


def _listed(facts: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {_flat(value)}" for name, value in facts.items() if value not in (None, [], {}))


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_flat(one)}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
