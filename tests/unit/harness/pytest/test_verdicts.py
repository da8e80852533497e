"""One pytest session with every verdict, judged by the real judge, with xdist and without.

Prepared evidence replaces the runs (see `foreign_suite`).
"""

from pathlib import Path

import pytest

from aftershock.tests.unit.harness.pytest.foreign_suite import GOOD, SPOILT, TRUNCATED, Told, project, run_suite

pytestmark = pytest.mark.spark

SUITE = """
import pytest

def test_plain(): pass

def test_losing(chaos):
    print("driven")
    chaos.run("plan.yaml", changes=["name=losing"])

def test_passing(chaos): chaos.run("plan.yaml").expect("duplicate == 0")

def test_unwitnessed(chaos): chaos.run("plan.yaml", changes=["name=unwitnessed"])

def test_broken(chaos): chaos.run("plan.yaml", changes=["name=broken"])

def test_own(chaos):
    chaos.run("plan.yaml")
    assert 1 == 2

def test_starved(chaos): chaos.run("plan.yaml", changes=["name=starved"])
"""
#: Judging takes five seconds a run, so the repeated run is judged in one session only.
ALONE, XDIST = ("-p", "no:xdist", "--deselect", "test_suite.py::test_starved"), ("-n", "2")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(ALONE, id="alone", marks=pytest.mark.nightly),
        pytest.param(XDIST, id="xdist", marks=pytest.mark.nightly),
    ],
)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("suite")
    project(folder, SUITE, (*GOOD, *SPOILT, TRUNCATED))
    on_github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return run_suite(folder, "-v", *request.param, **on_github)


def test_a_lost_record_fails_its_test_alone(tmp_path: Path) -> None:
    """Two runs: the test whose run lost a record fails, with the check; the other test passes."""
    project(tmp_path, SUITE, ("losing", GOOD[0]))
    told = run_suite(tmp_path, "-v", "-p", "no:xdist", "-k", "losing or passing")
    assert 1 == told.code
    assert "1 failed, 1 passed" in told.lines[-1]
    assert "FAIL integrity/lost (arm=baseline consume)" in "\n".join(told.section("FAILURES"))


def runs_of(told: Told, test: str) -> list[dict[str, str | None]]:
    return [run for run in told.session["runs"] if run["test"] == f"test_suite.py::{test}"]


def checks_of(told: Told, test: str) -> dict[str, str]:
    """Return status and reason of the checks of a test, from its properties."""
    items = {str(item.get("name")): str(item.get("value")) for item in told.cases[test].iter("property")}
    return {name: value for name, value in items.items() if "/" in name}


def test_every_test_counts_once(told: Told) -> None:
    """Two failures, two errors, the rest passed: last line, exit status and the cache of failures agree."""
    passed = 3 if "test_starved" in told.cases else 2
    assert 1 == told.code
    assert f"2 failed, {passed} passed" in told.lines[-1]
    assert ", 2 errors in " in told.lines[-1]
    assert {"test_losing", "test_own", "test_unwitnessed", "test_broken"} == told.last_failed


def test_verbose_mode_shows_the_status_of_each_verdict(told: Told) -> None:
    for test, word in {
        "test_plain": "PASSED",
        "test_passing": "PASSED",
        "test_losing": "FAILED",
        "test_own": "FAILED",
        "test_unwitnessed": "INCONCLUSIVE",
        "test_broken": "ERROR",
    }.items():
        (line,) = [line for line in told.lines if f"::{test} " in f"{line} " and "%]" in line]
        assert word in line


def test_deferred_results_come_when_all_runs_are_judged(told: Told) -> None:
    """Results without verdict are reported at once, all others after judging, in the order in which the tests ended."""
    results = [line for line in told.lines if "%]" in line or line.startswith("aftershock: judging")]
    judging = next(i for i, line in enumerate(results) if line.startswith("aftershock: judging"))
    assert {"test_plain", "test_own"} == {line.split("::")[1].split()[0] for line in results[:judging]}


def test_a_failure_shows_the_verdict(told: Told) -> None:
    """The message, the failed check and its records, the report's path, and the test's output."""
    text = "\n".join(told.section("FAILURES"))
    assert "FAIL: demo, seed 0: a requirement was violated" in text
    assert "FAIL integrity/lost (arm=baseline consume)" in text
    (run,) = runs_of(told, "test_losing")
    assert f"{run['run']}/report.html" in text
    assert "driven" in text


