"""The ``chaos`` fixture, which runs plans during a test, and records the SLOs that the test expects of the runs.

All runs of a pytest session are judged together after the last test.
"""

import asyncio
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from aftershock.errors import PlanError
from aftershock.faults import plans
from aftershock.faults.plan import model
from aftershock.faults.plan.check import check
from aftershock.faults.plan.model import Gate, Plan
from aftershock.faults.plan.parsing import draft_of
from aftershock.faults.plan.sample_size import slo_problems
from aftershock.faults.sections import document
from aftershock.faults.sections.document import Location, did_you_mean, format_problems
from aftershock.harness.run import run as running
from aftershock.harness.run.job import Job, prepare
from aftershock.harness.run.session import Entry, Suite
from aftershock.harness.safety.lease import Kind, lease_kind
from aftershock.harness.safety.rundir import RunDir

EXPECTATIONS = "expectations.jsonl"
_MARK = 'write the mark as @pytest.mark.chaos(seed=7, judged="latency"), or judged="integrity", or neither'
_SHARED = (
    "this run shared the host with other runs, because its plan has only SLOs on record counts: mark the test "
    '@pytest.mark.chaos(judged="latency"), or add the SLO to the plan'
)


@dataclass(frozen=True)
class Origin:
    """Test that runs plans; ``mark`` is the test's ``chaos`` mark, ``seed`` the value of ``--aftershock-seed``."""

    nodeid: str
    file: Path
    rootdir: Path
    mark: pytest.Mark | None
    seed: int


class Chaos:
    """Value of the ``chaos`` fixture; ``on_finish`` is called with the run id of each complete run.

    Raises PlanError if the test's ``chaos`` mark has invalid arguments.
    """

    def __init__(self, suite: Suite, test: Origin, on_finish: Callable[[str], None]) -> None:
        self._suite = suite
        self._test = test
        self._on_finish = on_finish
        arguments = test.mark.kwargs if test.mark else {}
        seed, kind = arguments.get("seed", test.seed), arguments.get("judged")
        valid = not (test.mark and test.mark.args) and set(arguments) <= {"seed", "judged"}
        if not valid or not isinstance(seed, int) or kind not in (None, *get_args(Kind)):
            raise PlanError([f"{test.nodeid}: invalid arguments of the chaos mark; {_MARK}"])
        self._seed: int = seed
        self._marked_kind: Kind | None = kind

    def run(
        self,
        plan: "Plan | Path | str",
        seed: int | None = None,
        changes: Sequence[str] = (),
        *,
        rehearse: bool = False,
        allow_exec: bool = False,
    ) -> "ChaosRun":
        """Wait for the host and a warm cluster, run the plan, and return at the end of the load, before the verdict.

        ``plan`` is a ``Plan``, a YAML text of more than one line, the name of a bundled plan, or the path of a file
        relative to the test's folder or pytest's rootdir. ``seed`` determines all random choices, by default the seed
        in the ``chaos`` mark, else ``--aftershock-seed``. ``changes`` has ``key=value`` strings, as for ``aftershock
        run --set``. With ``rehearse`` the full load runs without faults. With ``allow_exec`` the plan may start your
        own programs, with the client ``exec``.

        Raises PlanError, before anything starts, for an invalid plan or an async test; otherwise the errors of
        ``aftershock.harness.run.run.perform``.
        """
        __tracebackhide__ = True
        with suppress(RuntimeError):  # a run has its own event loop, and would block the loop of the caller
            asyncio.get_running_loop()
            advice = "make the test a plain function"
            raise PlanError([f"{self._test.nodeid}: chaos.run can't be called from async code; {advice}"])
        run_seed = self._seed if seed is None else seed
        source, log = _plan_source(plan, self._test), partial(print, file=sys.stderr)  # pytest captures stderr
        job = prepare(source, changes, run_seed, log, rehearse=rehearse, allow_exec=allow_exec)
        kind = lease_kind([objective.slo for objective in job.checked.plan.objectives])
        if self._marked_kind == "integrity" and kind == "latency" and job.checked.plan.slo:
            problem = "the plan has SLOs on latency or other times, which can't be judged on a shared host"
            raise PlanError([f'{job.checked.source}: {problem}; remove judged="integrity" from the test\'s chaos mark'])
        kind = self._marked_kind or kind
        begin = run_starter(self._suite, self._test.nodeid, job, f"--aftershock-seed={run_seed}")
        # plain lines instead of a live panel: pytest captures them and shows them if the test fails
        console = Console(stderr=True, highlight=False, force_terminal=False)
        home = running.drive_leased(job, kind, self._suite, self._test.nodeid, begin, console)
        self._on_finish(home.run_id)
        return ChaosRun(home, job.checked.plan, kind, self._test.rootdir)


