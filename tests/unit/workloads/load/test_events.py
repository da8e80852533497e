from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.workloads.load.events import WINDOW, CpuTimes, Events, Tally, Tick, Ticker, cpu_times
from aftershock.workloads.load.spool import Status

if TYPE_CHECKING:
    from aftershock.tests.unit.workloads.conftest import Bench


WRITER = """
import sys
from aftershock.workloads.load.assignment import parse_assignment
from aftershock.workloads.load.events import run_clock
from aftershock.workloads.load.events import Events
told = parse_assignment(sys.stdin.readline())
events = Events(told, run_clock(told.origin_ns))
for number in range(500):
    events.emit("client_error", number=number, detail="x" * (number % 300))
"""


def test_an_event_says_when_who_and_what(bench: Bench) -> None:
    """The time is the run's, the arm and the worker are the assignment's."""
    before_us = bench.now_us()
    Events(bench.consume(arm="other"), bench.now_us).emit("assigned", partitions=[["orders", 0]])
    (line,) = [json.loads(line) for line in bench.events.read_text().splitlines()]
    assert before_us <= line.pop("t_us") <= bench.now_us()
    assert line == {
        "arm": "other",
        "workload": "orders",
        "worker": "c0",
        "op": "consume",
        "event": "assigned",
        "partitions": [["orders", 0]],
    }


def test_lines_of_many_processes_do_not_mix(bench: Bench) -> None:
    """Several workers append to one file at once: every line is whole, and each worker's are in order."""
    writers = []
    for name in ("p0", "p1", "p2"):
        writer = subprocess.Popen([sys.executable, "-c", WRITER], stdin=subprocess.PIPE, text=True)
        assert writer.stdin
        writer.stdin.write(bench.produce(worker=name).model_dump_json() + "\n")
        writer.stdin.flush()
        writers.append(writer)
    for writer in writers:
        with writer:
            assert writer.wait(30) == 0
    lines = [json.loads(line) for line in bench.events.read_text().splitlines()]
    for name in ("p0", "p1", "p2"):
        assert [line["number"] for line in lines if line["worker"] == name] == list(range(500))


def test_counts_stay_and_windows_start_anew() -> None:
    """Counts are since the start, latencies since the last message; only successes have a latency."""
    tally = Tally()
    for late in (5, 900, 10):
        tally.sent_late(late)
    tally.ended(Status.OK, 4000)
    tally.ended(Status.FAILED, 0)
    expected = {"sent": 3, "ok": 1, "failed": 1, "in_doubt": 0}
    assert tally.progress() == expected | {"late_p99_us": 900, "window": [4000]}
    assert tally.progress() == expected | {"late_p99_us": 0, "window": []}
    assert tally.done == 2


def test_a_window_keeps_the_latest() -> None:
    """A fast client doesn't make messages grow."""
    tally = Tally()
    for latency in range(WINDOW + 50):
        tally.ended(Status.OK, latency)
    assert tally.progress()["window"] == list(range(50, WINDOW + 50))


def test_cpu_times_add_up() -> None:
    """Busy and stolen time are parts of the whole."""
    times = cpu_times()
    assert times is not None
    assert 0 < times.busy + times.steal <= times.total


@pytest.mark.parametrize(
    ("tick", "due_us", "shown"),
    [
        (Tick(149_999, 0, 0, None), 100_000, None),
        (Tick(150_000, 0, 0, None), 100_000, {"late_us": 50_000}),
        (Tick(101_000, 3_000_000, 3_000_000, None), 100_000, {"suspended_us": 3_000_000}),
        (Tick(101_000, 0, 3_600_000_000, None), 100_000, None),  # someone set the clock
        (Tick(900_000, 0, 700_000, None), 100_000, {"late_us": 800_000, "stepped_us": 700_000}),
        (Tick(900_000, 0, 0, CpuTimes(5, 30, 110)), 100_000, {"late_us": 800_000, "stolen": 0.2}),
    ],
)
def test_a_late_tick_and_a_jump_of_a_clock_are_stalls(tick: Tick, due_us: int, shown: dict[str, Any] | None) -> None:
    """A tick 50 ms late is a stall, and so is a suspension, which stops MONOTONIC; a clock that is set is none."""
    emitted: list[dict[str, Any]] = []
    ticker = Ticker(lambda: 0, lambda event, **details: emitted.append({"event": event} | details))
    ticker.observe(Tick(50_000, 0, 0, CpuTimes(0, 10, 10)), 50_000)
    ticker.observe(tick, due_us)
    if shown is None:
        assert emitted == []
        return
    times = {"since_us": 50_000, "until_us": tick.now_us, "late_us": tick.now_us - due_us}
    zero = {"suspended_us": 0, "stepped_us": 0, "stolen": 0}
    assert emitted == [{"event": "stalled"} | times | zero | shown]
