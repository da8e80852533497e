"""pytest's door: the ``chaos`` fixture and mark, our options, and verdicts that come after the tests. Hooks only.

::

    worker, or the only process     chaos.run ─▶ evidence; the test's reports carry the ids of its runs
    controller, or the only process reports held back ─▶ judged together ─▶ reports released, as the verdicts say

Rules: importing this costs next to nothing, since every pytest that has us installed does; what drives and judges is
imported when a test has asked for it. A suite without chaos tests is left as it is. See `docs/PYTEST.md`.
"""

import os
import traceback
from collections.abc import Collection, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.errors import EvidenceError
from aftershock.harness.pytest.reports import Deferred, Driven, Held, Outcome, Shown, judged, shown
from aftershock.harness.pytest.session import PROPERTY, Suite

if TYPE_CHECKING:
    from aftershock.harness.pytest.chaos import Chaos
    from aftershock.harness.pytest.verdicts import Judged


_WORKER_INPUT = "aftershock"
_SUITE = pytest.StashKey[Suite]()
_RUNS = pytest.StashKey[list[str]]()
_MARK = "chaos(seed=N, judged='latency'|'integrity'): how the runs of this test are driven; see the `chaos` fixture"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Our options, in a group of their own."""
    group = parser.getgroup("aftershock", "chaos tests on a real Kafka cluster")
    group.addoption("--aftershock-seed", type=int, default=0, metavar="N", help="seed of the runs (default: 0)")
    group.addoption(
        "--aftershock-keep",
        choices=["failed"],
        help="leave the clusters of failed tests running, and say how to look at them and how to clean up",
    )
    group.addoption(
        "--aftershock-out", metavar="DIR", help="the folder that holds the runs (default: runs under rootdir)"
    )
    group.addoption("--aftershock-spark", metavar="MASTER", help="a Spark master (default: Spark runs in this process)")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark; a worker is told which session it belongs to, the controller begins one and judges it."""
    config.addinivalue_line("markers", _MARK)
    told = getattr(config, "workerinput", {}).get(_WORKER_INPUT)
    if told:
        config.stash[_SUITE] = Suite.from_json(told)
        return
    out = Path(config.getoption("aftershock_out") or config.rootpath / "runs")
    keep_failed = config.getoption("aftershock_keep") == "failed"
    config.stash[_SUITE] = Suite.new(config.invocation_params.dir / out, keep_failed=keep_failed)
    config.pluginmanager.register(_Controller(config), "aftershock-controller")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker which session it belongs to."""
    node.workerinput[_WORKER_INPUT] = node.config.stash[_SUITE].to_json()


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> "Chaos":
    """Drives chaos plans for this test: ``run = chaos.run("plan.yaml")``, ``run.expect("lost == 0")``.

    The verdicts come when all tests are over, and this test passes or fails by them.
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
    """Note on a test's reports which runs it has finished."""
    report = yield
    runs = item.stash.get(_RUNS, [])
    if runs:
        Driven(tuple(runs), passed=call.excinfo is None).put(report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> Shown | None:
    """How our own phases are shown."""
    return shown(report)


class _Controller:
    """The hooks of the process that hears of all tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._suite = config.stash[_SUITE]
        self._deferred = Deferred()
        self._failed: set[str] = set()
        self._judged: dict[str, Judged] = {}
        self._over = False
        self._lines: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """Hold back what is to be judged first, before anybody else hears of it."""
        held = not self._over and self._deferred.offer(report)
        if report.failed and not held:
            self._failed.add(report.nodeid)
        return (yield)

    # innermost, so that the terminal's last look at its progress comes after the verdicts
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Judge and release when the loop is over, also where ``-x`` ended it; release unjudged where it was broken."""
        try:
            result = yield
        except (session.Failed, KeyboardInterrupt) as ended:
            self._conclude(judging=type(ended) is not KeyboardInterrupt)
            raise
        except BaseException:
            self._conclude(judging=False)
            raise
        self._conclude(judging=True, repeatable={run_id for held in self._deferred.held for run_id in held.runs})
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        """When pytest's own files are written and the workers have ended: clusters away, index, checks into JUnit."""
        result = yield
        if self._suite.folder.exists():
            try:
                self._finish()
            except Exception:  # noqa: BLE001 - ours to mend; but pytest's own summary must not be lost by it
                self._lines += traceback.format_exc().splitlines()
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A section of ours, if there were chaos tests."""
        if self._lines:
            terminalreporter.section("aftershock")
            for line in self._lines:
                terminalreporter.line(line)

    def _conclude(self, *, judging: bool, repeatable: Collection[str] = ()) -> None:
        if not self._suite.entries():
            return
        from aftershock.harness.pytest.verdicts import judge_all

        master = self._config.getoption("aftershock_spark")
        try:
            for run_id, one in judge_all(self._suite, master, self._say, repeatable) if judging else ():
                self._judged[run_id] = one
        finally:
            self._release()

    def _release(self) -> None:
        """Let every held report go, judged, in the order in which the tests ended."""
        self._over = True
        for held in self._deferred.held:
            outcome = self._outcome(held)
            for report in held.reports:
                self._begin_line(report)
                self._config.hook.pytest_runtest_logreport(report=judged(report, outcome))

    def _finish(self) -> None:
        from aftershock.harness.pytest.summary import finish

        self._lines = finish(self._suite, self._judged, self._failed, self._config.invocation_params.dir)
        self._graft()

    def _outcome(self, held: Held) -> Outcome:
        from aftershock.harness.pytest.verdicts import outcome_of, unjudged

        runs = [self._judged.get(run_id) or unjudged(self._suite.out / run_id) for run_id in held.runs]
        return outcome_of(runs)

    def _graft(self) -> None:
        """Put the checks into pytest's JUnit file, if one was asked for."""
        asked = self._config.getoption("xmlpath", None)
        if not asked:
            return
        from aftershock.harness.pytest.summary import graft, scions

        path = self._config.invocation_params.dir / Path(os.path.expandvars(asked)).expanduser()
        held = {test.nodeid: self._outcome(test) for test in self._deferred.held}
        try:
            graft(path, scions(self._suite.entries(), self._judged, held))
        except EvidenceError as error:
            self._lines.append(str(error))

    def _begin_line(self, report: pytest.TestReport) -> None:
        """Have the terminal name the test's file, as it does when a test begins; xdist's names it anyway."""
        terminal = self._terminal()
        if terminal and report.when != "teardown" and not hasattr(report, "node"):
            terminal.pytest_runtest_logstart(report.nodeid, report.location)

    def _say(self, line: str) -> None:
        """One line in the terminal, on a line of its own."""
        terminal = self._terminal()
        if terminal:
            terminal.ensure_newline()
            writer = self._config.get_terminal_writer()
            if writer.width_of_current_line:  # xdist's letters are in nobody's line
                writer.line()
            terminal.write_line(line)

    def _terminal(self) -> pytest.TerminalReporter | None:
        found: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        return found
