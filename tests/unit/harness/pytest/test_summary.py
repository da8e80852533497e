"""Answers and checks as properties of the tests in pytest's own JUnit file."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.harness.pytest.reports import Outcome
from aftershock.harness.pytest.summary import ChecksOfTest, add_checks, checks_by_test
from aftershock.harness.pytest.verdicts import RunVerdict
from aftershock.harness.run.session import Entry
from aftershock.results.model.answer import Answer
from aftershock.results.model.check import Check, Status, Verdict

RUN = '<properties><property name="aftershock.run" value="{}" /></properties>'
FILE = f"""<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="1"
 failures="1" skipped="0" tests="4" time="3.000"><testcase classname="t.test_a" name="test_plain" time="0.0" />
<testcase classname="t.test_a" name="test_one[x&lt;y]" time="1.0">{RUN.format("run-1")}</testcase>
<testcase classname="t.test_a" name="test_open" time="1.0">{RUN.format("run-2")}<error
 message="failed on setup with &quot;INCONCLUSIVE: said &quot;so&quot;&quot;">text</error></testcase>
<testcase classname="t.test_a" name="test_torn" time="1.0">{RUN.format("run-3")}<failure message="no">no</failure>
</testcase><testcase classname="t.test_a" name="test_torn" time="1.0">{RUN.format("run-3")}<error
 message="failed on teardown with &quot;oh&quot;">oh</error></testcase></testsuite></testsuites>"""


def verdict(*statuses: Status) -> Verdict:
    checks = [Check(f"slo/c{i}", "slo", "arm=a", status, 9, 1, "ms", "why") for i, status in enumerate(statuses)]
    return Verdict("run", "demo", 7, ("a",), tuple(checks))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "junit.xml"
    path.write_text(FILE)
    return path


def suite_of(path: Path) -> ET.Element:
    suite = ET.parse(path).getroot().find("testsuite")  # noqa: S314 - ours
    assert suite is not None
    return suite


def properties(path: Path, test: str = "test_one[x<y]") -> list[tuple[str | None, str | None]]:
    """Return the properties of a test, without its run's id."""
    (case, *_) = [case for case in suite_of(path).iter("testcase") if case.get("name") == test]
    return [(item.get("name"), item.get("value")) for item in case.iter("property")][1:]


def test_the_checks_are_properties_of_their_test(path: Path) -> None:
    """The file has each test once, and pytest's own counts."""
    answer = Answer("java", "kill-1", 1, True, 0, 0, 0, 0, {"produce": 2_000_000}, None, None)
    told = replace(verdict(Status.PASS, Status.FAIL), answers=(answer,))
    add_checks(path, [ChecksOfTest({"run-1": told}, None)])
    assert properties(path) == [
        ("java kill-1", "lost 0 · twice 0 · stopped 2.0 s"),
        ("slo/c0 (arm=a)", "PASS: why"),
        ("slo/c1 (arm=a)", "FAIL: why"),
    ]
    assert properties(path, "test_open") == []
    suite = suite_of(path)
    assert len(list(suite.iter("testcase"))) == 5
    assert ("4", "1", "1", "0") == tuple(suite.get(what) for what in ("tests", "failures", "errors", "skipped"))


def test_a_verdict_error_is_not_called_a_setup_error(path: Path) -> None:
    """pytest describes every error outside teardown as one of setup; the text is corrected, quotes included."""
    add_checks(path, [ChecksOfTest({"run-2": verdict(Status.INCONCLUSIVE)}, Outcome("INCONCLUSIVE"))])
    error = suite_of(path).find("testcase[@name='test_open']/error")
    assert error is not None
    assert ('INCONCLUSIVE: said "so"', "INCONCLUSIVE", "text") == (error.get("message"), error.get("type"), error.text)


def test_an_error_without_verdict_is_not_called_a_setup_error(path: Path) -> None:
    """A run that could not be judged has no checks; the test's own error text is corrected nevertheless."""
    add_checks(path, [ChecksOfTest({"run-2": None}, Outcome("ERROR"))])
    error = suite_of(path).find("testcase[@name='test_open']/error")
    assert error is not None
    assert "ERROR" == error.get("type")
    assert [] == properties(path, "test_open")


def test_a_real_setup_error_is_unchanged(path: Path) -> None:
    add_checks(path, [ChecksOfTest({"run-2": verdict(Status.INCONCLUSIVE)}, None)])
    error = suite_of(path).find("testcase[@name='test_open']/error")
    assert error is not None
    assert str(error.get("message")).startswith("failed on setup with")


def test_a_test_that_is_there_twice_gets_its_checks_once(path: Path) -> None:
    """pytest writes a second testcase for an error in the teardown of a failed test."""
    add_checks(path, [ChecksOfTest({"run-3": verdict(Status.PASS)}, None)])
    assert 1 == sum(item.get("name") == "slo/c0 (arm=a)" for item in suite_of(path).iter("property"))


def test_checks_of_several_runs_name_their_run(path: Path) -> None:
    text = FILE.replace(RUN.format("run-1"), RUN.format("run-1")[:-13] + RUN.format("run-4")[12:])
    path.write_text(text)
    add_checks(path, [ChecksOfTest({"run-1": verdict(Status.PASS), "run-4": verdict(Status.PASS)}, None)])
    names = [name for name, _ in properties(path)][1:]
    assert ["run-1: slo/c0 (arm=a)", "run-4: slo/c0 (arm=a)"] == names


def test_a_missing_or_broken_junit_file_is_a_clear_error(tmp_path: Path) -> None:
    """Another plugin may have removed it or written half of it."""
    with pytest.raises(EvidenceError, match="could not be added"):
        add_checks(tmp_path / "gone.xml", [])
    (tmp_path / "half.xml").write_text("<testsuites><test")
    with pytest.raises(EvidenceError, match=r"half\.xml"):
        add_checks(tmp_path / "half.xml", [])


def test_a_repeated_run_provides_the_verdict(tmp_path: Path) -> None:
    """Under the id of the first run, which the test's report names."""
    again = RunVerdict(tmp_path / "run-2", verdict(Status.PASS))
    judged = {
        "run-1": RunVerdict(tmp_path / "run-1", verdict(Status.INCONCLUSIVE), repetition=again),
        "run-2": again,
        "run-3": RunVerdict(tmp_path / "run-3", why="the process that drove it died"),
    }
    entries = [Entry("run-1", "test_a"), Entry("run-3", "test_b"), Entry("run-2", "test_a")]
    known = checks_by_test(entries, judged, {"test_b": Outcome("ERROR")})
    assert [
        ChecksOfTest({"run-1": verdict(Status.PASS)}, None),
        ChecksOfTest({"run-3": None}, Outcome("ERROR")),
    ] == known
