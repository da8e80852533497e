"""Reports of chaos tests, deferred until their runs are judged, so that a test is reported once, with its outcome.

If a test has runs, the report of its passed call and the following teardown report are deferred; pytest continues with
a blank report (no letter, no count). A deferred report is released through pytest's own hook, so terminal, counts, exit
status, ``--lf`` and JUnit file show the same outcome. A verdict FAIL becomes a failed test (or an xfailed test, if the
test has the mark ``xfail``); INCONCLUSIVE and ERROR become pytest errors. Deferral relies on how pytest 9.1 (runner,
terminal, cacheprovider, junitxml) reads a report.
"""

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

RUNS = "aftershock"
"""Attribute of a pytest report: the ids of the test's runs, and True if the test function itself passed."""
HELD = "held"
VERDICT = "verdict"
_STRICT = "[XPASS(strict)] "
Status = Literal["PASS", "FAIL", "INCONCLUSIVE", "ERROR"]
ReportStatus = tuple[str, str, str | tuple[str, dict[str, bool]]]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a test by the verdicts of its runs; ``text`` is the complete text of the test's failure."""

    status: Status
    sentence: str = ""
    text: str = ""


@dataclass
class HeldTest:
    """Deferred reports of a test from pytest's phase ``call`` and, after the teardown, from the phase ``teardown``."""

    nodeid: str
    runs: tuple[str, ...]
    reports: list[pytest.TestReport] = field(default_factory=list)


class DeferredReports:
    """Deferred reports of a session; ``held`` lists the tests in the order in which their calls ended."""

    def __init__(self) -> None:
        self.held: list[HeldTest] = []
        self._awaiting_teardown: dict[tuple[str, Any], HeldTest] = {}

    def offer(self, report: pytest.TestReport) -> bool:
        """Defer a report of a test with runs, store a copy, blank the report, and return True; else return False."""
        # a test may run in several workers at once (--dist=each)
        key = report.nodeid, getattr(report, "node", None)
        runs, passed = getattr(report, RUNS, ((), False))
        if report.when == "call" and passed:
            held = self._awaiting_teardown[key] = HeldTest(report.nodeid, tuple(runs))
            self.held.append(held)
        elif report.when == "teardown" and key in self._awaiting_teardown:
            held = self._awaiting_teardown.pop(key)
        else:
            return False
        held.reports.append(copy.copy(report))
        # pytest and its plugins ignore a passed, empty report with an unknown phase
        report.when = HELD  # type: ignore[assignment]  # deliberately none of pytest's own phases
        report.outcome, report.longrepr, report.sections, report.duration = "passed", None, [], 0.0
        report.__dict__.pop("wasxfail", None)
        return True


def apply_outcome(report: pytest.TestReport, outcome: Outcome) -> pytest.TestReport:
    """Return the deferred report of a test's call with the test's outcome; other reports are returned unchanged."""
    if report.when != "call" or outcome.status == "PASS":
        return report
    report = copy.copy(report)
    xfail_reason = getattr(report, "wasxfail", None)
    if report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith(_STRICT):
        xfail_reason = report.longrepr.removeprefix(_STRICT)  # a strict xfail mark: pytest made this report a failure
    report.__dict__.pop("wasxfail", None)
    report.outcome, report.longrepr = "failed", _Failure(outcome, report.location)  # type: ignore[assignment]
    if outcome.status != "FAIL":
        report.when = VERDICT  # type: ignore[assignment]
        report.aftershock_status = outcome.status  # type: ignore[attr-defined]
    elif xfail_reason is not None:
        report.outcome, report.wasxfail = "skipped", xfail_reason
    return report


def report_status(report: pytest.TestReport) -> ReportStatus | None:
    """Return the category, letter and word with which pytest counts a deferred or judged report; None for others."""
    if report.when == HELD:
        return "", "", ""
    if report.when == VERDICT:
        status = report.aftershock_status
        colour = "yellow" if status == "INCONCLUSIVE" else "red"
        return "error", "E", (status, {colour: True})
    return None


class _Failure:
    """Text of a test's failure, with the methods that pytest's terminal, summary and JUnit output call."""

    def __init__(self, outcome: Outcome, location: tuple[str, int | None, str]) -> None:
        self._text = outcome.text
        self.reprcrash = _Location(location[0], (location[1] or 0) + 1, outcome.sentence)

    def toterminal(self, out: Any) -> None:
        for line in str(self).splitlines():
            out.line(line)

    def __str__(self) -> str:
        return self._text.rstrip("\n")


@dataclass(frozen=True)
class _Location:
    """Location of a failed test, with the worst verdict of its runs as the field ``message``, which pytest reads."""

    path: str
    lineno: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.lineno}: {self.message}"
