"""Hypothesis: no text that a stranger sends as a plan makes `aftershock plan check` crash, hang or exhaust the memory.

Method: a seed damages a plan (values of other types, nested repetitions, torn text; `tests/mutated_plans.py`), and the
command line checks and compiles it in a forked process with 1 GiB of address space and 5 s of CPU time. A valid plan
must be reported as valid; a refused one needs at least one problem, each on one line.
"""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.cli.__main__ import app
from aftershock.tests.mutated_plans import mutated_plans
from aftershock.tests.torture.runner import Experiment, Outcome


def check(text: str, path: Path) -> Outcome:
    """Check a plan as `aftershock plan check` does; a valid plan is also compiled, as for a run."""
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    output = io.StringIO()
    try:
        with redirect_stdout(output), redirect_stderr(output):
            code = app(["plan", "check", str(path)], standalone_mode=False)
            compile_checked(load_plan(path), 1)
    except PlanError as error:
        if not error.problems or any("\n" in problem for problem in error.problems):
            return Outcome([f"refused without one problem a line: {error.problems}"])
        return Outcome(counts={"refused": 1})
    valid = code == 0 and "is a valid plan" in output.getvalue()
    return Outcome(counts={"valid": 1}) if valid else Outcome([f"exit code {code}: {output.getvalue()[-500:]}"])


def trial(seed: int, scratch: Path) -> Outcome:
    (text,) = mutated_plans(seed, 1)
    return check(text, scratch / "plan.yaml")


EXPERIMENT = Experiment(
    name="e1_mutated_plans",
    title="Mutated plans through `plan check`",
    figure="tracebacks, time-outs and exhausted memory",
    aim="0",
    trials=10_000,
    trial=trial,
    batch=250,
    wall_s=60.0,
    cpu_s=5.0,
    memory_bytes=1 << 30,
)
