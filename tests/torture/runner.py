"""Runner of the torture experiments: trials in forked processes, their outcomes, and the page docs/RELIABILITY.md.

An experiment has a trial, a function of a seed. The runner forks a child for each batch of trials, so that a trial
that crashes, hangs or exhausts its memory is an outcome like any other: the parent reads one JSON line per trial from
a pipe, and a child that ends without the line of a trial has failed that trial. The next child goes on with the next
seed.

Each outcome is a line of ``runs/torture/<experiment>.jsonl``, so trials accumulate over nights. The last outcome of a
seed counts; failed seeds are tried again first. The inputs of a failed trial stay in
``runs/torture/<experiment>-<seed>``. ``figures.json`` beside this file has one entry for each measured experiment, from
which the page is written.
"""

import inspect
import json
import math
import os
import platform
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

ROOT = Path(__file__).parents[2]
FIGURES = Path(__file__).with_name("figures.json")
PAGE = ROOT / "docs" / "RELIABILITY.md"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a trial; ``bad`` says what went wrong, one text for each of the ``cases`` that failed.

    ``seconds`` are measured durations, for example until a fault was healed. ``counts`` are further counts by name.
    """

    bad: Sequence[str] = ()
    cases: int = 1
    seconds: Sequence[float] = ()
    counts: Mapping[str, float] = field(default_factory=dict)


Trial = Callable[[int, Path], Outcome]


@dataclass(frozen=True)
class Experiment:
    """An experiment; ``trials`` is how many trials a whole measurement has.

    Limits of a trial: ``cpu_s`` of CPU time and ``memory_bytes`` of address space of its process (None for no limit),
    and ``wall_s``, after which the process is killed. No trial starts with less than ``takes_s`` of the budget left. A
    child is replaced after ``batch`` trials. ``figure`` names what ``Outcome.bad`` counts, and ``aim`` is the figure
    that we want.
    """

    name: str
    title: str
    figure: str
    aim: str
    trials: int
    trial: Trial
    wall_s: float
    takes_s: float = 0.1
    batch: int = 1
    cpu_s: float | None = None
    memory_bytes: int | None = None


def fork_trials(experiment: Experiment, seeds: Sequence[int], folder: Path) -> Iterator[tuple[int, Outcome]]:
    """Run trials in a forked process, and yield the outcome of each; a trial that ends the process is the last one."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _run_child(experiment, seeds, folder, writer)
    os.close(writer)
    remaining, received, timed_out = list(seeds), b"", False
    try:
        while remaining and not timed_out:
            timed_out = not select.select([reader], [], [], experiment.wall_s)[0]
            data = b"" if timed_out else os.read(reader, 1 << 16)
            if not data:
                break
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                row = json.loads(line)
                remaining.remove(seed := row.pop("seed"))
                yield seed, Outcome(**row)
    except BaseException:
        timed_out = True
        raise
    finally:
        os.close(reader)
        if timed_out:
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with suppress(OSError):  # processes that the trial started
            os.killpg(child, signal.SIGKILL)
    if remaining:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if timed_out:
            why = f"time-out: more than {experiment.wall_s:g} s"
        elif number == signal.SIGPROF:
            why = f"time-out: more than {experiment.cpu_s:g} s of CPU time"
        elif number:
            why = f"crash: the process was ended by {signal.Signals(number).name}"
        else:
            why = f"crash: the process ended with exit code {os.WEXITSTATUS(status)}"
        yield remaining[0], Outcome([why])


def _run_child(experiment: Experiment, seeds: Sequence[int], folder: Path, writer: int) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        if experiment.memory_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (experiment.memory_bytes, experiment.memory_bytes))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, so the code under test can't catch it
        for seed in seeds:
            scratch = scratch_of(experiment, seed, folder)
            shutil.rmtree(scratch, ignore_errors=True)  # a failed trial of the same seed has left its inputs
            scratch.mkdir(parents=True)
            output = os.open(scratch / "trial.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            signal.setitimer(signal.ITIMER_PROF, experiment.cpu_s or 0)
            try:
                outcome = experiment.trial(seed, scratch)
            except MemoryError:
                outcome = Outcome(["out of memory"])
            except Exception:  # noqa: BLE001 -- every exception is a finding
                outcome = Outcome([f"traceback: {traceback.format_exc()[-2000:]}"])
            signal.setitimer(signal.ITIMER_PROF, 0)
            data = json.dumps({"seed": seed, **asdict(outcome)}).encode() + b"\n"
            while data:
                data = data[os.write(writer, data) :]
        status = 0
    finally:
        os._exit(status)


def scratch_of(experiment: Experiment, seed: int, folder: Path) -> Path:
    """Return the folder for the inputs of a trial."""
    return (folder / f"{experiment.name}-{seed}").resolve()


def read_rows(experiment: Experiment, folder: Path) -> dict[int, dict[str, Any]]:
    """Return the last row of each seed from the experiment's JSONL file."""
    path, rows = folder / f"{experiment.name}.jsonl", dict[int, dict[str, Any]]()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):  # a line that a crash tore
            row = json.loads(line)
            rows[row["seed"]] = row
    return rows


