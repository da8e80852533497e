"""Deferred reports in real pytest sessions, with xdist and without; the tests' names determine the verdicts."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from aftershock.harness.pytest.reports import RUNS, DeferredReports, Outcome, apply_outcome, report_status

pytest_plugins = ["pytester"]

HOLDING = """
import pytest
from aftershock.harness.pytest.reports import RUNS, DeferredReports, Outcome, apply_outcome, report_status

deferred, over = DeferredReports(), []

def outcome(nodeid):
    status = nodeid.rpartition("_")[2].upper()
    return Outcome(status, f"the sentence: {status}", f"first line\\nsecond line")

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if "chaos" in item.name:
        setattr(report, RUNS, (["run-1"], call.excinfo is None))
    return report

@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report):
    return report_status(report)

class Controller:
    def __init__(self, config):
        self.hook = config.hook

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report):
        if not over:
            deferred.offer(report)
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self):
        try:
            return (yield)
        finally:
            over.append(True)
            for held in deferred.held:
                for report in held.reports:
                    self.hook.pytest_runtest_logreport(report=apply_outcome(report, outcome(held.nodeid)))

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Controller(config))
"""
SUITE = """
import pytest

@pytest.fixture
def torn():
    yield
    raise OSError("torn down")

def test_plain(): pass
def test_chaos_pass(): print("driven")
def test_chaos_fail(): print("driven")
def test_chaos_inconclusive(): pass
def test_chaos_error(): pass
def test_chaos_own_pass(): assert 1 == 2
def test_chaos_skipped_pass(): pytest.skip("no")
def test_chaos_torn_fail(torn): pass
@pytest.mark.xfail(reason="known", strict=True)
def test_chaos_strictly_expected_fail(): pass
@pytest.mark.xfail(reason="known")
def test_chaos_expected_fail(): pass
@pytest.mark.xfail(reason="known", strict=True)
def test_chaos_expected_pass(): pass
@pytest.mark.xfail(reason="known", strict=True)
def test_chaos_expected_inconclusive(): pass
"""
WITH_XDIST = pytest.param(["-n", "2"], id="xdist")
WORKERS = [pytest.param([], id="alone"), WITH_XDIST]


class Sessions:
    """Pytest sessions in which only ``HOLDING`` defers reports."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.path = pytester.path
        self._pytester = pytester
        pytester.makeconftest(HOLDING)

    def run(self, tests: str, *options: str) -> pytest.RunResult:
        self._pytester.makepyfile(test_suite=tests)
        return self._pytester.runpytest_subprocess("-p", "no:aftershock", *options)


@pytest.fixture
def sessions(pytester: pytest.Pytester) -> Sessions:
    return Sessions(pytester)


def last_failed(sessions: Sessions) -> set[str]:
    path = sessions.path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return {name.removeprefix("test_suite.py::") for name in json.loads(path.read_text())}


def cases(path: Path) -> list[tuple[str, list[str]]]:
    """Return each testcase's name and the tags in it."""
    tree = ET.parse(path)  # noqa: S314 - pytest wrote it
    return [(str(case.get("name")), [part.tag for part in case]) for case in tree.iter("testcase")]


@pytest.mark.parametrize("workers", WORKERS)
def test_all_channels_report_the_same_outcomes(sessions: Sessions, workers: list[str]) -> None:
    """Counts, exit status, JUnit and --lf agree: each test has one outcome, that of its verdict."""
    result = sessions.run(SUITE, "--junitxml=junit.xml", *workers)
    # failed: fail, own, torn (its call), expected_pass; errors: both inconclusive, error, torn (its teardown)
    result.assert_outcomes(passed=2, failed=4, errors=4, skipped=1, xfailed=2)
    assert 1 == result.ret
    written = cases(sessions.path / "junit.xml")
    assert 13 == len(written)  # The test `torn` counts twice, as in pytest.
    told = dict(written)
    assert [] == told["test_chaos_pass"] == told["test_plain"]
    assert ["failure"] == told["test_chaos_fail"] == told["test_chaos_own_pass"] == told["test_chaos_expected_pass"]
    assert ["error"] == told["test_chaos_inconclusive"] == told["test_chaos_error"]
    assert ["skipped"] == told["test_chaos_strictly_expected_fail"] == told["test_chaos_expected_fail"]
    assert {
        "test_chaos_fail",
        "test_chaos_inconclusive",
        "test_chaos_error",
        "test_chaos_own_pass",
        "test_chaos_torn_fail",
        "test_chaos_expected_pass",
        "test_chaos_expected_inconclusive",
    } == last_failed(sessions)


