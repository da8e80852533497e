"""What a night has to do, and what of it a budget pays for. Pure.

Rules. Steps are taken in their order, the most telling first; one that doesn't fit at its shortest is left out, with
its reason, and those after it are still tried. What is left over then lengthens those that can use it, in proportion to
what they want. Without a budget all are done, each for as long as it wants.

What of a night is done, in ``nightly.json``, so that one that was interrupted goes on where it was.

A night is a day and a seed; another day, or another seed, begins anew.

``regression.patch``: what a red night offers, for ``git apply``: the plans that failed, frozen, and a test for each.

::

    tests/regressions/<name>/plan.yaml         as it failed
                             timeline.json     what that seed made of it
                             test_<name>.py    holds the two together, and runs the plan

The test is red until what it found is mended. Pure: entries of the corpus in, the patch as text out.

One night, from the first step to the summary. Every step is a command that anybody can repeat.

Rules. A step that fails ends nothing; one that is done is not done again tonight. In the end, whatever happened: the
index of tonight's runs, what they measured in the ledger, the trend, whether tonight is worse than the nights before,
the matrix of fault and client, and where something failed ``regression.patch``. Ctrl-C ends the step that runs, and the
night.

A trend needs weeks. Block by block two nights can be told apart at once, but nights differ anyway; so tonight is called
worse only where it is so than each of the last three.
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
from aftershock.harness.labs.explore.search import shown
from aftershock.harness.run.runs import Run, runs_in
from aftershock.results.evidence.files import read_json, write_whole

CLOSING_S = 120.0  # report, trend and summary


@dataclass(frozen=True)
class Step:
    """A command of ours, and what it takes, least and most; ``{out}``, ``{seed}`` and ``{seconds}`` are the night's."""

    name: str
    command: tuple[str, ...]
    least_s: float
    most_s: float

    def words(self, out: str, seed: int, seconds: float) -> list[str]:
        """The command line."""
        return [word.format(out=out, seed=seed, seconds=int(seconds)) for word in self.command]


AFTERSHOCK = ("-m", "aftershock.harness.cli")
_JUNIT = ("--junitxml", "{out}/nightly-junit.xml")
_SUITE = ("-m", "pytest", "-m", "engine or nightly", "tests", "--aftershock-out", "{out}", *_JUNIT)
_NAMED = ("--seed", "{seed}", "--out", "{out}")


CONTROLS = {"leader-rotation": "metadata"}
"""Plans that are compared with those of other nights, block by block, and the arm by whose values they are divided."""
COMPARED = (*(f"{op}.latency {q} in fault" for op in ("produce", "consume") for q in ("p50", "p95")), "recovery")
"""By what: medians are steady from night to night, and what a fault itself costs is not."""
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
    """How many seconds each step has, in their order; ``left_out``: why others have none."""

    seconds: Mapping[Step, float]
    left_out: Mapping[Step, str]

    @property
    def takes_s(self) -> float:
        """All of it."""
        return sum(self.seconds.values()) + CLOSING_S


def allot(steps: Sequence[Step], budget_s: float | None) -> Allotted:
    """What to do. AftershockError where the budget pays for no step at all."""
    if budget_s is None:
        return Allotted({step: step.most_s for step in steps}, {})
    taken: list[Step] = []
    left_s = budget_s - CLOSING_S
    for step in steps:
        if step.least_s <= left_s:
            taken.append(step)
            left_s -= step.least_s
    if not taken:
        least_s = min(step.least_s for step in steps) + CLOSING_S
        what = f"a budget of {shown(budget_s)} pays for no step of a night"
        raise AftershockError(f"{what}: give --budget {int(least_s / 60) + 1}m or more")
    wanted_s = sum(step.most_s - step.least_s for step in taken)
    share = min(1.0, left_s / wanted_s) if wanted_s else 0.0
    left_out = {step: f"a budget of {shown(budget_s)}" for step in steps if step not in taken}
    return Allotted({step: step.least_s + share * (step.most_s - step.least_s) for step in taken}, left_out)


def worst(codes: Sequence[int]) -> int:
    """The worst of exit codes: 3 ERROR, 1 FAIL, 2 INCONCLUSIVE, 0; any other is an ERROR."""
    order = (0, 2, 1)
    return max(
        (code if code in order else 3 for code in codes), key=lambda c: order.index(c) if c in order else 3, default=0
    )


SCHEMA_VERSION = 1
NAME = "nightly.json"


@dataclass(frozen=True)
class Record:
    """``done``: the exit code of each step that is over."""

    night: date
    seed: int
    done: Mapping[str, int] = field(default_factory=dict)

    def having(self, step: str, code: int) -> "Record":
        """With one more step."""
        return replace(self, done={**self.done, step: code})