def run_experiment(
    experiment: Experiment,
    folder: Path,
    log: Callable[[str], None],
    *,
    seconds: float,
    trials: int | None = None,
    seeds: Sequence[int] | None = None,
) -> dict[int, dict[str, Any]]:
    """Run trials until the time is over or all ``trials`` are done; return the last row of each seed.

    ``seeds`` names the trials, whatever time they take. By default, seeds that failed in an earlier run come
    first, then new ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows, end_s = read_rows(experiment, folder), time.monotonic() + seconds
    if seeds is None:
        failed = [seed for seed, row in rows.items() if row["bad"]]
        first = max(rows, default=-1) + 1
        seeds = [*failed, *range(first, first + (experiment.trials if trials is None else trials))]
    else:
        end_s = math.inf
    left = list(seeds)
    with (folder / f"{experiment.name}.jsonl").open("a", encoding="utf-8") as file:
        while left and time.monotonic() + experiment.takes_s < end_s:
            for seed, outcome in fork_trials(experiment, left[: experiment.batch], folder):
                left.remove(seed)
                at = datetime.now(UTC).isoformat(timespec="seconds")
                row = rows[seed] = {"seed": seed, "at": at, "version": measured_version(), **asdict(outcome)}
                file.write(json.dumps(row) + "\n")
                file.flush()
                for why in outcome.bad:
                    log(f"{experiment.name}: seed {seed}: {why}")
                if outcome.bad:
                    log(
                        f"{experiment.name}: inputs: {scratch_of(experiment, seed, folder)}; {repeat(experiment, seed)}"
                    )
                else:
                    shutil.rmtree(scratch_of(experiment, seed, folder), ignore_errors=True)
                if time.monotonic() + experiment.takes_s >= end_s:
                    break
    return rows


def repeat(experiment: Experiment, seed: int) -> str:
    return f"repeat: tests/torture/run.py --experiments {experiment.name} --seed {seed}"


@cache
def measured_version() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    revision = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"{version('aftershock')} ({revision or 'unknown revision'})"


def figure_of(rows: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry of ``figures.json`` for all rows of an experiment."""
    seconds = [value for row in rows for value in row["seconds"]]
    counts = Counter[str]()
    for row in rows:
        counts.update(row["counts"])
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "trials": len(rows),
        "cases": sum(row["cases"] for row in rows),
        "bad": sum(len(row["bad"]) for row in rows),
        "counts": dict(sorted(counts.items())),
        "seconds": {f"p{q}": round(float(np.percentile(seconds, q)), 2) for q in (50, 99)} if seconds else {},
        "measured": [min(row["at"] for row in rows)[:10], max(row["at"] for row in rows)[:10]],
        "version": max((row["at"], row["version"]) for row in rows)[1],
        "host": f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, Linux {platform.release().split('-')[0]}",
    }


_INTRODUCTION = """# Reliability

What Aftershock itself withstands, measured by the experiments in `tests/torture`. Each experiment tries to make the
harness crash, report a wrong verdict, or leave a fault in force. The programs write this page; `make torture
MINUTES=60` repeats the measurement, and the nightly runs the experiments in turn.

Trials of several nights add up; the last outcome of each seed counts. *Bound* is the 95 % confidence bound of the true
rate if no case failed (3 / cases, the rule of three). A row describes the version and host it was measured with.

| # | experiment | trials | cases | failed | aim | bound | measured |
|---|---|---|---|---|---|---|---|
"""


def write_page(experiments: Mapping[str, Experiment], figures: Mapping[str, Any], page: Path) -> None:
    """Write the page of all experiments; experiments without a figure are listed as not measured."""
    table, details = "", ""
    for number, experiment in sorted(experiments.items()):
        figure = figures.get(experiment.name)
        if figure is None:
            table += f"| {number} | {experiment.title} | 0 | | | {experiment.aim} | | not yet |\n"
            continue
        bound = f"{min(1.0, 3 / figure['cases']):.2g}" if not figure["bad"] else ""
        days = " to ".join(dict.fromkeys(figure["measured"]))
        cells = [
            number,
            experiment.title,
            figure["trials"],
            figure["cases"],
            figure["bad"],
            experiment.aim,
            bound,
            days,
        ]
        table += f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in cells)} |\n"
        figures_text = [f"{name} {value:g}" for name, value in figure["counts"].items()]
        figures_text += [f"{name} {value:g} s" for name, value in figure["seconds"].items()]
        details += f"\n## {number}. {experiment.title}\n\n{_hypothesis(experiment)}\n\nFailed: {experiment.figure}.\n"
        details += f"\nFigures: {', '.join(figures_text)}.\n" if figures_text else ""
        details += f"\nVersion {figure['version']}, on {figure['host']}.\n"
    page.write_text(f"{_INTRODUCTION}{table}{details}", encoding="utf-8")


def _hypothesis(experiment: Experiment) -> str:
    """Return the docstring of the experiment's module, which describes the hypothesis and the method."""
    return inspect.cleandoc(sys.modules[experiment.trial.__module__].__doc__ or "")
