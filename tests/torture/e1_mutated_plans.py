"""Hypothesis: no plan of a stranger, with whatever options, makes a command crash, hang or exhaust the memory.

Method: a seed damages a plan (values of other types, long and odd names of topics, groups and arms, patterns, nested
repetitions, torn text; `tests/mutated_plans.py`); odd seeds only change names and patterns. Every command that takes a
plan then reads it, with random values of all its options, of which half are valid: `plan check`, `plan show`, `run`,
`explore`, `cluster up`, `images --for` and `doctor`. Each runs as `aftershock` does, in a forked process with 1 GiB of
address space and 5 s of CPU time, and with a Docker engine that does not answer, so that nothing starts. Exit codes are
0 and 3. A refusal needs a message, of one line for each problem, and a plan that `plan check` refuses, or that can't be
compiled, is refused by all commands.
"""

import io
import random
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.cli import __main__ as cli
from aftershock.tests.mutated_plans import NAMES, VALUES, mutated_plans
from aftershock.tests.torture.runner import Experiment, Outcome

COMMAND_CPU_S = 5.0
NO_ENGINE = "unix:///nonexistent/docker.sock"
OPTIONS = {
    "plan check": ("--set",),
    "plan show": ("--set", "--seed"),
    "run": (
        *("--set", "--seed", "--out", "--kafka", "--spark", "--secret", "--allow-attach"),
        *("--json", "--keep", "--rehearse", "--allow-exec", "--strict"),
    ),
    "explore": ("--seed", "--out", "--budget", "--spark", "--json", "--allow-exec"),
    "cluster up": ("--kafka", "--out", "--allow-exec"),
    "images": ("--kafka", "--ensure"),
    "doctor": ("--set", "--out"),
}
"""Options of the commands; ``--calibrate`` of `doctor`, which measures the host for 30 s, and ``--check`` of `images`,
which excludes a plan, are left out."""
VALID = {
    "--set": ("timing.steady=5s", "topics.0.partitions=6", "faults=[]", "timing={warmup: 1s}", "name=other"),
    "--seed": ("0", "1", "4294967296", "-1"),
    "--kafka": ("4.1.2", "3.9.2"),
    "--spark": ("local[1]", "sc://localhost:15002"),
    "--budget": ("20m", "1s", "0s"),
    "--secret": ("P", "ca.pem"),
    "--allow-attach": ("z:1",),
}
PATHS = ("topics.0.name", "topics.0", "workloads.0.arms", "workloads.9.x", "cluster.attach.bootstrap", "slo.0", "", ".")
_FLAGS = {"--json", "--keep", "--rehearse", "--allow-exec", "--strict", "--ensure"}


def arguments(command: str, source: random.Random, scratch: Path) -> list[str]:
    """Return random options of a command; half of their values are valid, and a run never attaches to a cluster."""
    words = list[str]()
    for option in OPTIONS[command]:
        if source.random() < 0.5:
            continue
        text = source.choice((*NAMES, *(value for value in VALUES if isinstance(value, str)), "9" * 5000))
        if option in _FLAGS:
            words.append(option)
        elif option == "--out":
            words += [option, str(scratch / source.choice(("runs", "runs", "plan.yaml", text.replace("\0", ""))))]
        elif source.random() < 0.5:
            words += [option, source.choice(VALID[option])]
        elif option == "--set":
            words += [option, f"{source.choice(PATHS)}={text}"]
        elif option != "--allow-attach":
            words += [option, text]
    return words


def perform(words: Sequence[str]) -> tuple[int, str, str]:
    """Run a command of `aftershock` in this process; return its exit code and output."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    code: object = None
    signal.setitimer(signal.ITIMER_PROF, COMMAND_CPU_S)
    with (
        redirect_stdout(streams[0]),
        redirect_stderr(streams[1]),
        patch.object(sys, "argv", ["aftershock", *words]),
        patch.dict("os.environ", {"DOCKER_HOST": NO_ENGINE}),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    texts = []
    for stream in streams:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return code if isinstance(code, int) else -1, texts[0], texts[1]


def problems(words: Sequence[str], code: int, stdout: str, stderr: str, *, refused: bool) -> list[str]:
    """Return what is wrong with the answer of a command to a plan, which ``refused`` says to be invalid."""
    what, bad = " ".join(words)[:300], []
    if "Traceback" in stderr or "MemoryError" in stderr:
        bad.append(f"{what}: {stderr[-1500:]}")
    elif code not in (0, 3):
        bad.append(f"{what}: exit code {code}: {stderr[-500:]}")
    elif code == 3 and not (stderr.strip() or "MISSING" in stdout):
        bad.append(f"{what}: refused without a message")
    elif code == 0 and refused:
        bad.append(f"{what}: accepts a plan that `plan check` refuses")
    elif any(not (letter.isprintable() or letter in "\n\t") for letter in stderr):
        bad.append(f"{what}: prints control characters: {stderr[-500:]!r}")
    return bad


def check(text: str, source: random.Random, scratch: Path) -> Outcome:
    """Give a plan to all commands; without options, a valid plan also compiles."""
    path, counts, bad = scratch / "plan.yaml", Counter[str](), list[str]()
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        compile_checked(load_plan(path), 1)
        valid = True
    except PlanError as error:
        valid = False
        if not error.problems or any("\n" in problem for problem in error.problems):
            bad.append(f"refused without one problem a line: {error.problems}")
    counts["valid" if valid else "refused"] += 1
    for command in OPTIONS:
        options = arguments(command, source, scratch)
        words = [*command.split(), *(["--for"] if command == "images" else []), str(path), *options]
        answer = perform(words)
        # a change of --set may make a plan valid, and `cluster up` reads only a part of it
        refused = not valid and "--set" not in options and command not in ("cluster up", "plan check")
        bad += problems(words, *answer, refused=refused)
        counts[f"{command} {'done' if answer[0] == 0 else 'refused'}"] += 1
        if command == "plan check" and not options and valid and "is a valid plan" not in answer[1]:
            bad.append(f"plan check refuses a plan that compiles: {answer[2][-500:]}")
    return Outcome(bad, len(OPTIONS), counts=dict(counts))


def trial(seed: int, scratch: Path) -> Outcome:
    (text,) = mutated_plans(seed, 1, damaged=seed % 2 == 0)  # a valid plan shows what the options do
    return check(text, random.Random(seed), scratch)  # noqa: S311 -- repeatable on purpose


EXPERIMENT = Experiment(
    name="e1_mutated_plans",
    title="Mutated plans through seven commands with all options",
    figure="tracebacks, time-outs, exhausted memory, refusals without a message, and plans that only some refuse",
    aim="0",
    trials=3_000,
    trial=trial,
    batch=100,
    wall_s=300.0,
    cpu_s=5.0,
    memory_bytes=1 << 30,
)
