"""Tables of docs/MACHINES.md about what clients make of sick machines, from runs of the plans that ship.

The SLO checks of the newest run of each plan are stored as ``<plan>.json``. A plan without a run keeps what is stored.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aftershock.results.evidence.files import read_object, write_whole

PLANS = ("grey-failures", "lost-hosts")
_SECOND_MS = 1_000
_KEPT = ("id", "subject", "phase", "n", "observed", "unit", "status")


def keep_checks(out: Path, folder: Path) -> None:
    """Store the SLO checks of the newest run of each plan below ``out``; leave out plans without a run."""
    folder.mkdir(parents=True, exist_ok=True)
    newest: dict[str, Mapping[str, Any]] = {}
    for path in sorted(out.rglob("verdict.json"), key=lambda path: path.parent.name):
        verdict = read_object(path)
        if verdict.get("plan") in PLANS:
            newest[verdict["plan"]] = verdict
    for plan, latest in newest.items():
        checks = [{key: check[key] for key in _KEPT} for check in latest["checks"] if check["kind"] == "slo"]
        document = {"plan": plan, "run_id": latest["run_id"], "status": latest["status"], "checks": checks}
        write_whole(folder / f"{plan}.json", json.dumps(document, indent=1) + "\n")


def table(checks: Iterable[Mapping[str, Any]]) -> str:
    """Return a Markdown table with a row for each metric and window, and a column for each client and workload."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for check in checks:
        window = check["phase"]
        if window is None or "arm=" not in check["subject"]:
            continue
        column = check["subject"].replace("workload=", "").replace("arm=", "")
        columns[column] = None
        metric = check["id"].removeprefix("slo/").removesuffix(f"-{window}").removesuffix(f"-{window[6:]}")
        rows.setdefault((metric, window.removeprefix("fault/")), {})[column] = _figure(check)
    lines = [f"| metric, window | {' | '.join(columns)} |", "|" + " --- |" * (len(columns) + 1)]
    for (metric, window), figures in rows.items():
        cells = (figures.get(column, "-") for column in columns)
        lines.append(f"| {metric.replace('-', ' ').replace('.', ' ')}, {window} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _figure(check: Mapping[str, Any]) -> str:
    observed, unit = check["observed"], check["unit"]
    if observed is None:
        return "-"
    if unit not in ("ms", "s"):
        return f"{observed:.4g} {unit}"
    ms = observed * (1000 if unit == "s" else 1)
    return f"{ms:.0f} ms" if ms < _SECOND_MS else f"{ms / _SECOND_MS:.1f} s"
