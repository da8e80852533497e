"""GitHub annotations: failed checks on the plan's lines, and no output outside GitHub Actions."""

from pathlib import Path

import pytest

from aftershock.harness.run import progress
from aftershock.harness.safety.rundir import RunDir
from aftershock.results.evidence.files import write_whole
from aftershock.results.model.check import Check, Status, Verdict


def judged_run(out: Path, plan: Path) -> Path:
    home = RunDir.create(out, "p", 0, "aftershock run p")
    home.update(plan_file=str(plan), status="complete")
    missed = Check("slo/x", "slo", "arm=a", Status.FAIL, 10, 1, "ms", "too slow", at="p.yaml:21:5")
    write_whole(home.path / "verdict.json", Verdict(home.run_id, "p", 0, ("a",), (missed,)).text())
    write_whole(home.path / "analysis.json", "{}")
    return home.path


def test_the_plans_line_is_annotated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error on stderr, by the plan's path in the checkout; the summary is added to the step's."""
    run = judged_run(tmp_path / "runs", tmp_path / "plans" / "p.yaml")
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    told = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path), "GITHUB_STEP_SUMMARY": str(summary)}
    progress.annotate_github([run], told)
    out, err = capsys.readouterr()
    assert "" == out
    assert err.startswith("::error file=plans/p.yaml,line=21,col=5,title=FAIL slo/x (arm=a)::too slow")
    assert summary.read_text().startswith("before\n")
    assert "too slow" in summary.read_text()


def test_a_plan_outside_the_checkout_has_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GitHub could not show it: the annotation goes with the step."""
    run = judged_run(tmp_path / "runs", tmp_path / "p.yaml")
    progress.annotate_github([run], {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path / "elsewhere")})
    assert "::error title=" in capsys.readouterr().err


def test_elsewhere_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal is not GitHub."""
    progress.annotate_github([judged_run(tmp_path, tmp_path / "p.yaml")], {})
    assert ("", "") == capsys.readouterr()
