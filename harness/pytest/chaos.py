"""The ``chaos`` fixture: drives runs for a test, and notes what the test expects of them.

Rules: a run is driven where it is asked for, and judged when the session is over, together with all others, so nothing
here knows a verdict. What can be known to be wrong beforehand (the plan, an SLO, a mark) is said at once, as PlanError.
"""

import asyncio
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from aftershock.errors import PlanError
from aftershock.faults import plans
from aftershock.faults.plan import document, model
from aftershock.faults.plan.check import check
from aftershock.faults.plan.document import Location, did_you_mean, format_problems
from aftershock.faults.plan.model import Gate, Plan
from aftershock.faults.plan.parsing import draft_of
from aftershock.faults.plan.sample_size import slo_problems
from aftershock.harness.pytest import leased_run
from aftershock.harness.pytest.session import Entry, Suite
from aftershock.harness.run.run import Job, prepare
from aftershock.harness.run.rundir import RunDir
from aftershock.harness.safety.lease import Kind, judged_on

EXPECTATIONS = "expectations.jsonl"


@dataclass(frozen=True)
class Origin:
    """Where runs are asked for: a test. ``mark``: its ``chaos`` mark; ``seed``: the session's."""

    nodeid: str
    file: Path
    rootdir: Path
    mark: pytest.Mark | None
    seed: int


class Chaos:
    """What a test is handed. ``finished`` is told the id of each run whose evidence is complete."""

    def __init__(self, suite: Suite, test: Origin, finished: Callable[[str], None]) -> None:
        self._suite = suite
        self._test = test
        self._finished = finished
        self._seed, self._judged = _mark(test)

    def run(
        self,
        plan: "Plan | Path | str",
        seed: int | None = None,
        changes: Sequence[str] = (),
        *,
        rehearse: bool = False,
        allow_exec: bool = False,
    ) -> "ChaosRun":
        """Drive a plan on a warm cluster; waits for the host and for a cluster, and returns when the load is over.

        Args:
            plan: a file, by its path from the test's own folder or from pytest's rootdir; the name of a plan that
                ships; YAML text (of more than one line); or a ``Plan``.
            seed: of every random choice; by default that of the ``chaos`` mark, else ``--aftershock-seed``.
            changes: ``key=value`` each, as ``aftershock run --set`` takes them.
            rehearse: full load, nothing injected.
            allow_exec: the plan may start programs of your own (``client: exec``).

        Raises:
            PlanError: the plan can't be run, or the test is async; nothing was started.
            EngineError: there is no engine, or no image.
            ClusterError: a cluster did not come up.
            FaultError: a fault could not be healed.
            WorkloadError: a client process died.
            LeaseError: a lease can't be had.
        """
        __tracebackhide__ = True
        _refuse_in_async(self._test)
        chosen = self._seed if seed is None else seed
        source = _source(plan, self._test)
        job = prepare(source, changes, chosen, _say, rehearse=rehearse, allow_exec=allow_exec)
        return self._driven(job, _kind(job, self._judged))

    def _driven(self, job: Job, kind: Kind) -> "ChaosRun":
        seed = job.timeline.seed
        begin = beginning(self._suite, self._test.nodeid, job, f"--aftershock-seed={seed}")
        # lines, never a live panel: pytest captures them, and shows them if the test fails
        console = Console(stderr=True, highlight=False, force_terminal=False)
        home = leased_run.drive(leased_run.Errand(job, kind, self._suite, self._test.nodeid, begin, console))
        self._finished(home.run_id)
        return ChaosRun(home, job.checked.plan, kind, self._test.rootdir)