@pytest.mark.parametrize("workers", WORKERS)
def test_the_terminal_shows_the_verdict(sessions: Sessions, workers: list[str]) -> None:
    """The whole text under the test's name, the message in the summary, the status in verbose mode."""
    result = sessions.run(SUITE, "-v", *workers)
    result.stdout.fnmatch_lines_random(
        [
            "*_ test_chaos_fail _*",
            "first line",
            "second line",
            "*_ ERROR at verdict of test_chaos_inconclusive _*",
            "*_ ERROR at teardown of test_chaos_torn_fail _*",
            "FAILED test_suite.py::test_chaos_fail - the sentence: FAIL",
            "INCONCLUSIVE test_suite.py::test_chaos_inconclusive - the sentence: INCONCLUSIVE",
        ]
    )
    results = [line for line in result.outlines if "test_chaos_inconclusive" in line and "%]" in line]
    assert 1 == len(results), results
    assert "INCONCLUSIVE" in results[0]


def test_captured_output_is_shown_with_a_failed_verdict(sessions: Sessions) -> None:
    result = sessions.run(SUITE, "-k", "chaos_fail")
    result.stdout.fnmatch_lines(["*_ test_chaos_fail _*", "*Captured stdout call*", "driven"])


def test_a_plain_failure_with_x_releases_deferred_reports(sessions: Sessions) -> None:
    """-x ends the loop at a test's own failure, not at a verdict; the verdict is reported nevertheless."""
    result = sessions.run("def test_chaos_fail(): pass\ndef test_own(): assert 0\ndef test_never(): pass\n", "-x")
    result.assert_outcomes(failed=2)
    assert 1 == result.ret


def test_stepwise_starts_at_the_test_that_its_verdict_failed(sessions: Sessions) -> None:
    tests = "def test_chaos_pass(): pass\ndef test_chaos_fail(): pass\n"
    sessions.run(tests, "--sw").assert_outcomes(passed=1, failed=1)
    sessions.run(tests, "--sw").assert_outcomes(failed=1, deselected=1)


def report(when: str = "call", nodeid: str = "test_a.py::test_a") -> pytest.TestReport:
    made = pytest.TestReport(nodeid, ("test_a.py", 3, "test_a"), {}, "passed", None, when, duration=2.0)  # type: ignore[arg-type]
    setattr(made, RUNS, (["run-1"], True))
    return made


def test_the_placeholder_of_a_deferred_report_is_empty() -> None:
    """The placeholder has no phase, duration or status; the real report is kept."""
    deferred, passing = DeferredReports(), report()
    assert deferred.offer(passing)
    assert ("", "", "") == report_status(passing)
    assert ("held", 0.0) == (passing.when, passing.duration)
    (held,) = deferred.held
    assert ("call", 2.0) == (held.reports[0].when, held.reports[0].duration)


def test_only_the_teardown_of_a_deferred_call_is_deferred() -> None:
    """Another test's teardown, a setup, and xdist's report of a crash are passed on at once."""
    deferred = DeferredReports()
    deferred.offer(report())
    assert not deferred.offer(report("teardown", "test_a.py::test_b"))
    assert not deferred.offer(report("setup"))
    assert not deferred.offer(report("???"))
    assert deferred.offer(report("teardown"))
    assert not deferred.offer(report("teardown"))


def test_a_verdict_points_at_the_test() -> None:
    """`--tb=line` shows file and line of the test, and the message."""
    failed = apply_outcome(report(), Outcome("FAIL", "it was lost", "text"))
    assert "test_a.py:4: it was lost" == str(failed.longrepr.reprcrash)  # type: ignore[union-attr]
    assert "text" == str(failed.longrepr)


def test_the_verdict_does_not_change_the_teardown() -> None:
    ended = report("teardown")
    assert ended is apply_outcome(ended, Outcome("FAIL", "it was lost", "text"))
