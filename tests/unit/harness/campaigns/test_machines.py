"""Tables about sick machines: from the newest run of each plan, with a column for each client."""

import json
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import AftershockError
from aftershock.harness.campaigns.publish import MACHINE_PLANS, sick_machines


def check(metric: str, window: str | None, arm: str, observed: float | None, unit: str = "ms") -> dict[str, Any]:
    name = f"slo/{metric}" + (f"-{window}" if window else "")
    common = {"kind": "slo", "id": name, "subject": f"workload=cached arm={arm}", "phase": window, "why": "so"}
    counted = {"n": 1_000, "minimum": 1, "samples": [], "arm": arm}
    return common | counted | {"observed": observed, "unit": unit, "status": "PASS"}


def write_run(out: Path, run_id: str, plan: str, *checks: dict[str, Any]) -> None:
    folder = out / run_id
    folder.mkdir(parents=True)
    witness = check("x", None, "java", None) | {"kind": "witness", "id": "witness/x"}
    verdict = {"plan": plan, "run_id": run_id, "status": "PASS", "checks": [witness, *checks]}
    (folder / "verdict.json").write_text(json.dumps(verdict), encoding="utf-8")


def page_with_marks(path: Path) -> Path:
    begin, end = "<!-- {}: written by `make machines` from stored evidence -->", "<!-- {} end -->"
    path.write_text(
        "\n\n".join(f"{begin.format(plan)}\n{end.format(plan)}" for plan in MACHINE_PLANS), encoding="utf-8"
    )
    return path


def test_the_newest_run_of_each_plan_fills_its_table(tmp_path: Path) -> None:
    out, page = tmp_path / "runs", page_with_marks(tmp_path / "MACHINES.md")
    write_run(out / "a", "20260102-grey", "grey-failures", check("produce.latency-p99", "fault/loss-5", "java", 210.44))
    write_run(out / "b", "20260101-grey", "grey-failures", check("produce.latency-p99", "fault/loss-5", "java", 1.0))
    recovery = check("recovery", "fault/gone", "java", 3.1, "s") | {"id": "slo/recovery-gone"}
    missing = check("produce.gap", "fault/gone", "reference", None, "s")
    whole = check("produce.success", None, "java", 100.0, "%")
    write_run(out, "20260103-hosts", "lost-hosts", recovery, missing, whole)
    sick_machines(str(out), str(tmp_path / "stored"), str(page))
    text = page.read_text(encoding="utf-8")
    assert "| produce latency p99, loss-5 | 210 ms |" in text
    assert "| recovery, gone | 3.1 s | - |" in text
    assert "| produce gap, gone | - | - |" in text
    assert "success" not in text
    sick_machines(str(tmp_path / "none"), str(tmp_path / "stored"), str(page))
    assert text == page.read_text(encoding="utf-8")


def test_a_plan_that_never_ran_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AftershockError, match=r"grey-failures\.json"):
        sick_machines(str(tmp_path), str(tmp_path / "stored"), str(page_with_marks(tmp_path / "MACHINES.md")))
