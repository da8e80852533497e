"""Verdicts as Markdown: every check is a row, and no name of a plan becomes markup."""

import json
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.report.several import SUMMARY_BYTES_MAX, markdown, step_summary
from aftershock.tests.unit.results.evidence_factory import Made


def check(status: Status, name: str, why: str) -> Check:
    return Check(id=name, kind="slo", subject="arm=a", status=status, n=7, minimum=1, unit="ms", why=why)


def write(home: Path, *checks: Check) -> Path:
    (home / "verdict.json").write_text(Verdict("r", "p|<b>", 1, ("a",), checks).text())
    (home / "analysis.json").write_text(json.dumps({}))
    return home


def test_every_check_is_a_row(tmp_path: Path) -> None:
    """The text has a sentence, a table head, and a line per check with as many cells as the head."""
    text = markdown(write(tmp_path, check(Status.PASS, "slo/x", "fine"), check(Status.FAIL, "slo/y", "slow")))
    lines = text.splitlines()
    assert lines[0].startswith("**FAIL: ")
    assert {9} == {line.count("|") for line in lines[2:]}
    assert 4 == len(lines[2:])


def test_names_are_escaped(tmp_path: Path) -> None:
    """Pipes, tags, emphasis and line breaks are shown literally."""
    text = markdown(write(tmp_path, check(Status.PASS, "slo/x", "a|b <script> *c*\n| d")))
    assert r"a\|b \<script\> \*c\*?\| d" in text
    assert r"p\|\<b\>" in text


def test_a_run_that_was_not_judged_is_an_error(tmp_path: Path) -> None:
    """The message names the command that judges the run."""
    with pytest.raises(EvidenceError, match="aftershock verdict"):
        markdown(tmp_path)


def test_a_summary_lists_all_runs_and_details_those_that_did_not_pass(made: Made, tmp_path: Path) -> None:
    """Every run has a row, also unjudged ones; then the checks of the runs that did not pass follow."""
    homes = [made.write(tmp_path / name) for name in ("good", "bad", "waiting")]
    write(homes[0], check(Status.PASS, "slo/x", "fine"))
    write(homes[1], check(Status.PASS, "slo/y", "calm"), check(Status.INCONCLUSIVE, "slo/z", "too few"))
    lines = step_summary(homes).splitlines()
    table = lines[: lines.index("")]
    assert [line.split(" | ")[0] for line in table[2:]] == ["| PASS", "| INCONCLUSIVE", "| NOT JUDGED"]
    assert "aftershock verdict" in table[4]
    rest = "\n".join(lines[len(table) :])
    assert ("slo/y" in rest, "slo/z" in rest, "slo/x" in rest) == (False, True, False)
    assert "1 more checks passed; the report has them." in rest
    assert rest.count("###") == 1


def test_a_summary_stays_below_githubs_limit(made: Made, tmp_path: Path) -> None:
    """A summary that is too long ends after a complete row and reports the number of omitted rows."""
    home = write(made.write(tmp_path / "run"), *(check(Status.FAIL, f"slo/{index}", "é" * 900) for index in range(700)))
    text = step_summary([home, home])
    assert SUMMARY_BYTES_MAX * 0.99 < len(text.encode()) < SUMMARY_BYTES_MAX + 100 < 2**20
    *_, last, empty, note = text.splitlines()
    assert last.endswith(" |")
    assert empty == ""
    assert note.startswith("Cut here: ")
