"""Nightly work: its steps, their time within a budget, and the closing reports. Every step is a repeatable command.

* **Steps** run in their order, most informative first. With a budget, a step that doesn't fit at its shortest is left
  out with the reason, and later steps are still tried; the remaining time then extends steps in proportion to the time
  they still lack. Without a budget all steps run at full length.
* **Progress** is in ``nightly.json``, so an interrupted night continues where it was. A night is a day and a seed;
  another day or seed starts from the beginning. A failed step does not end the night, and a finished step does not run
  again that night. Ctrl-C ends the current step and the night.
* **Closing**, also after a failure: the index of tonight's runs, their figures in the ledger, the trend, whether
  tonight is worse than the nights before, the matrix of faults and clients, and, after a failure, ``regression.patch``.
* **Comparison.** A trend needs weeks. Two nights can be compared immediately, block by block, but any two nights
  differ; so tonight counts as worse only if it is worse than each of the last three nights.
* **Regression patch**, for ``git apply``: the plans that failed, frozen, and a test for each. The test is red until its
  cause is fixed. ::

      tests/regressions/<name>/plan.yaml         as it failed
                               timeline.json     its timeline with that seed
                               test_<name>.py    compares the two, and runs the plan
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.faults.search.coverage import summary
from aftershock.faults.search.swarm import frame_of
from aftershock.faults.timeline.compile import compile_plan
from aftershock.harness.labs import corpus
from aftershock.harness.labs.corpus import Entry
from aftershock.harness.labs.explore import search
from aftershock.harness.labs.explore.search import format_duration
from aftershock.harness.run.runs import Run, runs_in
from aftershock.results.evidence.files import read_json, write_whole

CLOSING_S = 120.0  # report, trend and summary


@dataclass(frozen=True)
class Step:
    """A command with its shortest and longest duration; ``{out}``, ``{seed}`` and ``{seconds}`` are filled in."""

    name: str
    command: tuple[str, ...]
    least_s: float
    most_s: float

    def words(self, out: str, seed: int, seconds: float) -> list[str]:
        """Return the command line."""
        return [word.format(out=out, seed=seed, seconds=int(seconds)) for word in self.command]


AFTERSHOCK = ("-m", "aftershock.harness.cli")
_JUNIT = ("--junitxml", "{out}/nightly-junit.xml")
_SUITE = ("-m", "pytest", "-m", "engine or nightly", "tests", "--aftershock-out", "{out}", *_JUNIT)
_NAMED = ("--seed", "{seed}", "--out", "{out}")


CONTROLS = {"leader-rotation": "metadata"}
"""Plans that are compared with other nights, block by block, and the control arm that normalises their values."""
COMPARED = (*(f"{op}.latency {q} in fault" for op in ("produce", "consume") for q in ("p50", "p95")), "recovery")
"""Metrics of the comparison: medians are stable from night to night, the cost of a fault itself is not."""
_BLOCKS = ("--set", "blocks=8")


def _plan(name: str, takes_s: float, *more: str) -> Step:
    return Step(name, (*AFTERSHOCK, "run", name, *more, *_NAMED), takes_s, takes_s)


def _rehearsal(name: str, takes_s: float) -> Step:
    return Step(f"{name} rehearsed", (*AFTERSHOCK, "run", name, "--rehearse", *_NAMED), takes_s, takes_s)


STEPS = (
    Step("explore", (*AFTERSHOCK, "explore", "--budget", "{seconds}s", *_NAMED), 300, 1_200),
    _plan("leader-rotation", 340, *_BLOCKS),
    _plan("demo", 150),
    Step("trials", (*AFTERSHOCK, "kip", "all", "--budget", "{seconds}s", *_NAMED), 480, 3_600),
    _plan("broker-loss", 180),
    _rehearsal("demo", 150),
    _rehearsal("leader-rotation", 240),
    _rehearsal("broker-loss", 180),
    Step("suite", _SUITE, 5_400, 5_400),
)


@dataclass(frozen=True)
class Allotted:
    """Seconds for each step, in order; ``left_out``: reasons for steps that do not run."""

    seconds: Mapping[Step, float]
    left_out: Mapping[Step, str]

    @property
    def takes_s(self) -> float:
        """Duration of the night."""
        return sum(self.seconds.values()) + CLOSING_S


def allot(steps: Sequence[Step], budget_s: float | None) -> Allotted:
    """Distribute the budget. Raises AftershockError if it is too small for any step."""
    if budget_s is None:
        return Allotted({step: step.most_s for step in steps}, {})
    selected: list[Step] = []
    left_s = budget_s - CLOSING_S
    for step in steps:
        if step.least_s <= left_s:
            selected.append(step)
            left_s -= step.least_s
    if not selected:
        least_s = min(step.least_s for step in steps) + CLOSING_S
        problem = f"a budget of {format_duration(budget_s)} is too small for any step of a night"
        raise AftershockError(f"{problem}: use --budget {int(least_s / 60) + 1}m or more")
    extra_s = sum(step.most_s - step.least_s for step in selected)
    share = min(1.0, left_s / extra_s) if extra_s else 0.0
    left_out = {step: f"a budget of {format_duration(budget_s)}" for step in steps if step not in selected}
    return Allotted({step: step.least_s + share * (step.most_s - step.least_s) for step in selected}, left_out)


def worst(codes: Sequence[int]) -> int:
    """Return the worst of the exit codes: 3 ERROR, 1 FAIL, 2 INCONCLUSIVE, 0; any other is an ERROR."""
    order = (0, 2, 1)
    return max(
        (code if code in order else 3 for code in codes), key=lambda c: order.index(c) if c in order else 3, default=0
    )


SCHEMA_VERSION = 1
NAME = "nightly.json"


@dataclass(frozen=True)
class Record:
    """Progress of a night. ``done``: exit codes of the finished steps."""

    night: date
    seed: int
    done: Mapping[str, int] = field(default_factory=dict)

    def with_step(self, step: str, code: int) -> "Record":
        """Return a copy with one more step."""
        return replace(self, done={**self.done, step: code})


def read(out: Path, night: date, seed: int) -> Record:
    """Read tonight's record; empty if it is missing or unreadable."""
    new = Record(night, seed)
    try:
        document = json.loads((out / NAME).read_bytes())
        identity = document["schema_version"], document["night"], document["seed"]
        if identity != (SCHEMA_VERSION, night.isoformat(), seed):
            return new
        return replace(new, done={str(step): int(code) for step, code in document["done"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return new


def write(out: Path, record: Record) -> None:
    """Write the record atomically."""
    document = {"night": record.night.isoformat(), "seed": record.seed, "done": dict(record.done)}
    write_whole(out / NAME, json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=1) + "\n")


REGRESSION_PATCH = "regression.patch"
_FOLDER = "tests/regressions"
_TEST = '''"""Found on {night} by `aftershock explore`, seed {seed}: {failed}."""

from pathlib import Path

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.timeline import from_json
from aftershock.harness.pytest.chaos import Chaos

HERE = Path(__file__).parent
SEED = {seed}


def test_the_plan_is_still_the_one_that_failed() -> None:
    """The plan and seed still give the same faults, targets and times."""
    checked = load_plan(HERE / "plan.yaml")
    now = compile_plan(checked.plan, SEED, checked.source, checked.slo_positions)
    assert from_json((HERE / "timeline.json").read_bytes()).steps == from_json(now.to_json()).steps


@pytest.mark.engine
@pytest.mark.nightly
def test_{name}(chaos: Chaos) -> None:
    """The run failed {failed}; it must not fail again."""
    chaos.run(HERE / "plan.yaml", seed=SEED{allowed})
'''


def patch(entries: Iterable[Entry]) -> str:
    """Return a patch that adds the files of each entry; "" without entries."""
    return "".join(_patch_of_new_file(path, text) for entry in entries for path, text in _regression_files(entry))


def _regression_files(entry: Entry) -> Iterator[tuple[str, str]]:
    checked = load_plan(entry.text)
    frozen = compile_plan(checked.plan, entry.found.seed, "plan.yaml", checked.slo_positions)
    name = re.sub(r"\W+", "_", entry.path.stem)
    uses_exec = any(arm.client == "exec" for workload in checked.plan.workloads for arm in workload.arms.values())
    origin = entry.found
    values = {"name": name, "seed": origin.seed, "night": origin.night, "failed": ", ".join(origin.failed)}
    yield f"{_FOLDER}/{name}/plan.yaml", entry.text
    yield f"{_FOLDER}/{name}/timeline.json", frozen.to_json().decode()
    yield f"{_FOLDER}/{name}/test_{name}.py", _TEST.format(**values, allowed=", allow_exec=True" if uses_exec else "")


def _patch_of_new_file(path: str, text: str) -> str:
    """Return one new file in git's patch format."""
    lines = text.splitlines()
    head = (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n"
    )
    return head + "".join(f"+{line}\n" for line in lines)


SUMMARY = "nightly.md"
_INTERRUPTED = 130
_TRENDING = ("demo", "leader-rotation", "broker-loss")
_NIGHTS_BEFORE = 3
WORSE = "worse"
RunCommand = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Night:
    """Folder, day and seed of a night."""

    out: Path
    today: date
    seed: int


def run_command(words: Sequence[str]) -> int:
    """Run a command with this Python, on our output streams; return its exit code.

    The command has its own process group: a signal reaches it once, through this process, which waits for its clean-up
    and then raises KeyboardInterrupt. Exit code 130 raises KeyboardInterrupt too.
    """
    process = subprocess.Popen([sys.executable, *words], process_group=0)
    received: list[int] = []

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        process.send_signal(number)

    earlier = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if received or code == _INTERRUPTED:
        raise KeyboardInterrupt
    return code


def run_night(night: Night, allotted: Allotted, execute: RunCommand, log: Callable[[str], None]) -> int:
    """Run the remaining steps of tonight; return the night's exit code."""
    night.out.mkdir(parents=True, exist_ok=True)
    done = read(night.out, night.today, night.seed)
    left_s = allotted.takes_s - sum(s for step, s in allotted.seconds.items() if step.name in done.done)
    for step, why in allotted.left_out.items():
        log(f"{step.name}: left out: {why} is too small")
    for step, seconds in allotted.seconds.items():
        if step.name in done.done:
            log(f"{step.name}: finished earlier, exit {done.done[step.name]}")
            continue
        log(f"{step.name}: about {format_duration(seconds)} of {format_duration(left_s)} to go")
        done = done.with_step(step.name, execute(step.words(str(night.out), night.seed, seconds)))
        write(night.out, done)
        left_s -= seconds
    closed, words = _finish_night(night, execute), _compare_plans(night, execute)
    codes = [*done.done.values(), *closed, *(1 for word in words.values() if word == WORSE)]
    write_summary(_summary(night, allotted, done.done, words), night.out, os.environ)
    write_regression_patch(night, log)
    return worst(codes)


def _finish_night(night: Night, execute: RunCommand) -> list[int]:
    """Write tonight's index, add its figures to the ledger, update the trend and prune old runs; return exit codes."""
    out, today = str(night.out), _runs_of_today(night)
    if today:  # the index lists interrupted runs; they are no error of tonight
        execute([*AFTERSHOCK, "report", *(str(run.path) for run in today), "--out", out])
    added = [word for run in reversed(_trend_runs(night)) for word in ("--add", str(run.path))]
    trend = execute([*AFTERSHOCK, "trend", "--ledger", out, "--out", out, *added])
    codes = [0 if trend == 2 else trend]  # noqa: PLR2004 -- INCONCLUSIVE: a few nights are not enough
    homes = [night.out, *sorted(night.out.glob("kips/*"))]
    return [
        *codes,
        *(execute([*AFTERSHOCK, "runs", "prune", "--older-than", "30d", "--out", str(home)]) for home in homes),
    ]


def _runs_of_today(night: Night) -> list[Run]:
    return [run for run in runs_in(night.out) if run.started_at.date() == night.today]


def _trend_runs(night: Night) -> list[Run]:
    """Return tonight's own runs for the trend, without other runs of the day."""
    return [run for run in _runs_of_today(night) if _is_trend_run(run) and _facts(run).get("seed") == night.seed]


def _is_trend_run(run: Run) -> bool:
    """Return True for a judged run (not a rehearsal) of a plan that runs every night."""
    return run.plan in _TRENDING and not _facts(run).get("rehearse") and (run.path / "verdict.json").is_file()


def _facts(run: Run) -> dict[str, Any]:
    return dict(read_json(run.path / "run.json"))


def _compare_plans(night: Night, execute: RunCommand) -> Mapping[str, str]:
    """Map each plan to its comparison with the last three nights, or to the reason why it can't be compared."""
    return {run.plan: _compare_with_nights(run, night, execute) for run in _trend_runs(night) if run.plan in CONTROLS}


def _compare_with_nights(tonight: Run, night: Night, execute: RunCommand) -> str:
    nights = [run for run in runs_in(night.out) if run.plan == tonight.plan and _is_trend_run(run)]
    comparable = (run for run in nights if run.started_at < tonight.started_at and _blocks(run) == _blocks(tonight))
    earlier = list(islice(comparable, _NIGHTS_BEFORE))
    if len(earlier) < _NIGHTS_BEFORE:
        return f"only {len(earlier)} earlier nights"
    options = ("--control", CONTROLS[tonight.plan], *(word for metric in COMPARED for word in ("--metric", metric)))
    codes = {execute([*AFTERSHOCK, "compare", str(run.path), str(tonight.path), *options]) for run in earlier}
    if codes - {0, 1, 2}:
        return "not comparable"
    return WORSE if codes == {1} else "not worse"


def _blocks(run: Run) -> int:
    """Return the run's number of blocks.

    Only runs with the same number can be compared, which excludes most manual runs.
    """
    return len(read_json(run.path / "timeline.json")["blocks_ms"])


def _summary(night: Night, allotted: Allotted, done: Mapping[str, int], compared: Mapping[str, str]) -> str:
    """Return Markdown: each step with its command, tonight compared with other nights, and the matrix."""
    rows = [["step", "exit", "again"], ["---"] * 3]
    rows += [
        [step.name, str(done.get(step.name, "-")), f"`{_repeat_command(step, night, s)}`"]
        for step, s in allotted.seconds.items()
    ]
    steps = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    cells = frame_of(load_plan(find("explore"))).cells
    lines = search.read(night.out / search.NAME).lines
    nights = "".join(f"* {plan} beside each of the last three nights: {word}\n" for plan, word in compared.items())
    title = f"# Night of {night.today}, seed {night.seed}"
    return f"{title}\n\n{steps}\n{nights}* {_run_totals(night.out)}\n\n{summary(cells, lines, night.today)}"


def _run_totals(out: Path) -> str:
    """Return totals of all nights' runs. Their clients have no planted defects, so each FAIL needs attention."""
    count = Counter(run.status for run in runs_in(out))
    return f"of {count.total()} runs in {out}: " + ", ".join(f"{n} {status}" for status, n in sorted(count.items()))


def _repeat_command(step: Step, night: Night, seconds: float) -> str:
    words = step.words(str(night.out), night.seed, seconds)
    command = (
        ["aftershock", *words[len(AFTERSHOCK) :]]
        if tuple(words[: len(AFTERSHOCK)]) == AFTERSHOCK
        else ["python", *words]
    )
    return shlex.join(command)


def write_summary(text: str, out: Path, environment: Mapping[str, str]) -> None:
    """Write ``nightly.md``, and the step summary on a GitHub runner."""
    write_whole(out / SUMMARY, text)
    if environment.get("GITHUB_ACTIONS") == "true" and (page := environment.get("GITHUB_STEP_SUMMARY")):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(text)


def write_regression_patch(night: Night, log: Callable[[str], None]) -> None:
    """Write the patch for tonight's additions to the corpus; remove an old patch."""
    path, tonight = night.out / REGRESSION_PATCH, night.today.isoformat()
    path.unlink(missing_ok=True)
    new = [entry for entry in corpus.read(night.out / corpus.NAME).entries if entry.found.night == tonight]
    if new:
        write_whole(path, patch(new))
        log(f"{len(new)} plans failed tonight; to keep them as tests: git apply {path}")
