"""GitHub workflow commands: file, line and level are right, and no name in a plan can end a command."""

from dataclasses import replace

import pytest

from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.report.verdict_formats import annotations

BAD = Check("slo/gap", "slo", "arm=a", Status.FAIL, 7, 1, "s", "8.5 s", 8.5, 6.0, at="demo.yaml:21:5", next="look")


def said(*checks: Check, plan: str | None = "plans/demo.yaml") -> list[str]:
    return annotations(Verdict("run-1", "demo", 7, ("a",), checks), plan)


def test_a_failed_check_is_annotated_at_its_line() -> None:
    """The command has level, place and title, and the message has a line per fact."""
    expected = (
        "::error file=plans/demo.yaml,line=21,col=5,title=FAIL slo/gap (arm=a)::8.5 s%0Aobserved: 8.5 s%0A"
        "threshold: 6 s%0An: 7, at least 1%0Anext: look%0ASLO at: demo.yaml:21:5"
    )
    assert [expected] == said(BAD)


@pytest.mark.parametrize(
    ("at", "plan", "place"),
    [
        ("demo.yaml:21:5", None, "title="),
        (None, "p.yaml", "file=p.yaml,title="),
        (None, None, "title="),
        ("tests/test_x.py:12", "p.yaml", "file=tests/test_x.py,line=12,title="),
        ("tests/test_x.py:12", None, "file=tests/test_x.py,line=12,title="),
        ("a:b.yaml:3:1", "a:b.yaml", "file=a%3Ab.yaml,line=3,col=1,title="),
        ("nowhere", "p.yaml", "file=p.yaml,title="),
    ],
)
def test_the_place_is_in_the_plan_or_the_test(at: str | None, plan: str | None, place: str) -> None:
    """Without the plan's path there is no file; expectations are on the test's line, other checks on the plan's."""
    assert said(replace(BAD, at=at), plan=plan)[0].startswith(f"::error {place}")


def test_levels_follow_the_status() -> None:
    """PASS gives no command, INCONCLUSIVE a warning, FAIL and ERROR an error; worst first, as GitHub shows ten
    per level.
    """
    checks = [replace(BAD, status=status) for status in Status]
    kinds = [(line.split(" ")[0], line.split("title=")[1].split(" ")[0]) for line in said(*checks)]
    assert [("::error", "ERROR"), ("::error", "FAIL"), ("::warning", "INCONCLUSIVE")] == kinds


def test_no_name_ends_a_command() -> None:
    """Per cent, line ends, colons and commas are escaped where they have a meaning; control characters are removed."""
    hostile = "50%,a::b\r\n::set-output name=x::y\x1b[2J"
    (line,) = said(replace(BAD, subject=hostile, why=hostile), plan="50%,a.yaml")
    assert len(line.splitlines()) == 1
    assert "file=50%25%2Ca.yaml," in line
    assert "title=FAIL slo/gap (50%25%2Ca%3A%3Ab??%3A%3Aset-output name=x%3A%3Ay?[2J)::" in line
    assert "::50%25,a::b??::set-output name=x::y?[2J%0A" in line
    assert "\x1b" not in line