class ChaosRun:
    """A run that was driven; its verdict comes when the session is over."""

    def __init__(self, home: RunDir, plan: Plan, kind: Kind, rootdir: Path) -> None:
        self._home = home
        self._plan = plan
        self._kind = kind
        self._rootdir = rootdir

    @property
    def home(self) -> Path:
        """The run directory, with all the evidence."""
        return self._home.path

    @property
    def run_id(self) -> str:
        """The run's id, which is its folder's name."""
        return self._home.run_id

    @property
    def facts(self) -> dict[str, Any]:
        """What ``run.json`` says: versions, host, times, topics, producers."""
        return dict(self._home.facts)

    def expect(self, slo: str, gate: Gate = "verdict") -> None:
        """Add an SLO to the plan's own; it is judged with them. ``gate="report"``: it is watched, and fails nothing.

        Raises:
            PlanError: it is no SLO, names what the plan lacks, or can't be fed or judged; says so at once.
        """
        __tracebackhide__ = True
        at = _caller(self._rootdir)
        asked = draft_of(self._plan.model_copy(update={"slo": (slo,)}))
        problems = format_problems(slo_problems(asked), _Everywhere(at))
        if problems:
            raise PlanError(problems)
        if self._kind == "integrity" and judged_on([slo]) == "latency":
            raise PlanError([f'{at}: "{slo}" is about time, and {_SHARED}'])
        with (self.home / EXPECTATIONS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"text": slo, "at": at, "gate": gate}) + "\n")
        self._home.seal()


_SHARED = (
    "this run shared the host with others, since its plan asks for counts of records alone: mark the test "
    '@pytest.mark.chaos(judged="latency"), or put the SLO into the plan'
)


class _Everywhere:
    """A place for all that is wrong: an expectation has one line of a test, whatever part of the plan it misses."""

    def __init__(self, at: str) -> None:
        self._at = at

    def position(self, loc: Location) -> str:  # noqa: ARG002 - a `Places`
        return self._at

    key_position = position


def beginning(suite: Suite, test: str, job: Job, *options: str, **facts: Any) -> Callable[[], RunDir]:
    """How a run begins: its directory is made, and the ledger says whose it is. ``facts`` go to ``run.json``."""

    def begin() -> RunDir:
        command = shlex.join(["pytest", test, *options])
        home = RunDir.create(suite.out, job.timeline.name, job.timeline.seed, command)
        suite.enter(Entry(home.run_id, test))
        home.tell(test=test, **facts)
        return home

    return begin


def _say(line: str) -> None:
    """To pytest's captured output."""
    sys.stderr.write(line + "\n")


def _refuse_in_async(test: Origin) -> None:
    """A run has an event loop of its own, and blocks the one that it would be called from."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise PlanError([f"{test.nodeid}: chaos.run can't be called from async code; make the test a plain function"])


def _source(source: Plan | Path | str, test: Origin) -> Path | str:
    """The file, or the text, that a test means."""
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
    raise PlanError(
        [f"{source}: no such file beside {test.file.name} or in {test.rootdir}, and no shipped plan; {hint}"]
    )


def _mark(test: Origin) -> tuple[int, Kind | None]:
    """Seed and kind as the ``chaos`` mark has them. PlanError where it says what can't be."""
    said = test.mark.kwargs if test.mark else {}
    seed, judged = said.get("seed", test.seed), said.get("judged")
    known = not (test.mark and test.mark.args) and set(said) <= {"seed", "judged"}
    if not known or not isinstance(seed, int) or judged not in (None, *get_args(Kind)):
        raise PlanError([f"{test.nodeid}: its chaos mark says what can't be read; {_MARK}"])
    return seed, judged


_MARK = 'write @pytest.mark.chaos(seed=7, judged="latency"), or judged="integrity", or neither'


def _kind(job: Job, judged: Kind | None) -> Kind:
    """Whether a run needs the host to itself. PlanError if the mark would share it for a plan that can't."""
    needed = judged_on([each.slo for each in job.checked.plan.objectives])
    if judged == "integrity" and needed == "latency" and job.checked.plan.slo:
        what = "the plan has SLOs on time, which a run that shares the host can't be judged on"
        raise PlanError([f'{job.checked.source}: {what}; take judged="integrity" from the test\'s chaos mark'])
    return judged or needed


def _caller(rootdir: Path) -> str:
    """``tests/test_x.py:12``: the line outside this file that called us."""
    frame = sys._getframe(2)  # noqa: SLF001 - what inspect would do, without reading the source of the whole stack
    file = Path(frame.f_code.co_filename)
    shown = file.relative_to(rootdir) if file.is_relative_to(rootdir) else Path(file.name)
    return f"{shown.as_posix()}:{frame.f_lineno}"