class ChaosRun:
    """Finished run of a test; its verdict follows at the end of the pytest session."""

    def __init__(self, home: RunDir, plan: Plan, kind: Kind, rootdir: Path) -> None:
        self._home = home
        self._plan = plan
        self._lease_kind = kind
        self._rootdir = rootdir

    @property
    def home(self) -> Path:
        return self._home.path

    @property
    def run_id(self) -> str:
        return self._home.run_id

    @property
    def facts(self) -> dict[str, Any]:
        """Content of ``run.json`` in the run directory, such as versions, host, times and topics."""
        return dict(self._home.facts)

    def expect(self, slo: str, gate: Gate = "verdict") -> None:
        """Add an SLO to the run; ``gate="report"`` reports the SLO without effect on the run's verdict.

        Raises PlanError if the SLO is invalid, refers to names that the plan lacks, or needs more samples than the run
        has.
        """
        __tracebackhide__ = True
        frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() would read the source of the whole stack
        caller = Path(frame.f_code.co_filename)
        display_path = caller.relative_to(self._rootdir) if caller.is_relative_to(self._rootdir) else Path(caller.name)
        at = f"{display_path.as_posix()}:{frame.f_lineno}"
        draft = draft_of(self._plan.model_copy(update={"slo": (slo,)}))
        problems = format_problems(slo_problems(draft), _OneLocation(at))
        if problems:
            raise PlanError(problems)
        if self._lease_kind == "integrity" and lease_kind([slo]) == "latency":
            raise PlanError([f'{at}: the SLO "{slo}" measures time, but {_SHARED}'])
        with (self.home / EXPECTATIONS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"text": slo, "at": at, "gate": gate}) + "\n")
        self._home.seal()


class _OneLocation:
    """Source map for an SLO in a test, in which each position is that of the line that calls `ChaosRun.expect`."""

    def __init__(self, at: str) -> None:
        self._at = at

    def position(self, loc: Location) -> str:  # noqa: ARG002 - part of the source map's interface
        return self._at

    key_position = position


def run_starter(suite: Suite, test: str, job: Job, *options: str, **facts: Any) -> Callable[[], RunDir]:
    """Return a function that creates a run directory, and adds the run to the session's ``runs.jsonl``.

    ``facts`` are added to ``run.json``.
    """

    def begin() -> RunDir:
        command = shlex.join(["pytest", test, *options])
        home = RunDir.create(suite.out, job.timeline.name, job.timeline.seed, command)
        suite.enter(Entry(home.run_id, test))
        home.update(test=test, **facts)
        return home

    return begin


def _plan_source(source: Plan | Path | str, test: Origin) -> Path | str:
    if isinstance(source, Plan):
        check(source)
        return document.dump_yaml(model.dump(source))
    if isinstance(source, str) and "\n" in source:
        return source
    for path in (test.file.parent / source, test.rootdir / source):
        if path.is_file():
            return path
    if str(source) in plans.names():
        return plans.find(str(source))
    hint = did_you_mean(source, plans.names())
    places = f"beside {test.file.name} or in {test.rootdir}"
    raise PlanError([f"{source}: no such file {places}, and no bundled plan; {hint}"])
