"""Checks as additional testcases in pytest's own JUnit file."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.harness.pytest.reports import Outcome
from aftershock.harness.pytest.summary import ChecksOfTest, add_checks, checks_by_test
from aftershock.harness.pytest.verdicts import RunVerdict
from aftershock.harness.run.session import Entry
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


def names(path: Path) -> list[tuple[str | None, str | None]]:
    return [(case.get("classname"), case.get("name")) for case in suite_of(path).iter("testcase")]


def test_the_checks_follow_their_test(path: Path) -> None:
    """Directly after the test, under a separate class name; the test itself occurs once, unchanged."""
    add_checks(path, [ChecksOfTest({"run-1": verdict(Status.PASS, Status.FAIL)}, None)])
    assert [
        ("t.test_a", "test_plain"),
        ("t.test_a", "test_one[x<y]"),
        ("t.test_a.test_one[x<y]", "slo/c0 (arm=a)"),
        ("t.test_a.test_one[x<y]", "slo/c1 (arm=a)"),
        ("t.test_a", "test_open"),
    ] == names(path)[:5]


def test_the_counts_go_up_by_what_was_added(path: Path) -> None:
    """Tests, failures and errors, in addition to pytest's own counts."""
    add_checks(
        path, [ChecksOfTest({"run-1": verdict(Status.PASS, Status.FAIL, Status.INCONCLUSIVE, Status.ERROR)}, None)]
    )
    suite = suite_of(path)
    assert ("8", "2", "3", "0") == tuple(suite.get(what) for what in ("tests", "failures", "errors", "skipped"))


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
    assert ("ERROR", "4") == (error.get("type"), suite_of(path).get("tests"))


def test_a_real_setup_error_is_unchanged(path: Path) -> None:
    add_checks(path, [ChecksOfTest({"run-2": verdict(Status.INCONCLUSIVE)}, None)])
    error = suite_of(path).find("testcase[@name='test_open']/error")
    assert error is not None
    assert str(error.get("message")).startswith("failed on setup with")


def test_a_test_that_is_there_twice_gets_its_checks_once(path: Path) -> None:
    """pytest writes a second testcase for an error in the teardown of a failed test."""
    add_checks(path, [ChecksOfTest({"run-3": verdict(Status.PASS)}, None)])
    assert 1 == sum(name == "slo/c0 (arm=a)" for _, name in names(path))


def test_checks_of_several_runs_have_distinct_class_names(path: Path) -> None:
    """The checks have equal names, so the class name contains the run's id."""
    text = FILE.replace(RUN.format("run-1"), RUN.format("run-1")[:-13] + RUN.format("run-4")[12:])
    path.write_text(text)
    add_checks(path, [ChecksOfTest({"run-1": verdict(Status.PASS), "run-4": verdict(Status.PASS)}, None)])
    assert ["t.test_a.test_one[x<y].run-1", "t.test_a.test_one[x<y].run-4"] == [
        classname for classname, name in names(path) if name == "slo/c0 (arm=a)"
    ]


def test_an_xfailed_test_stays_green(path: Path) -> None:
    """CI counts failures by testcase: failed checks of a test marked xfail are not counted."""
    path.write_text(FILE.replace(RUN.format("run-1"), RUN.format("run-1") + '<skipped type="pytest.xfail" />'))
    add_checks(path, [ChecksOfTest({"run-1": verdict(Status.FAIL)}, Outcome("FAIL"))])
    assert ("4", "1") == (suite_of(path).get("tests"), suite_of(path).get("failures"))


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
