"""Nightly work, started by ``python -m aftershock.harness.nightly [--budget 30m] [--seed N] [--out DIR]``.

The nightly is a list of commands (steps), followed by reports. A step whose shortest duration does not fit the time
budget is omitted; the remaining time extends the selected steps. ``nightly.json`` records finished steps, so an
interrupted night (a date and a seed) continues. A failed step does not end the night; Ctrl-C ends the current step and
the night. The exit code is that of the worst step, from worst to best 3 (ERROR), 1 (FAIL), 2 (INCONCLUSIVE) and 0
(PASS); exit code 130 means interrupted.

Because any two nights differ, tonight counts as worse only if its run of a plan is worse than the runs of each of the
last three nights, when their blocks (repetitions of the plan's faults) are compared.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.faults.search.coverage import summary
from aftershock.faults.search.swarm import frame_of
from aftershock.faults.sections.units import parse_duration_ms
from aftershock.faults.timeline.compile import compile_plan
from aftershock.harness.run.runs import Run, runs_in
from aftershock.harness.search import corpus
from aftershock.harness.search import explore as search
from aftershock.harness.search.corpus import Entry
from aftershock.harness.search.explore import format_duration
from aftershock.results.evidence.files import read_json, write_whole

CLOSING_S = 120.0  # report, trend and summary


@dataclass(frozen=True)
class Step:
    """Step of the nightly, a command with placeholders ``{out}``, ``{seed}`` and ``{seconds}``, and its duration."""

    name: str
    command: tuple[str, ...]
    least_s: float
    most_s: float

    def words(self, out: str, seed: int, seconds: float) -> list[str]:
        return [word.format(out=out, seed=seed, seconds=int(seconds)) for word in self.command]


AFTERSHOCK = ("-m", "aftershock.harness.cli")
_JUNIT = ("--junitxml", "{out}/nightly-junit.xml")
_SUITE = ("-m", "pytest", "-m", "engine or nightly", "tests", "--aftershock-out", "{out}", *_JUNIT)
_TORTURE = ("-m", "aftershock.tests.torture.run", "--rotate", "--seconds", "{seconds}", "--out", "{out}/torture")
_JUDGE_MUTANTS = ("-m", "aftershock.tests.judge_mutants", "run", "--seconds", "{seconds}")
_SEED_AND_OUT = ("--seed", "{seed}", "--out", "{out}")
CONTROLS = {"leader-rotation": "metadata"}
"""Plans whose runs are compared with earlier nights, and the control arm of each plan."""
COMPARED = (*(f"{op}.latency {q} in fault" for op in ("produce", "consume") for q in ("p50", "p95")), "recovery")
"""Metrics that are compared with earlier nights, because they vary little from night to night."""


def _plan(name: str, takes_s: float, *options: str) -> Step:
    title = f"{name} rehearsed" if "--rehearse" in options else name
    return Step(title, (*AFTERSHOCK, "run", name, *options, *_SEED_AND_OUT), takes_s, takes_s)


STEPS = (
    Step("explore", (*AFTERSHOCK, "explore", "--budget", "{seconds}s", *_SEED_AND_OUT), 300, 1_200),
    _plan("leader-rotation", 340, "--set", "blocks=8"),
    _plan("demo", 150),
    Step("trials", (*AFTERSHOCK, "kip", "all", "--budget", "{seconds}s", *_SEED_AND_OUT), 480, 3_600),
    _plan("broker-loss", 180),
    Step("zoo", (*AFTERSHOCK, "zoo", "all", "--budget", "{seconds}s", *_SEED_AND_OUT), 300, 7_200),
    _plan("demo", 150, "--rehearse"),
    _plan("leader-rotation", 240, "--rehearse"),
    _plan("broker-loss", 180, "--rehearse"),
    Step("judge mutants", _JUDGE_MUTANTS, 600, 1_800),
    Step("suite", _SUITE, 7_200, 7_200),
    Step("torture", _TORTURE, 900, 9_600),  # the soak takes more than two hours
)


@dataclass(frozen=True)
class Allotted:
    """Time in seconds for each selected step of the nightly; ``left_out`` has the reason for each omitted step."""

    seconds: Mapping[Step, float]
    left_out: Mapping[Step, str]

    @property
    def takes_s(self) -> float:
        return sum(self.seconds.values()) + CLOSING_S


def allot(steps: Sequence[Step], budget_s: float | None) -> Allotted:
    """Distribute a time budget over the nightly's steps; raise AftershockError if no step fits the budget."""
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
        raise AftershockError(f"{problem}; use --budget {int(least_s / 60) + 1}m or more")
    extra_s = sum(step.most_s - step.least_s for step in selected)
    share = min(1.0, left_s / extra_s) if extra_s else 0.0
    left_out = {step: f"a budget of {format_duration(budget_s)}" for step in steps if step not in selected}
    return Allotted({step: step.least_s + share * (step.most_s - step.least_s) for step in selected}, left_out)


