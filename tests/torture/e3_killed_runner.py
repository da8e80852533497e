"""Hypothesis: whenever the runner dies, its faults are undone, and its containers, processes and files are removed.

Method: SIGKILL of the runner at a random moment of a random plan over all fault kinds. Because most faults are short,
half of the kills wait for the next fault in force. In turn, the cluster is removed with the run or kept (`--keep`),
and the watchdog lives or is killed first, so that `aftershock heal` must do its work. Nothing of a run may remain. On
a kept cluster every fault must be healed by the journal, and nodes, toxics, proxies, topic settings and log
directories must be as before. The seconds are from the kill to that state.
"""

import asyncio
import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import docker

from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.cluster.cluster import attach
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.world.world import ClusterWorld
from aftershock.tests.chaos.conftest import Command
from aftershock.tests.chaos.test_random_plans import plan
from aftershock.tests.random_plans import TOPIC
from aftershock.tests.torture.clusters import (
    REMOVED_S,
    aftershock,
    ended_within,
    journal_states,
    running,
    watchdogs,
)
from aftershock.tests.torture.runner import Experiment, Outcome

START_S, AFTER_S, IN_SYNC_S = 12.0, 8.0, 60.0


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    keep, with_watchdog = seed // 2 % 2 == 1, seed % 2 == 1
    text = plan(seed)
    length_s = compile_checked(load_plan(text), seed).length_ms / 1000
    with running(text, scratch, "--seed", str(seed), *(["--keep"] if keep else [])) as command:
        if await_moment(command, length_s, source) is None:
            return Outcome(counts={"ended before the kill": 1})
        run_dir = command.run_dir
        for process in watchdogs(run_dir.name) if with_watchdog else ():
            os.kill(process, signal.SIGKILL)
        command.process.kill()
        command.process.wait()
        begun_s = time.monotonic()
        faults = in_force(run_dir)
        bad = []
        if (
            with_watchdog
            and (healed := aftershock("heal", "--run", run_dir.name, "--out", str(run_dir.parent))).returncode
        ):
            bad.append(f"heal ended with {healed.returncode}: {healed.stderr[-500:]}")
        kept = keep and (run_dir / "cluster.json").exists()
        left = still_lacking(lambda: ", ".join(in_force(run_dir)) if kept else "", REMOVED_S)
        if not kept:
            left = command.left_behind(REMOVED_S)
        seconds = time.monotonic() - begun_s
        if left:
            bad.append(f"left after {seconds:.0f} s: {left}")
        if kept:
            bad += differences(run_dir)
        counts = {"faults in force at the kill": len(faults), "kept clusters": int(kept)}
        return Outcome(bad, 1, () if bad else (seconds,), counts)


def await_moment(command: Command, length_s: float, source: random.Random) -> str | None:
    """Wait for a random moment of a run with ``length_s`` of load; return what it is in, None if the run ended before.

    A moment in a ``fault`` is up to half a second after one is in force.
    """
    moment = source.choices(["launch", "fault", "any"], [2, 5, 3])[0]
    latest_s = {"launch": START_S, "fault": length_s / 2, "any": length_s + AFTER_S}[moment]
    command.wait_for("Kafka nodes" if moment == "launch" else "s  steady")
    ended = ended_within(command, source.uniform(0.2, latest_s))
    while moment == "fault" and not ended and not in_force(command.run_dir):
        ended = ended_within(command, 0.02)
    if ended or (moment == "fault" and ended_within(command, source.uniform(0.0, 0.5))):
        return None
    return moment


def in_force(run_dir: Path) -> list[str]:
    """Return the faults that are not healed, by the journal."""
    return [fault for fault, state in journal_states(run_dir).items() if state != "healed"]


def differences(run_dir: Path) -> list[str]:
    """Return how a kept cluster differs from one without faults."""
    with closing(attach(docker.from_env(), run_dir)) as cluster:
        cluster.await_in_sync(IN_SYNC_S)
        brokers = [node.id for node in cluster.spec.topology.brokers]
        wire_proxy = cluster.wire_proxy is not None
        return unlike_new(asyncio.run(state_of(ClusterWorld(cluster), brokers, wire_proxy=wire_proxy)))


async def state_of(world: ClusterWorld, brokers: list[int], *, wire_proxy: bool) -> dict[str, Any]:
    settings = await world.config("topic", TOPIC)
    return {
        "states": [await world.state(node) for node in sorted(world.racks())],
        "toxics": {proxy: toxics for proxy, toxics in (await world.toxics()).items() if toxics},
        "disabled": await world.disabled(),
        "rules": await world.rules() if wire_proxy else None,
        "topic": {key: setting.dynamic for key, setting in settings.items() if setting.dynamic is not None},
        "writable": [[folder.writable for folder in await world.log_dirs(broker)] for broker in brokers],
    }


def unlike_new(state: dict[str, Any]) -> list[str]:
    """Return the parts of a cluster's state that a fault has left changed."""
    new = {"states": {"running"}, "topic": {"min.insync.replicas"}}
    bad = [f"{name} is {state[name]}" for name, values in new.items() if {*state[name]} - values]
    bad += [f"{name} is {state[name]}" for name in ("toxics", "disabled", "rules") if state[name]]
    if not all(all(flags) for flags in state["writable"]):
        bad.append(f"writable is {state['writable']}")
    return bad


EXPERIMENT = Experiment(
    name="e3_killed_runner",
    title="Runner, and every second time its watchdog, killed at a random moment",
    figure="runs of which something remained",
    aim="0",
    trials=100,
    trial=trial,
    wall_s=500.0,
    takes_s=100.0,
)
