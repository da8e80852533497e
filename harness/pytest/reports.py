"""Reports of tests that are held back until their runs are judged, so that each test is told once, and truly.

A chaos test's own code says only that its run was driven; what the run showed is known when the session's runs have
been judged together. Until then pytest must not hear that the test passed. Rules:

* Held is the report of a call that raised nothing and whose test has runs, and the teardown that follows it. What
  pytest goes on with in its place says nothing: no letter, no count, no line in JUnit's file or the cache of failures.
* A held report is released through pytest's own hook, so that terminal, counts, exit status, ``--lf`` and JUnit agree
  of themselves. FAIL makes it a failure of the call; INCONCLUSIVE and ERROR make it an error, of a phase ``verdict``.
* A test marked ``xfail`` expects the FAIL: it is reported as xfailed then. An answer that is missing is an error still.

Knows pytest alone, as its runner, terminal, cacheprovider and junitxml of 9.1 read a report.
"""

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

HELD = "held"
VERDICT = "verdict"
_STRICT = "[XPASS(strict)] "
Status = Literal["PASS", "FAIL", "INCONCLUSIVE", "ERROR"]
Shown = tuple[str, str, str | tuple[str, dict[str, bool]]]


@dataclass(frozen=True)
class Driven:
    """What travels with a report, from an xdist worker too: the ids of the test's runs, and whether its code passed."""

    runs: tuple[str, ...]
    passed: bool

    def put(self, report: pytest.TestReport) -> None:
        """Attach this to a report, as plain data that survives serialisation."""
        report.aftershock = {"runs": list(self.runs), "passed": self.passed}  # type: ignore[attr-defined]

    @classmethod
    def of(cls, report: pytest.TestReport) -> "Driven | None":
        """What was attached, None for a test without runs."""
        told = getattr(report, "aftershock", None)
        return cls(tuple(told["runs"]), bool(told["passed"])) if told else None


@dataclass(frozen=True)
class Outcome:
    """What the verdict makes of a test: one sentence, and the whole text."""

    status: Status
    sentence: str = ""
    text: str = ""


@dataclass
class Held:
    """One test's reports, in the order they came: its call, and its teardown once that is over."""

    nodeid: str
    runs: tuple[str, ...]
    reports: list[pytest.TestReport] = field(default_factory=list)


class Deferred:
    """Holds reports back; ``held`` lists the tests in the order in which their calls ended."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self._in_teardown: dict[tuple[str, Any], Held] = {}

    def offer(self, report: pytest.TestReport) -> bool:
        """Hold a report back if it is one to be held: ``report`` itself then says nothing any more."""
        # the same test may run in several workers at once (--dist=each)
        key = report.nodeid, getattr(report, "node", None)
        driven = Driven.of(report)
        if report.when == "call" and driven and driven.passed:
            held = self._in_teardown[key] = Held(report.nodeid, driven.runs)
            self.held.append(held)
        elif report.when == "teardown" and key in self._in_teardown:
            held = self._in_teardown.pop(key)
        else:
            return False
        held.reports.append(copy.copy(report))
        _silence(report)
        return True


def _silence(report: pytest.TestReport) -> None:
    """Make it a report that pytest and its plugins pass over: of no phase they know, passed, and empty."""
    report.when = HELD  # type: ignore[assignment]  # on purpose none of pytest's own phases
    report.outcome, report.longrepr, report.sections, report.duration = "passed", None, [], 0.0
    report.__dict__.pop("wasxfail", None)


def judged(report: pytest.TestReport, outcome: Outcome) -> pytest.TestReport:
    """The report as it is released: a held call's made what the verdict says, any other as it was."""
    if report.when != "call" or outcome.status == "PASS":
        return report
    report = copy.copy(report)
    expected = _failure_expected(report)
    report.__dict__.pop("wasxfail", None)
    report.outcome, report.longrepr = "failed", _Verdict(outcome, report.location)  # type: ignore[assignment]
    if outcome.status != "FAIL":
        report.when = VERDICT  # type: ignore[assignment]
        report.aftershock_status = outcome.status  # type: ignore[attr-defined]
    elif expected is not None:
        report.outcome, report.wasxfail = "skipped", expected
    return report


def _failure_expected(report: pytest.TestReport) -> str | None:
    """The reason of an ``xfail`` mark, None without one; a strict mark has made the report a failure by now."""
    if report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith(_STRICT):
        return report.longrepr.removeprefix(_STRICT)
    return getattr(report, "wasxfail", None)


def shown(report: pytest.TestReport) -> Shown | None:
    """Category, letter and word of our phases in the terminal; None for pytest's own."""
    if report.when == HELD:
        return "", "", ""
    if report.when == VERDICT:
        status = report.aftershock_status
        colour = "yellow" if status == "INCONCLUSIVE" else "red"
        return "error", "E", (status, {colour: True})
    return None


class _Verdict:
    """A verdict as pytest shows what went wrong: in the terminal, in one line of the summary, and in JUnit's file."""

    def __init__(self, outcome: Outcome, location: tuple[str, int | None, str]) -> None:
        self._text = outcome.text
        self.reprcrash = _Crash(location[0], (location[1] or 0) + 1, outcome.sentence)

    def toterminal(self, out: Any) -> None:
        """Write to pytest's terminal writer."""
        for line in str(self).splitlines():
            out.line(line)

    def __str__(self) -> str:
        return self._text.rstrip("\n")


@dataclass(frozen=True)
class _Crash:
    """Where the test stands and what its verdict is, in one line; pytest reads ``message``."""

    path: str
    lineno: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.lineno}: {self.message}"