def worst(codes: Sequence[int]) -> int:
    """Return the worst exit code, in the order 3 (ERROR or unknown code), 1 (FAIL), 2 (INCONCLUSIVE), 0 (PASS)."""
    order = (0, 2, 1, 3)
    return max((code if code in order else 3 for code in codes), key=order.index, default=0)


SCHEMA_VERSION = 1
NAME = "nightly.json"


@dataclass(frozen=True)
class Night:
    out: Path
    today: date
    seed: int


def read_finished(night: Night) -> dict[str, int]:
    """Return the exit code of each finished step of this night, from ``nightly.json``."""
    try:
        document = json.loads((night.out / NAME).read_bytes())
        identity = document["schema_version"], document["night"], document["seed"]
        if identity != (SCHEMA_VERSION, night.today.isoformat(), night.seed):
            return {}
        return {str(step): int(code) for step, code in document["done"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


REGRESSION_PATCH = "regression.patch"
_TEST = '''"""Regression test of a plan that failed in a search by `aftershock explore`."""

from pathlib import Path

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.timeline import from_json
from aftershock.harness.pytest.chaos import Chaos

HERE = Path(__file__).parent
NIGHT = {night!r}
SEED = {seed!r}
FAILED = {failed!r}


def test_the_plan_is_still_the_one_that_failed() -> None:
    """The plan and seed still give the same faults, targets and times."""
    checked = load_plan(HERE / "plan.yaml")
    now = compile_plan(checked.plan, SEED, checked.source, checked.slo_positions)
    assert from_json((HERE / "timeline.json").read_bytes()).steps == from_json(now.to_json()).steps


@pytest.mark.engine
@pytest.mark.nightly
def test_{name}(chaos: Chaos) -> None:
    """The run failed the checks FAILED in NIGHT; it must not fail again."""
{note}    chaos.run(HERE / "plan.yaml", seed=SEED)
'''


def patch(entries: Iterable[Entry]) -> str:
    """Return a Git patch that adds a regression test for each of the failing plans ``entries`` of the corpus.

    A corpus may come from a stranger, so its words appear in the tests only as quoted constants.
    """
    result = ""
    for entry in entries:
        checked, origin = load_plan(entry.text), entry.origin
        timeline = compile_plan(checked.plan, origin.seed, "plan.yaml", checked.slo_positions)
        name = re.sub(r"\W+", "_", entry.path.stem, flags=re.ASCII)
        uses_exec = any(arm.client == "exec" for workload in checked.plan.workloads for arm in workload.arms.values())
        test = _TEST.format(
            name=name,
            seed=origin.seed,
            night=origin.night,
            failed=origin.failed,
            note="    # the plan starts programs: add allow_exec=True if you trust it\n" if uses_exec else "",
        )
        files = {"plan.yaml": entry.text, "timeline.json": timeline.to_json().decode(), f"test_{name}.py": test}
        for file, text in files.items():
            path, lines = f"tests/regressions/{name}/{file}", text.splitlines()
            result += f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
            result += f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
    return result


SUMMARY = "nightly.md"
_INTERRUPTED = 130
_TREND_PLANS = ("demo", "leader-rotation", "broker-loss")
_NIGHTS_BEFORE = 3
WORSE = "worse"
RunCommand = Callable[[Sequence[str]], int]


def run_command(words: Sequence[str]) -> int:
    """Run a command with this Python interpreter; return the command's exit code.

    Ctrl-C, SIGTERM or SIGHUP is passed on to the command, and after the command's clean-up raises KeyboardInterrupt.
    Exit code 130 of the command also raises KeyboardInterrupt.
    """
    process = subprocess.Popen([sys.executable, *words], process_group=0)
    received: list[int] = []

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        process.send_signal(number)

    earlier = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        code = process.wait()
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if received or code == _INTERRUPTED:
        raise KeyboardInterrupt
    return code


def run_night(night: Night, allotted: Allotted, execute: RunCommand, log: Callable[[str], None]) -> int:
    """Run the unfinished steps of the nightly, then the reports; return the exit code of the nightly."""
    out = str(night.out)
    night.out.mkdir(parents=True, exist_ok=True)
    finished = read_finished(night)
    left_s = allotted.takes_s - sum(s for step, s in allotted.seconds.items() if step.name in finished)
    for step, why in allotted.left_out.items():
        log(f"the step {step.name} is left out, because {why} is too small")
    for step, seconds in allotted.seconds.items():
        if step.name in finished:
            log(f"{step.name}: finished earlier, exit {finished[step.name]}")
            continue
        remaining = f"the remaining night {format_duration(left_s)}"
        log(f"the step {step.name} takes about {format_duration(seconds)}, {remaining}")
        finished[step.name] = execute(step.words(out, night.seed, seconds))
        document = {"schema_version": SCHEMA_VERSION, "night": night.today.isoformat(), "seed": night.seed}
        write_whole(night.out / NAME, json.dumps({**document, "done": finished}, indent=1) + "\n")
        left_s -= seconds

    codes = [*finished.values()]
    today = [run for run in runs_in(night.out) if run.started_at.date() == night.today]
    if today:  # an interrupted run makes `report` fail, which is no error of tonight
        execute([*AFTERSHOCK, "report", *(str(run.path) for run in today), "--out", out])
    # tonight's own runs, without other runs of the day
    trend_runs = [run for run in today if _is_trend_run(run) and _facts(run).get("seed") == night.seed]
    added = [word for run in reversed(trend_runs) for word in ("--add", str(run.path))]
    trend = execute([*AFTERSHOCK, "trend", "--ledger", out, "--out", out, *added])
    codes.append(0 if trend == 2 else trend)  # noqa: PLR2004 -- INCONCLUSIVE: a few nights are not enough
    prune = (*AFTERSHOCK, "runs", "prune", "--older-than", "30d", "--out")
    codes += [execute([*prune, str(home)]) for home in (night.out, *sorted(night.out.glob("kips/*")))]
    compared = {run.plan: _compare_with_nights(run, night, execute) for run in trend_runs if run.plan in CONTROLS}
    codes += [1 for word in compared.values() if word == WORSE]
    write_summary(_summary(night, allotted, finished, compared), night.out, os.environ)
    patch_path = night.out / REGRESSION_PATCH
    patch_path.unlink(missing_ok=True)
    known = corpus.read(night.out / corpus.NAME).entries
    if new := [entry for entry in known if entry.origin.night == night.today.isoformat()]:
        write_whole(patch_path, patch(new))
        log(f"{len(new)} plans failed tonight; to add tests that repeat these plans: git apply {patch_path}")
    return worst(codes)


def _is_trend_run(run: Run) -> bool:
    return run.plan in _TREND_PLANS and not _facts(run).get("rehearse") and (run.path / "verdict.json").is_file()


def _facts(run: Run) -> dict[str, Any]:
    return dict(read_json(run.path / "run.json"))


def _compare_with_nights(tonight: Run, night: Night, execute: RunCommand) -> str:
    """Compare tonight's run of a plan with the runs of the last three nights; return the result for the summary."""
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
    """Return how often the plan's faults were repeated in a run; only runs with equal numbers are compared."""
    return len(read_json(run.path / "timeline.json")["blocks_ms"])


def _summary(night: Night, allotted: Allotted, finished: Mapping[str, int], compared: Mapping[str, str]) -> str:
    """Return the nightly's Markdown summary of exit codes, comparison with earlier nights, and coverage of faults."""
    rows = [["step", "exit", "again"], ["---"] * 3]
    for step, seconds in allotted.seconds.items():
        words = step.words(str(night.out), night.seed, seconds)
        is_ours = tuple(words[: len(AFTERSHOCK)]) == AFTERSHOCK
        command = shlex.join(["aftershock", *words[len(AFTERSHOCK) :]] if is_ours else ["python", *words])
        rows.append([step.name, str(finished.get(step.name, "-")), f"`{command}`"])
    steps = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    cells = frame_of(load_plan(find("explore"))).cells
    lines = search.read(night.out / search.NAME).lines
    sentence = "* {} compared with each of the last three nights: {}\n"
    nights = "".join(sentence.format(plan, word) for plan, word in compared.items())
    # totals of all nights; the clients have no planted defects, so each FAIL needs attention
    count = Counter(run.status for run in runs_in(night.out))
    totals = ", ".join(f"{n} {status}" for status, n in sorted(count.items()))
    totals = f"of {count.total()} runs in {night.out}: {totals}"
    title = f"# Night of {night.today}, seed {night.seed}"
    return f"{title}\n\n{steps}\n{nights}* {totals}\n\n{summary(cells, lines, night.today)}"


def write_summary(text: str, out: Path, environment: Mapping[str, str]) -> None:
    """Write the nightly's summary to ``nightly.md``, and in GitHub Actions also to the job summary."""
    write_whole(out / SUMMARY, text)
    if environment.get("GITHUB_ACTIONS") == "true" and (page := environment.get("GITHUB_STEP_SUMMARY")):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(text)


def main() -> int:
    today = datetime.now(UTC).date()
    parser = argparse.ArgumentParser(prog="ci/nightly", description="Run tonight's steps.")
    parser.add_argument("--budget", metavar="TIME", help="time budget, for example 30m; default: the time of all steps")
    seed_help = "seed of the night's random choices (default: the date, for example 20261122)"
    parser.add_argument("--seed", type=int, default=int(today.strftime("%Y%m%d")), help=seed_help)
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for the runs")
    arguments = parser.parse_args()
    try:
        allotted = allot(STEPS, parse_duration_ms(arguments.budget) / 1000 if arguments.budget else None)
        _log(f"all steps take about {format_duration(allotted.takes_s)}; finished steps are skipped")
        return run_night(Night(arguments.out, today, arguments.seed), allotted, run_command, _log)
    except (AftershockError, ValueError) as error:
        _log(str(error))
        return 3
    except KeyboardInterrupt:
        return _INTERRUPTED


def _log(line: str) -> None:
    sys.stderr.write(f"nightly: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
