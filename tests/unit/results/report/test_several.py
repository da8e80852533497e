"""The index of several runs: it lists every run in any state, and its links are relative."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.report.several import write_index
from aftershock.tests.unit.results.evidence_factory import Made

HOSTILE = "javascript:alert(1)?<script>\"'&#%"


def check(status: Status, why: str = "because") -> Check:
    return Check("slo/produce.gap", "slo", "arm=a", status, 7, 1, "s", why)


def judged(made: Made, home: Path, *checks: Check) -> Path:
    made.write(home)
    (home / "verdict.json").write_text(Verdict(home.name, "demo", 7, ("baseline", "patient"), checks).text())
    (home / "report.html").write_text("<!doctype html>")
    return home


def test_every_run_is_listed_with_its_unpassed_checks(made: Made, tmp_path: Path) -> None:
    """A row has badge, sentence, duration, arms and checks that did not pass; the worst status heads the page."""
    good = judged(made, tmp_path / "good", check(Status.PASS, "all well"))
    bad = judged(made, tmp_path / "deep" / "bad", check(Status.FAIL, "8.5 s"), check(Status.PASS, "all well"))
    path = write_index([good, bad], tmp_path, "nightly")
    page = path.read_text()
    assert tmp_path / "index.html" == path
    assert '<header class="fail">\n<h1>nightly: 1 of 2 runs failed</h1>' in page
    assert ["good/report.html", "deep/bad/report.html"] == re.findall(r'href="([^"#]+)"', page)
    assert "PASS: demo, seed 7: every check passed (1 of 1 checks passed)" in page
    assert page.count("50 s") == 2
    assert page.count("baseline, patient") == 2
    assert "8.5 s" in page
    assert "all well" not in page


def test_a_rehearsal_is_marked(made: Made, tmp_path: Path) -> None:
    """A rehearsal's PASS has another meaning, because no fault was injected."""
    calm = made.copy()
    calm.run["rehearse"] = True
    run = judged(calm, tmp_path / "calm", check(Status.PASS))
    assert "(rehearsal)" in write_index([run], tmp_path, "nightly").read_text()


def test_runs_that_were_not_judged_say_why(made: Made, tmp_path: Path) -> None:
    """Interrupted, unjudged, damaged and missing runs each have a row with the reason and without a link."""
    cut = made.copy()
    cut.run |= {"status": "interrupted", "why": "SIGINT"}
    homes = [cut.write(tmp_path / "cut"), made.write(tmp_path / "waiting"), made.write(tmp_path / "damaged")]
    (homes[2] / "verdict.json").write_text('{"checks": [{}]}')
    page = html.unescape(write_index([*homes, tmp_path / "gone"], tmp_path, "runs").read_text())
    assert page.count("NOT JUDGED") == 4
    assert "the run is interrupted: SIGINT" in page
    assert f"aftershock verdict {homes[1]}" in page
    assert "field 'status' is missing" in page
    assert f"{tmp_path / 'gone' / 'run.json'}: missing" in page
    assert 'href="#main"' in page
    assert page.count("href") == 1
    assert "4 of 4 runs in error" in page


def test_no_name_becomes_markup_or_a_scheme(made: Made, tmp_path: Path) -> None:
    """Folder and check names are escaped, and a link leads to exactly that folder."""
    home = judged(made, tmp_path / HOSTILE, check(Status.FAIL, HOSTILE))
    page = write_index([home], tmp_path, HOSTILE).read_text()
    assert "<script" not in page
    assert re.findall(r'href="([^"#]+)"', page) == [
        "javascript%3Aalert%281%29%3F%3Cscript%3E%22%27%26%23%25/report.html"
    ]


def test_the_command_writes_reports_and_an_index(made: Made, tmp_path: Path) -> None:
    """`report` of three runs, one of them unjudged, writes two reports and the index, and exits with 3."""
    drawn = {"distributions": [], "gaps": [], "recoveries": [], "bins": [], "bin_us": 1}
    for name in ("good", "bad"):
        home = judged(made, tmp_path / name, check(Status.PASS if name == "good" else Status.FAIL))
        (home / "analysis.json").write_text(json.dumps(drawn))
    made.write(tmp_path / "waiting")
    command = [sys.executable, "-m", "aftershock.harness.cli", "report", "good", "waiting", "bad", "--out", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    written = [str(tmp_path / name) for name in ("comparison.html", "index.html")]
    assert done.stdout.splitlines() == ["good/report.html", "bad/report.html", *written]
    assert done.stderr == "waiting/verdict.json: missing; judge the run first: aftershock verdict waiting\n"
    assert 3 == done.returncode
    page = (tmp_path / "index.html").read_text()
    assert ["comparison.html", "good/report.html", "bad/report.html"] == re.findall(r'href="([^"#]+)"', page)
    assert page.count("NOT JUDGED") == 1
