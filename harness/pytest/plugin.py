"""pytest plugin with the ``chaos`` fixture and mark, command line options, and verdicts after the last test.

The reports of a test carry the ids of the test's runs. The controller (pytest's main process) defers the reports of
tests with runs, judges all runs together, and releases the reports with the tests' outcomes. See `docs/PYTEST.md`.
"""

import os
import traceback
from collections.abc import Collection, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.errors import EvidenceError
from aftershock.harness.pytest.reports import (
    RUNS,
    DeferredReports,
    HeldTest,
    Outcome,
    ReportStatus,
    apply_outcome,
    report_status,
)
from aftershock.harness.run.session import PROPERTY, Suite

if TYPE_CHECKING:
    from aftershock.harness.pytest.chaos import Chaos
    from aftershock.harness.pytest.verdicts import RunVerdict


_WORKER_INPUT = "aftershock"
_SUITE = pytest.StashKey[Suite]()
_RUNS = pytest.StashKey[list[str]]()
_MARK = "chaos(seed=N, judged='latency'|'integrity'): settings of this test's chaos runs; see the `chaos` fixture"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("aftershock", "chaos tests on a real Kafka cluster")
    group.addoption(
        "--aftershock-seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the chaos runs' random choices (default: 0)",
    )
    group.addoption(
        "--aftershock-keep",
        choices=["failed"],
        help="leave the clusters of failed tests running, and print the commands to inspect and remove these clusters",
    )
    group.addoption("--aftershock-out", metavar="DIR", help="folder for the chaos runs (default: runs below rootdir)")
    group.addoption("--aftershock-spark", metavar="MASTER", help="Spark master (default: Spark runs in this process)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)
    suite_json = getattr(config, "workerinput", {}).get(_WORKER_INPUT)
    if suite_json:
        config.stash[_SUITE] = Suite.from_json(suite_json)
        return
    out = Path(config.getoption("aftershock_out") or config.rootpath / "runs")
    keep_failed = config.getoption("aftershock_keep") == "failed"
    config.stash[_SUITE] = Suite.new(config.invocation_params.dir / out, keep_failed=keep_failed)
    config.pluginmanager.register(_Controller(config), "aftershock-controller")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[_WORKER_INPUT] = node.config.stash[_SUITE].to_json()


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> "Chaos":
    """Run chaos plans in this test, as in ``run = chaos.run("plan.yaml")`` and ``run.expect("lost == 0")``.

    All runs are judged after the last test of the session, and a test passes only if the verdicts of its runs are PASS.
    """
    from aftershock.harness.pytest.chaos import Chaos, Origin

    def finished(run_id: str) -> None:
        request.node.stash.setdefault(_RUNS, []).append(run_id)
        request.node.user_properties.append((PROPERTY, run_id))

    config = request.config
    mark = request.node.get_closest_marker("chaos")
    origin = Origin(request.node.nodeid, request.path, config.rootpath, mark, config.getoption("aftershock_seed"))
    return Chaos(config.stash[_SUITE], origin, finished)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    runs = item.stash.get(_RUNS, [])
    if runs:
        setattr(report, RUNS, (runs, call.excinfo is None))  # lists and booleans reach the controller of xdist
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> ReportStatus | None:
    return report_status(report)


class _Controller:
    """Hooks of the process that receives pytest's reports of all tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._suite = config.stash[_SUITE]
        self._deferred = DeferredReports()
        self._failed: set[str] = set()
        self._verdicts: dict[str, RunVerdict] = {}
        self._releasing = False
        self._lines: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """Hide from other plugins the reports of tests whose runs are not judged yet."""
        held = not self._releasing and self._deferred.offer(report)
        if report.failed and not held:
            self._failed.add(report.nodeid)
        return (yield)

    # trylast: the terminal's last progress output comes after the verdicts
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """After the last test, judge the runs and release the deferred reports; after an interrupt, only release."""
        try:
            result = yield
        except (session.Failed, KeyboardInterrupt) as error:
            self._conclude(judging=type(error) is not KeyboardInterrupt)
            raise
        except BaseException:
            self._conclude(judging=False)
            raise
        self._conclude(judging=True, repeatable={run_id for held in self._deferred.held for run_id in held.runs})
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        """Remove the clusters, write the session's index, and add the checks to pytest's finished JUnit file."""
        result = yield
        if self._suite.folder.exists():
            folder = self._config.invocation_params.dir
            junit_path = self._config.getoption("xmlpath", None)
            try:
                from aftershock.harness.pytest import summary

                self._lines = summary.finish(self._suite, self._verdicts, self._failed, folder)
                if junit_path:
                    outcomes = {held.nodeid: self._outcome(held) for held in self._deferred.held}
                    checks = summary.checks_by_test(self._suite.entries(), self._verdicts, outcomes)
                    summary.add_checks(folder / Path(os.path.expandvars(junit_path)).expanduser(), checks)
            except EvidenceError as error:
                self._lines.append(str(error))
            except Exception:  # noqa: BLE001 - a bug of ours must not suppress pytest's own summary
                self._lines += traceback.format_exc().splitlines()
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lines:
            terminalreporter.section("aftershock")
            for line in self._lines:
                terminalreporter.line(line)

    def _conclude(self, *, judging: bool, repeatable: Collection[str] = ()) -> None:
        """Judge the runs, then release the deferred reports with the tests' outcomes, in order."""
        if not self._suite.entries():
            return
        from aftershock.harness.pytest.verdicts import judge_all

        master = self._config.getoption("aftershock_spark")
        try:
            for run_id, verdict in judge_all(self._suite, master, self._log, repeatable) if judging else ():
                self._verdicts[run_id] = verdict
        finally:
            self._releasing = True
            for held in self._deferred.held:
                outcome = self._outcome(held)
                for report in held.reports:
                    # the terminal prints a test's file name at its start; xdist's reports (with a node) print it anyway
                    terminal = self._terminal()
                    if terminal and report.when != "teardown" and not hasattr(report, "node"):
                        terminal.pytest_runtest_logstart(report.nodeid, report.location)
                    self._config.hook.pytest_runtest_logreport(report=apply_outcome(report, outcome))

    def _outcome(self, held: HeldTest) -> Outcome:
        from aftershock.harness.pytest.verdicts import outcome_of, without_verdict

        return outcome_of(
            [self._verdicts.get(run_id) or without_verdict(self._suite.out / run_id) for run_id in held.runs]
        )

    def _log(self, line: str) -> None:
        terminal = self._terminal()
        if terminal:
            terminal.ensure_newline()
            writer = self._config.get_terminal_writer()
            if writer.width_of_current_line:  # the terminal reporter does not track xdist's progress letters
                writer.line()
            terminal.write_line(line)

    def _terminal(self) -> pytest.TerminalReporter | None:
        terminal: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        return terminal
