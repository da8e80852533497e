"""Clients that end by themselves: the fleet tells it, their rows go on as failures, the others notice nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.errors import WorkloadError
from aftershock.tests.unit.workloads.load.test_fleet import READY_S, S, rows, run_to_the_end, topics, until
from aftershock.tests.unit.workloads.load.test_fleet_lives import flowing, kill
from aftershock.workloads.load.fleet import Fleet, mark_released
from aftershock.workloads.load.logread import end_offsets
from aftershock.workloads.load.outcomes import convert

if TYPE_CHECKING:
    from aftershock.tests.unit.workloads.conftest import Bench
    from aftershock.workloads.load.assignment import Assignment
    from aftershock.workloads.load.process import Death

PROGRAM = Path(__file__).parents[4] / "docs/examples/exec_client.py"
ENDING = """
import os, runpy, signal, sys, time
from pathlib import Path
from threading import Thread
def end():
    while not Path({cue!r}).exists():
        time.sleep(0.01)
    print("the client's last words", file=sys.stderr, flush=True)
    {end}
Thread(target=end, daemon=True).start()
sys.argv = [{program!r}]
runpy.run_path({program!r}, run_name="__main__")
"""
SEGFAULT, EXIT = "os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(3)"


def program(end: str, cue: Path) -> dict[str, Any]:
    """Return the fields of an assignment whose program is the example, which ends itself when ``cue`` exists."""
    text = ENDING.format(end=end, cue=str(cue), program=str(PROGRAM))
    return {"client": "exec", "command": (sys.executable, "-c", text)}


Told = list[tuple["Assignment", "Death"]]


def fleet_of(bench: Bench, clients: list[Any], told: Told) -> Fleet:
    return Fleet(clients, bench.logs, lambda client, death: told.append((client, death)))


async def test_a_producer_that_crashes_fails_alone(live_bench: Bench) -> None:
    await ends_alone(live_bench, SEGFAULT, -11, "was killed by signal 11")


async def test_a_producer_that_exits_fails_alone(live_bench: Bench) -> None:
    await ends_alone(live_bench, EXIT, 3, "ended with exit status 3")


async def ends_alone(bench: Bench, end: str, status: int, how: str) -> None:
    """Check that its rows go on as failures of the schedule; its neighbour and the reader work to the end."""
    told: Told = []
    cue = bench.logs.parent / "cue"
    neighbour = bench.produce(worker="p1", producer_id=1, arm="good")
    clients = [bench.produce(**program(end, cue)), neighbour, bench.consume()]
    async with fleet_of(bench, clients, told) as fleet:
        await fleet.start(READY_S)
        watch = asyncio.create_task(fleet.watch())
        start_us = bench.now_us() + 50_000
        await fleet.go(start_us)
        await flowing(fleet, "p0")
        cue.touch()
        await until(lambda: bool(told), "the death of p0", READY_S)
        died_us = bench.now_us()
        await flowing(fleet, "p1")
        await flowing(fleet, "c0")
        assert not watch.done()
        assert fleet.dead == {"p0"}
        assert "p0" not in fleet.medians_us()
        await run_to_the_end(fleet, bench, bench.now_us())
        watch.cancel()
    ((client, death),) = told
    assert (client.worker, death.status, death.lines) == ("p0", status, ("the client's last words",))
    assert death.why.endswith(how)
    convert(bench.spool, bench.outcomes)
    sent = rows(bench.outcomes, "p0")
    assert [row["seq"] for row in sent] == list(range(len(sent)))
    assert [row["intended_us"] - start_us for row in sent] == [n * 5_000 for n in range(len(sent))]
    later = [row for row in sent if row["intended_us"] > died_us]
    assert len(later) >= 20
    assert {(row["status"], row["error"], row["sent_us"]) for row in later} == {("failed", "CLIENT_DOWN", None)}
    assert {row["status"] for row in rows(bench.outcomes, "p1")} == {"ok"}


async def test_a_reader_that_ends_by_itself_tells_how_far_it_was(live_bench: Bench) -> None:
    """What it did not read has a place in the evidence, and nobody waits for it."""
    bench = live_bench
    told: Told = []
    cue = bench.logs.parent / "cue"
    reader = bench.consume(worker="c1", arm="bad", **program(SEGFAULT, cue))
    async with fleet_of(bench, [bench.produce(), bench.consume(), reader], told) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        await flowing(fleet, "c1")
        cue.touch()
        await until(lambda: bool(told), "the death of c1", READY_S)
        await flowing(fleet, "c0")
        await fleet.stop(bench.now_us())
        ends = await asyncio.to_thread(end_offsets, bench._common["bootstrap"], topics(bench), 20)
        missing = await fleet.drain(ends, 30)
        await fleet.quit()
    convert(bench.spool, bench.outcomes)
    read = rows(bench.outcomes, "c1")
    reached = {row["partition"]: row["offset"] + 1 for row in read}
    (line,) = [json.loads(text) for text in bench.events.read_text().splitlines() if "drain_incomplete" in text]
    assert "idle_us" not in line
    assert {number: position for _, number, position, _ in line["positions"]} == {
        number: reached.get(number, 0) for number in ends[bench.topic]
    }
    assert {"c1"} == missing.keys()
    assert len(rows(bench.outcomes, "c0")) == sum(ends[bench.topic].values())


async def test_a_program_that_ends_at_its_start_leaves_the_others_alone(live_bench: Bench) -> None:
    bench = live_bench
    told: Told = []
    bad = bench.produce(worker="p1", producer_id=1, arm="bad", **program(EXIT, Path("/")))
    async with fleet_of(bench, [bench.produce(), bad, bench.consume()], told) as fleet:
        await fleet.start(READY_S)
        start_us = bench.now_us() + 50_000
        await fleet.go(start_us)
        await flowing(fleet, "p0")
        await run_to_the_end(fleet, bench, bench.now_us())
    assert ["p1"] == [client.worker for client, _ in told]
    convert(bench.spool, bench.outcomes)
    sent = rows(bench.outcomes, "p1")
    assert {row["error"] for row in sent} == {"CLIENT_DOWN"}
    assert [row["intended_us"] - start_us for row in sent] == [n * 5_000 for n in range(len(sent))]


async def test_if_no_arm_starts_there_is_nothing_to_judge(bench: Bench) -> None:
    told: Told = []
    async with fleet_of(bench, [bench.produce(**program(EXIT, Path("/")))], told) as fleet:
        with pytest.raises(WorkloadError, match=r"ended with exit status 3; the last lines .*\n    the client's last"):
            await fleet.start(READY_S)


async def test_a_kill_by_a_fault_is_no_death(live_bench: Bench) -> None:
    """A program dies with its worker, whichever of the two is noticed first."""
    bench = live_bench
    told: Told = []
    plain = {"client": "exec", "command": (sys.executable, str(PROGRAM))}
    async with fleet_of(bench, [bench.produce(**plain), bench.consume()], told) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        await flowing(fleet, "p0")
        await kill(bench, fleet, "p0")
        mark_released(bench.spool, "p0")
        await flowing(fleet, "p0")
        await run_to_the_end(fleet, bench, bench.now_us() + S // 4)
    assert told == []


async def test_a_worker_that_another_process_killed_is_an_error(live_bench: Bench) -> None:
    """Only the program is the client; who ends its worker ends the evidence."""
    bench = live_bench
    told: Told = []
    plain = {"client": "exec", "command": (sys.executable, str(PROGRAM))}
    async with fleet_of(bench, [bench.produce(**plain), bench.consume()], told) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        await flowing(fleet, "p0")
        os.kill(fleet.pids()["p0"], signal.SIGKILL)
        with pytest.raises(WorkloadError, match="ended early: killed by signal 9"):
            await asyncio.wait_for(fleet.watch(), 20)
    assert told == []


async def test_a_library_that_crashes_its_process_ends_alone(live_bench: Bench) -> None:
    """A native library runs in the worker's process, which dies of its signal."""
    bench = live_bench
    told: Told = []
    neighbour = bench.produce(worker="p1", producer_id=1, arm="good")
    async with fleet_of(bench, [bench.produce(), neighbour, bench.consume()], told) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        await flowing(fleet, "p0")
        os.kill(fleet.pids()["p0"], signal.SIGSEGV)
        await until(lambda: bool(told), "the death of p0", READY_S)
        await flowing(fleet, "p1")
        await run_to_the_end(fleet, bench, bench.now_us())
    ((_, death),) = told
    assert (death.status, death.why) == (-11, "the process was killed by signal 11 (SIGSEGV)")
    convert(bench.spool, bench.outcomes)
    assert "CLIENT_DOWN" in {row["error"] for row in rows(bench.outcomes, "p0")}
