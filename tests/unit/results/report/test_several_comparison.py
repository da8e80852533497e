"""Runs side by side: a row per check, differing checks first; report-only checks never affect a result."""

import html
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.report.several import markdown, write_comparison
from aftershock.results.report.verdict_formats import annotations, document, summary
from aftershock.tests.unit.results.evidence_factory import Made

HOSTILE = "<script>\"'&"
GAP = Check("slo/produce.gap", "slo", "arm=a", Status.PASS, 7, 1, "s", "3 s", 3.0, 6.0)
WATCHED = replace(GAP, id="slo/consume.gap", status=Status.FAIL, why="8 s", gate=False)


def judged(made: Made, home: Path, *checks: Check) -> Path:
    made.copy().write(home)
    (home / "verdict.json").write_text(Verdict(home.name, "demo", 7, ("a",), checks).text())
    (home / "report.html").write_text("")
    return home


def test_runs_stand_side_by_side(made: Made, tmp_path: Path) -> None:
    """A check has a row even if one run lacks it; differing checks come first, then missing ones; links are
    relative.
    """
    lost, gone = replace(GAP, id="slo/lost"), replace(GAP, id="slo/success")
    homes = [judged(made, tmp_path / "one", gone, GAP, lost)]
    homes.append(judged(made, tmp_path / "two", replace(lost, status=Status.FAIL, observed=8.0), GAP))
    page = write_comparison([*homes, tmp_path / "gone"], tmp_path, "two runs").read_text()
    rows = [html.unescape(row) for row in page.split("<tr")[2:]]
    names = [row.partition("<code>")[2].partition("<")[0] for row in rows]
    assert ["slo/lost", "slo/success", "slo/produce.gap"] == names
    assert "not in this run" in rows[1]
    assert all(figure in rows[0] for figure in ("3 s", "8 s", "of 6 s, n 7"))
    assert 'class="differs"' in rows[0]
    assert 'href="one/report.html"' in page


def test_no_name_becomes_markup(made: Made, tmp_path: Path) -> None:
    """Names of runs, checks and subjects are escaped, and the page has no script."""
    home = judged(made, tmp_path / HOSTILE, replace(GAP, id=f"slo/{HOSTILE}", subject=HOSTILE))
    assert "<script" not in write_comparison([home], tmp_path, HOSTILE).read_text()


def test_report_only_checks_fail_nothing(made: Made, tmp_path: Path) -> None:
    """The run passes; summary, Markdown, annotations and JUnit file show the check, none as a failure."""
    verdict = Verdict("r", "demo", 7, ("a",), (GAP, WATCHED))
    assert verdict.status is Status.PASS
    text = " ".join(summary(verdict).split())
    assert text.startswith("PASS: demo, seed 7: every check passed (1 of 1 checks passed; 1 more is only reported)")
    assert text.endswith("Finding: a consume.gap: 8 s")
    assert "a (report only)" in text
    (line,) = annotations(verdict, "demo.yaml")
    assert line.startswith("::notice file=demo.yaml,title=FAIL (report only) slo/consume.gap")
    suite = ET.fromstring(document(verdict))[0]  # noqa: S314 - we wrote it ourselves
    assert ("0", "0") == (suite.get("failures"), suite.get("errors"))
    told = suite[1].findtext("system-out") or ""
    assert "FAIL (report only)" in told
    assert "8 s" in told
    home = judged(made, tmp_path / "run", GAP, WATCHED)
    (home / "analysis.json").write_text("{}")
    assert "| FAIL (report only) | slo/consume.gap |" in markdown(home)
