"""One night, from the first step to the summary. Every step is a command that anybody can repeat.

Rules. A step that fails ends nothing; one that is done is not done again tonight. In the end, whatever happened: the
index of tonight's runs, what they measured in the ledger, the trend, whether tonight is worse than the nights before,
the matrix of fault and client, and where something failed ``regression.patch``. Ctrl-C ends the step that runs, and the
night.

A trend needs weeks. Block by block two nights can be told apart at once, but nights differ anyway; so tonight is called
worse only where it is so than each of the last three.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from aftershock.faults.check import load_plan
from aftershock.faults.coverage.clients import summary
from aftershock.faults.plans import find
from aftershock.faults.swarm.frame import frame_of
from aftershock.harness import corpus, regression
from aftershock.harness.explore import ledger
from aftershock.harness.explore.budget import shown
from aftershock.harness.nightly import record
from aftershock.harness.nightly.steps import AFTERSHOCK, COMPARED, CONTROLS, Allotted, Step, worst
from aftershock.harness.runs import Run, runs_in
from aftershock.results.files import read_json, write_whole

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
    lines = ledger.read(night.out / ledger.NAME).lines
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
    path, tonight = night.out / regression.NAME, night.today.isoformat()
    path.unlink(missing_ok=True)
    new = [entry for entry in corpus.read(night.out / corpus.NAME).entries if entry.found.night == tonight]
    if new:
        write_whole(path, regression.patch(new))
        say(f"{len(new)} plans failed tonight; to keep them as tests: git apply {path}")
