"""One night, from the first step to the summary. Every step is a command that anybody can repeat.

Rules. A step that fails ends nothing; one that is done is not done again tonight. In the end, whatever happened: the
index of tonight's runs, what they measured in the ledger, the trend, the matrix of fault and client, and where
something failed ``regression.patch``. Ctrl-C ends the step that runs, and the night.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from aftershock.faults.check import load_plan
from aftershock.faults.coverage.clients import summary
from aftershock.faults.plans import find
from aftershock.faults.swarm.frame import frame_of
from aftershock.harness import corpus, regression
from aftershock.harness.explore import ledger
from aftershock.harness.explore.budget import shown
from aftershock.harness.nightly import record
from aftershock.harness.nightly.steps import AFTERSHOCK, Allotted, Step, worst
from aftershock.harness.runs import Run, runs_in
from aftershock.results.files import read_json, write_whole

SUMMARY = "nightly.md"
_INTERRUPTED = 130
_TRENDING = ("demo", "leader-rotation", "broker-loss")
Do = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Night:
    """Where and when."""

    out: Path
    today: date
    seed: int


def do(words: Sequence[str]) -> int:
    """Runs a command with this Python, what it says going where ours does; its exit code. KeyboardInterrupt for 130."""
    code = subprocess.run([sys.executable, *words], check=False).returncode
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    return code


def go(night: Night, allotted: Allotted, run: Do, say: Callable[[str], None]) -> int:
    """Do what is left of tonight; the night's exit code."""
    night.out.mkdir(parents=True, exist_ok=True)
    done = record.read(night.out, night.today, night.seed)
    left_s = allotted.takes_s - sum(s for step, s in allotted.seconds.items() if step.name in done.done)
    for step, why in allotted.left_out.items():
        say(f"{step.name}: left out: {why} is too small for it")
    for step, seconds in allotted.seconds.items():
        if step.name in done.done:
            say(f"{step.name}: was done before, exit {done.done[step.name]}")
            continue
        say(f"{step.name}: about {shown(seconds)} of {shown(left_s)} to go")
        done = done.having(step.name, run(step.words(str(night.out), night.seed, seconds)))
        record.write(night.out, done)
        left_s -= seconds
    codes = [*done.done.values(), *_closed(night, run)]
    tell(_summary(night, allotted, done.done), night.out, os.environ)
    offer(night, say)
    return worst(codes)


def _closed(night: Night, run: Do) -> list[int]:
    """Tonight's runs on one page, their figures beside those of the nights before; old runs go."""
    out, tonight = str(night.out), [one for one in runs_in(night.out) if one.started_at.date() == night.today]
    codes = [run([*AFTERSHOCK, "report", *(str(one.path) for one in tonight), "--out", out])] if tonight else []
    added = [word for one in reversed(tonight) if _trends(one, night) for word in ("--add", str(one.path))]
    trend = run([*AFTERSHOCK, "trend", "--ledger", out, "--out", out, *added])
    codes.append(0 if trend == 2 else trend)  # noqa: PLR2004 -- a few nights decide nothing
    return [*codes, run([*AFTERSHOCK, "runs", "prune", "--older-than", "30d", "--out", out])]


def _trends(one: Run, night: Night) -> bool:
    """Whether it is a plan of tonight's, judged: what others ran today, or rehearsed, is no night's figure."""
    facts = read_json(one.path / "run.json")
    own = one.plan in _TRENDING and facts.get("seed") == night.seed and not facts.get("rehearse")
    return own and (one.path / "verdict.json").is_file()


def _summary(night: Night, allotted: Allotted, done: Mapping[str, int]) -> str:
    """Markdown: each step with the line that repeats it, then the matrix."""
    rows = [["step", "exit", "again"], ["---"] * 3]
    rows += [
        [step.name, str(done.get(step.name, "-")), f"`{_again(step, night, s)}`"]
        for step, s in allotted.seconds.items()
    ]
    steps = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    cells = frame_of(load_plan(find("explore"))).cells
    lines = ledger.read(night.out / ledger.NAME).lines
    return f"# Night of {night.today}, seed {night.seed}\n\n{steps}\n{summary(cells, lines, night.today)}"


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
    path, tonight = night.out / regression.NAME, night.today.isoformat()
    path.unlink(missing_ok=True)
    new = [entry for entry in corpus.read(night.out / corpus.NAME).entries if entry.found.night == tonight]
    if new:
        write_whole(path, regression.patch(new))
        say(f"{len(new)} plans failed tonight; to keep them as tests: git apply {path}")
