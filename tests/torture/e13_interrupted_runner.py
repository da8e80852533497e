"""Hypothesis: whenever a user interrupts a run, its faults are undone, nothing of it remains, and it ends with 130.

Method: Ctrl-C, Ctrl-C twice, SIGTERM or SIGHUP (a closed terminal), in turn, at a random moment of a random plan over
all fault kinds; half of the signals wait for the next fault in force. The runner must end with exit code 130, every
fault must be healed by the journal, and no container, network or process may remain. The watchdog of the run has 15 s
to notice its end, which it looks for every few seconds, and after a second Ctrl-C, which may end the clean-up, the time
that it has after the death of a runner. The seconds are from the first
signal to that state.
"""

import random
import signal
import time
from pathlib import Path

from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_checked
from aftershock.tests.chaos.test_random_plans import plan
from aftershock.tests.torture.clusters import REMOVED_S, ended_within, running
from aftershock.tests.torture.e3_killed_runner import await_moment, in_force
from aftershock.tests.torture.runner import Experiment, Outcome

SIGNALS = ((signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM,), (signal.SIGHUP,))
INTERRUPTED = 130
WATCHDOG_S = 15.0


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    for number in (signal.SIGINT, signal.SIGHUP):  # in the background of a shell, or below nohup, they are ignored
        signal.signal(number, signal.SIG_DFL)
    signals, text = SIGNALS[seed % len(SIGNALS)], plan(seed)
    length_s = compile_checked(load_plan(text), seed).length_ms / 1000
    with running(text, scratch, "--seed", str(seed)) as command:
        if (moment := await_moment(command, length_s, source)) is None:
            return Outcome(counts={"ended before the signal": 1})
        run_dir = command.run_dir
        faults, begun_s = in_force(run_dir), time.monotonic()
        for number in signals:
            command.process.send_signal(number)
            ended_within(command, source.uniform(0.05, 3.0))
        name = " twice" if len(signals) > 1 else ""
        name = f"{signals[0].name}{name} in {moment}"
        if not ended_within(command, REMOVED_S):
            return Outcome([f"{name}: still running after {REMOVED_S:.0f} s"])
        bad = []
        if command.process.returncode != INTERRUPTED:
            bad.append(f"{name}: exit code {command.process.returncode}: {command.stderr[-500:]}")
        if "Traceback" in command.stderr:
            bad.append(f"{name}: traceback: {command.stderr[-800:]}")
        if left := command.left_behind(REMOVED_S if len(signals) > 1 else WATCHDOG_S):
            bad.append(f"{name}: left: {left}")
        if unhealed := in_force(run_dir):
            bad.append(f"{name}: not healed: {', '.join(unhealed)}")
        seconds = time.monotonic() - begun_s
        return Outcome(bad, 1, () if bad else (seconds,), {"faults in force at the signal": len(faults)})


EXPERIMENT = Experiment(
    name="e13_interrupted_runner",
    title="Runner interrupted by Ctrl-C, Ctrl-C twice, SIGTERM or SIGHUP at a random moment",
    figure="runs of which something remained, other exit codes, and tracebacks",
    aim="0",
    trials=40,
    trial=trial,
    wall_s=500.0,
    takes_s=100.0,
)