def test_an_undecided_test_is_an_error_of_its_verdict(told: Told) -> None:
    """Not of its setup, in the terminal and in JUnit; the error type is the verdict."""
    errors = "\n".join(told.section("ERRORS"))
    assert "ERROR at verdict of test_unwitnessed" in errors
    assert "INCONCLUSIVE witness/kill-1" in errors
    error = told.cases["test_unwitnessed"].find("error")
    assert error is not None
    assert "INCONCLUSIVE" == error.get("type")
    assert str(error.get("message")).startswith("INCONCLUSIVE: demo")


def test_evidence_that_can_not_be_judged_is_an_error(told: Told) -> None:
    """The error names the file; the other runs are judged."""
    error = told.cases["test_broken"].find("error")
    assert error is not None
    assert ("ERROR", True) == (error.get("type"), "produce-0.parquet: truncated" in str(error.get("message")))
    assert {} == checks_of(told, "test_broken")


def test_junit_has_each_test_once_with_its_checks_as_properties(told: Told) -> None:
    """Correct statuses, counters that add up."""
    assert ["failure"] == [part.tag for part in told.cases["test_losing"] if part.tag != "properties"]
    assert [] == [part.tag for part in told.cases["test_passing"] if part.tag != "properties"]
    failed = [name for name, value in checks_of(told, "test_losing").items() if value.startswith("FAIL: ")]
    assert ["slo/lost (all arms)", "integrity/lost (arm=baseline consume)"] == failed
    cases = list(told.junit.iter("testcase"))
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases)
    for what, tag in {"failures": "failure", "errors": "error", "skipped": "skipped"}.items():
        assert str(sum(case.find(tag) is not None for case in cases)) == told.junit.get(what)
    assert str(len(cases)) == told.junit.get("tests")


def test_an_expectation_is_judged_with_the_plan(told: Told) -> None:
    """Its check names the line of the test."""
    assert {"slo/lost (all arms)", "slo/duplicate (all arms)"} <= checks_of(told, "test_passing").keys()
    (run,) = runs_of(told, "test_passing")
    verdict = (told.folder / "runs" / str(run["run"]) / "verdict.json").read_text()
    assert '"at": "test_suite.py:10"' in verdict


def test_a_test_that_fails_by_itself_is_judged_for_the_record(told: Told) -> None:
    """Its own assertion is the failure; the run's verdict is shown below."""
    failure = told.cases["test_own"].find("failure")
    assert failure is not None
    assert "assert 1 == 2" in str(failure.get("message"))
    assert ["PASS"] == [run["status"] for run in runs_of(told, "test_own")]


def test_the_section_lists_every_run(told: Told) -> None:
    """Status, test and report; the index links to all reports."""
    section = told.section("aftershock")
    for test, status in {"test_losing": "FAIL", "test_passing": "PASS", "test_broken": "not judged"}.items():
        (line,) = [line for line in section if f"::{test} " in line]
        assert line.startswith(status)
    (index,) = [line.removeprefix("index: ") for line in section if line.startswith("index: ")]
    page = (told.folder / index).read_text()
    for run in told.session["runs"]:
        assert str(run["run"]) in page


def test_github_gets_annotations_and_a_summary(told: Told) -> None:
    """One annotation for each run that did not pass, and a summary of the step; none for a session without runs."""
    errors = [line for line in told.lines if line.startswith("::error ") and "integrity/lost" in line]
    assert 1 == len(errors), told.lines
    assert any(line.startswith("::warning ") and "witness/kill-1" in line for line in told.lines)
    summary = (told.folder / "summary.md").read_text()
    (run,) = runs_of(told, "test_losing")
    assert str(run["run"]) in summary
    (broken,) = runs_of(told, "test_broken")
    assert str(broken["run"]) not in summary


def test_a_starved_run_is_repeated_with_an_exclusive_lease(told: Told) -> None:
    """The second verdict is the test's; both runs are kept and named."""
    if "test_starved" not in told.cases:
        pytest.skip("repeated in the session with xdist alone")
    first, second = runs_of(told, "test_starved")
    assert ("INCONCLUSIVE", second["run"], "PASS") == (first["status"], first["repeated_as"], second["status"])
    assert (told.folder / "runs" / str(first["run"]) / "verdict.json").exists()
    assert [] == [part.tag for part in told.cases["test_starved"] if part.tag != "properties"]
    assert 1 == sum(": the host was starved of CPU; repeating " in line for line in told.lines)