def read(out: Path, night: date, seed: int) -> Record:
    """Tonight's record; an empty one where there is none, or none that can be read."""
    new = Record(night, seed)
    try:
        said = json.loads((out / NAME).read_bytes())
        known = (said["schema_version"], said["night"], said["seed"]) == (SCHEMA_VERSION, night.isoformat(), seed)
        return replace(new, done={str(step): int(code) for step, code in said["done"].items()}) if known else new
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return new


def write(out: Path, record: Record) -> None:
    """Write it whole."""
    told = {"night": record.night.isoformat(), "seed": record.seed, "done": dict(record.done)}
    write_whole(out / NAME, json.dumps({"schema_version": SCHEMA_VERSION, **told}, indent=1) + "\n")


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
    """The same plan and seed still strike whom they struck, when they did."""
    checked = load_plan(HERE / "plan.yaml")
    now = compile_plan(checked.plan, SEED, checked.source, checked.slo_positions)
    assert from_json((HERE / "timeline.json").read_bytes()).steps == from_json(now.to_json()).steps


@pytest.mark.engine
@pytest.mark.nightly
def test_{name}(chaos: Chaos) -> None:
    """It failed {failed}; it must not again."""
    chaos.run(HERE / "plan.yaml", seed=SEED{allowed})
'''


def patch(entries: Iterable[Entry]) -> str:
    """New files for each; "" for none."""
    return "".join(_added(path, text) for entry in entries for path, text in _files(entry))


def _files(entry: Entry) -> Iterator[tuple[str, str]]:
    checked = load_plan(entry.text)
    frozen = compile_plan(checked.plan, entry.found.seed, "plan.yaml", checked.slo_positions)
    name = re.sub(r"\W+", "_", entry.path.stem)
    own = any(arm.client == "exec" for workload in checked.plan.workloads for arm in workload.arms.values())
    said = {"name": name, "seed": entry.found.seed, "night": entry.found.night, "failed": ", ".join(entry.found.failed)}
    yield f"{_FOLDER}/{name}/plan.yaml", entry.text
    yield f"{_FOLDER}/{name}/timeline.json", frozen.to_json().decode()
    yield f"{_FOLDER}/{name}/test_{name}.py", _TEST.format(**said, allowed=", allow_exec=True" if own else "")


def _added(path: str, text: str) -> str:
    """One file in git's format for a patch."""
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
Do = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Night:
    """Where and when."""

    out: Path
    today: date
    seed: int


def do(words: Sequence[str]) -> int:
    """Runs a command with this Python, what it says going where ours does; its exit code.

    It is in a process group of its own: a signal reaches it once, through us, and we wait until it has tidied up.
    Raises KeyboardInterrupt then, as for one that ends with 130.
    """
    process = subprocess.Popen([sys.executable, *words], process_group=0)
    heard: list[int] = []

    def pass_on(number: int, _: object) -> None:
        heard.append(number)
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard or code == _INTERRUPTED:
        raise KeyboardInterrupt
    return code


def go(night: Night, allotted: Allotted, run: Do, say: Callable[[str], None]) -> int:
    """Do what is left of tonight; the night's exit code."""
    night.out.mkdir(parents=True, exist_ok=True)
    done = read(night.out, night.today, night.seed)
    left_s = allotted.takes_s - sum(s for step, s in allotted.seconds.items() if step.name in done.done)
    for step, why in allotted.left_out.items():
        say(f"{step.name}: left out: {why} is too small for it")
    for step, seconds in allotted.seconds.items():
        if step.name in done.done:
            say(f"{step.name}: was done before, exit {done.done[step.name]}")
            continue
        say(f"{step.name}: about {shown(seconds)} of {shown(left_s)} to go")
        done = done.having(step.name, run(step.words(str(night.out), night.seed, seconds)))
        write(night.out, done)
        left_s -= seconds
    closed, words = _closed(night, run), _compared(night, run)
    codes = [*done.done.values(), *closed, *(1 for word in words.values() if word == WORSE)]
    tell(_summary(night, allotted, done.done, words), night.out, os.environ)
    offer(night, say)
    return worst(codes)


def _closed(night: Night, run: Do) -> list[int]:
    """Tonight's runs on one page, their figures beside those of the nights before; old runs go."""
    out, today = str(night.out), _of_today(night)
    if today:  # what was interrupted is told, and no error of tonight
        run([*AFTERSHOCK, "report", *(str(one.path) for one in today), "--out", out])
    added = [word for one in reversed(_figures(night)) for word in ("--add", str(one.path))]
    trend = run([*AFTERSHOCK, "trend", "--ledger", out, "--out", out, *added])
    codes = [0 if trend == 2 else trend]  # noqa: PLR2004 -- a few nights decide nothing
    homes = [night.out, *sorted(night.out.glob("kips/*"))]
    return [*codes, *(run([*AFTERSHOCK, "runs", "prune", "--older-than", "30d", "--out", str(home)]) for home in homes)]


def _of_today(night: Night) -> list[Run]:
    return [one for one in runs_in(night.out) if one.started_at.date() == night.today]


def _figures(night: Night) -> list[Run]:
    """Tonight's own: what others ran today is no night's figure."""
    return [one for one in _of_today(night) if _trends(one) and _facts(one).get("seed") == night.seed]


def _trends(one: Run) -> bool:
    """Whether it is one of the plans that are run each night, judged, and not rehearsed."""
    return one.plan in _TRENDING and not _facts(one).get("rehearse") and (one.path / "verdict.json").is_file()


def _facts(one: Run) -> dict[str, Any]:
    return dict(read_json(one.path / "run.json"))


def _compared(night: Night, run: Do) -> Mapping[str, str]:
    """Plan → whether tonight is worse than each of the last three nights, or why that can't be said."""
    return {one.plan: _beside(one, night, run) for one in _figures(night) if one.plan in CONTROLS}


def _beside(tonight: Run, night: Night, run: Do) -> str:
    nights = [one for one in runs_in(night.out) if one.plan == tonight.plan and _trends(one)]
    alike = (one for one in nights if one.started_at < tonight.started_at and _blocks(one) == _blocks(tonight))
    before = list(islice(alike, _NIGHTS_BEFORE))
    if len(before) < _NIGHTS_BEFORE:
        return f"there are {len(before)}"
    by = ("--control", CONTROLS[tonight.plan], *(word for metric in COMPARED for word in ("--metric", metric)))
    codes = {run([*AFTERSHOCK, "compare", str(one.path), str(tonight.path), *by]) for one in before}
    if codes - {0, 1, 2}:
        return "they are no comparison"
    return WORSE if codes == {1} else "not worse"


def _blocks(one: Run) -> int:
    """In how many it ran. One that was run in other blocks, by hand perhaps, is no night to compare with."""
    return len(read_json(one.path / "timeline.json")["blocks_ms"])


def _summary(night: Night, allotted: Allotted, done: Mapping[str, int], compared: Mapping[str, str]) -> str:
    """Markdown: each step with the line that repeats it, tonight beside other nights, then the matrix."""
    rows = [["step", "exit", "again"], ["---"] * 3]
    rows += [
        [step.name, str(done.get(step.name, "-")), f"`{_again(step, night, s)}`"]
        for step, s in allotted.seconds.items()
    ]
    steps = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    cells = frame_of(load_plan(find("explore"))).cells
    lines = search.read(night.out / search.NAME).lines
    nights = "".join(f"* {plan} beside each of the last three nights: {word}\n" for plan, word in compared.items())
    title = f"# Night of {night.today}, seed {night.seed}"
    return f"{title}\n\n{steps}\n{nights}* {_alarms(night.out)}\n\n{summary(cells, lines, night.today)}"


def _alarms(out: Path) -> str:
    """What became of all the nights' runs. Their clients have no defect that we planted, so a FAIL is news."""
    count = Counter(one.status for one in runs_in(out))
    return f"of {count.total()} runs in {out}: " + ", ".join(f"{n} {status}" for status, n in sorted(count.items()))


def _again(step: Step, night: Night, seconds: float) -> str:
    words = step.words(str(night.out), night.seed, seconds)
    known = (
        ["aftershock", *words[len(AFTERSHOCK) :]]
        if tuple(words[: len(AFTERSHOCK)]) == AFTERSHOCK
        else ["python", *words]
    )
    return shlex.join(known)


def tell(text: str, out: Path, environment: Mapping[str, str]) -> None:
    """To ``nightly.md``, and to the step summary where GitHub's runner asks for one."""
    write_whole(out / SUMMARY, text)
    if environment.get("GITHUB_ACTIONS") == "true" and (page := environment.get("GITHUB_STEP_SUMMARY")):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(text)


def offer(night: Night, say: Callable[[str], None]) -> None:
    """Write the patch for what tonight put into the corpus; an old one goes."""
    path, tonight = night.out / REGRESSION_PATCH, night.today.isoformat()
    path.unlink(missing_ok=True)
    new = [entry for entry in corpus.read(night.out / corpus.NAME).entries if entry.found.night == tonight]
    if new:
        write_whole(path, patch(new))
        say(f"{len(new)} plans failed tonight; to keep them as tests: git apply {path}")
