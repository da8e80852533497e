"""The verdict as Markdown: every check a row, and no name of a plan that becomes markup."""

import json
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.check import Check, Status
from aftershock.results.report import markdown
from aftershock.results.verdict import Verdict


def check(status: Status, name: str, why: str) -> Check:
    return Check(id=name, kind="slo", subject="arm=a", status=status, n=7, minimum=1, unit="ms", why=why)


def write(home: Path, *checks: Check) -> Path:
    (home / "verdict.json").write_text(Verdict("r", "p|<b>", 1, ("a",), checks).text())
    (home / "analysis.json").write_text(json.dumps({}))
    return home


def test_every_check_is_a_row(tmp_path: Path) -> None:
    """The sentence, a head of two lines, and a line a check with as many cells as the head."""
    text = markdown(write(tmp_path, check(Status.PASS, "slo/x", "fine"), check(Status.FAIL, "slo/y", "slow")))
    lines = text.splitlines()
    assert lines[0].startswith("**FAIL: ")
    assert {9} == {line.count("|") for line in lines[2:]}
    assert 4 == len(lines[2:])


def test_names_stay_names(tmp_path: Path) -> None:
    """A cell's end, a tag, emphasis and a line break in a reason are shown as they are."""
    text = markdown(write(tmp_path, check(Status.PASS, "slo/x", "a|b <script> *c*\n| d")))
    assert r"a\|b \<script\> \*c\*?\| d" in text
    assert r"p\|\<b\>" in text


def test_a_run_that_was_not_judged_is_an_error(tmp_path: Path) -> None:
    """There is nothing to report yet, and the sentence says what to do."""
    with pytest.raises(EvidenceError, match="aftershock verdict"):
        markdown(tmp_path)
