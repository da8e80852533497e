"""Workers that a fault kills and that restart: their rows continue, and any other death is an error."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import WorkloadError
from aftershock.tests.unit.workloads.load.test_fleet import READY_S, S, rows, run_to_the_end, until
from aftershock.workloads.load.fleet import Fleet, _add_progress, mark_down, mark_released
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.process import Progress
from aftershock.workloads.load.worker import read_heartbeat

if TYPE_CHECKING:
    from aftershock.tests.unit.workloads.conftest import Bench


async def flowing(fleet: Fleet, worker: str, more: int = 40) -> None:
    """Wait until a worker has had ``more`` successes from now on."""
    before = said(fleet, worker)
    await until(lambda: said(fleet, worker) >= before + more, f"{more} successes of {worker}")


def said(fleet: Fleet, worker: str) -> int:
    told = fleet.progress().get(worker)
    return told.ok if told else 0


async def kill(bench: Bench, fleet: Fleet, worker: str) -> int:
    """Kill the worker as a fault does, check that it stays down, and return its process id."""
    pid = fleet.pids()[worker]
    mark_down(bench.spool, worker, pid)
    os.kill(pid, signal.SIGKILL)
    process = fleet._workers[[told.worker for told in fleet.assignments].index(worker)]
    await asyncio.wait_for(process._process.ended.wait(), 20)
    return pid


async def back(bench: Bench, worker: str) -> None:
    """Release the worker, and wait for its next heartbeat."""
    before = read_heartbeat(bench.spool, worker)
    mark_released(bench.spool, worker)
    await until(lambda: read_heartbeat(bench.spool, worker) != before, f"a sign of life of {worker}", READY_S)


async def test_a_producer_goes_on_where_its_schedule_is(live_bench: Bench) -> None:
    """Two processes, one row per intended record, in order: ok, in doubt at the kill, failed while it was down."""
    bench = live_bench
    async with Fleet([bench.produce(), bench.consume()], bench.logs) as fleet:
        await fleet.start(READY_S)
        watch = asyncio.create_task(fleet.watch())
        start_us = bench.now_us() + 50_000
        await fleet.go(start_us)
        await flowing(fleet, "p0")
        before = fleet.progress()["p0"].ok
        pid = await kill(bench, fleet, "p0")
        killed_us = bench.now_us()
        await until(lambda: bench.now_us() > killed_us + S // 2, "half a second without it")
        released_us = bench.now_us()
        await back(bench, "p0")
        assert fleet.pids()["p0"] != pid
        await flowing(fleet, "p0")
        assert fleet.progress()["p0"].ok > before
        assert not watch.done()
        await run_to_the_end(fleet, bench, bench.now_us())
        watch.cancel()
    convert(bench.spool, bench.outcomes)
    sent = rows(bench.outcomes, "p0")
    assert [row["seq"] for row in sent] == list(range(len(sent)))
    assert [row["intended_us"] - start_us for row in sent] == [n * 5_000 for n in range(len(sent))]
    missed = [row for row in sent if row["error"] == "CLIENT_DOWN"]
    assert {(row["status"], row["sent_us"], row["bytes"], row["partition"]) for row in missed} == {
        ("failed", None, None, None)
    }
    between = [row for row in sent if killed_us < row["intended_us"] < released_us]
    assert len(between) > 80
    assert all(row in missed for row in between)
    doubtful = [row for row in sent if row["status"] == "in_doubt"]
    assert all(row["intended_us"] <= killed_us and row["done_us"] is None for row in doubtful)
    after = [row for row in sent if row["seq"] > missed[-1]["seq"]]
    assert len(after) >= 40
    assert {row["status"] for row in after} == {"ok"}
    read = {row["seq"] for row in rows(bench.outcomes, "c0")}
    assert {row["seq"] for row in sent if row["status"] == "ok"} <= read
    assert not read & {row["seq"] for row in missed}


async def test_a_reader_without_a_group_goes_on_behind_what_it_has(live_bench: Bench) -> None:
    """Nothing is delivered twice and nothing is missed, wherever a new consumer would start."""
    bench = live_bench
    readers = [bench.consume(), bench.consume(worker="c1", from_="latest")]
    async with Fleet([bench.produce(), *readers], bench.logs) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        for reader in ("c0", "c1"):
            await flowing(fleet, reader)
            await kill(bench, fleet, reader)
        await flowing(fleet, "p0")
        for reader in ("c0", "c1"):
            await back(bench, reader)
            await flowing(fleet, reader)
        await run_to_the_end(fleet, bench, bench.now_us())
    convert(bench.spool, bench.outcomes)
    sent = sorted(row["seq"] for row in rows(bench.outcomes, "p0"))
    assert sorted(row["seq"] for row in rows(bench.outcomes, "c0")) == sent
    assert sorted(row["seq"] for row in rows(bench.outcomes, "c1")) == sent


async def test_another_death_is_still_an_error(live_bench: Bench) -> None:
    """An earlier kill by a fault excuses neither a later death nor another worker's."""
    bench = live_bench
    async with Fleet([bench.produce()], bench.logs) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        await flowing(fleet, "p0", 1)
        await kill(bench, fleet, "p0")
        await back(bench, "p0")
        os.kill(fleet.pids()["p0"], signal.SIGKILL)
        with pytest.raises(WorkloadError, match=r"the producer of arm baseline .* ended early: killed by signal 9"):
            await asyncio.wait_for(fleet.watch(), 20)
        with pytest.raises(WorkloadError, match="ended early"):
            await fleet.stop(bench.now_us())


async def test_stop_waits_for_one_that_is_down(live_bench: Bench) -> None:
    """A stop during the outage is answered by the next process; then every intended record has a row."""
    bench = live_bench
    async with Fleet([bench.produce()], bench.logs) as fleet:
        await fleet.start(READY_S)
        start_us = bench.now_us()
        await fleet.go(start_us)
        await flowing(fleet, "p0", 1)
        await kill(bench, fleet, "p0")
        stop_us = bench.now_us() + S // 5
        stopping = asyncio.create_task(fleet.stop(stop_us))
        await until(lambda: bench.now_us() > stop_us, "the end of the load")
        assert not stopping.done()
        mark_released(bench.spool, "p0")
        await asyncio.wait_for(stopping, READY_S)
        await fleet.quit()
    convert(bench.spool, bench.outcomes)
    assert len(rows(bench.outcomes, "p0")) == -(-(stop_us - start_us) // 5_000)


async def test_one_that_stays_down_holds_up_nobodys_end(live_bench: Bench) -> None:
    """Quit with a worker that is down ends everything, at once and without an error."""
    bench = live_bench
    async with Fleet([bench.produce(), bench.consume()], bench.logs) as fleet:
        await fleet.start(READY_S)
        await kill(bench, fleet, "p0")
        await asyncio.wait_for(fleet.quit(), 20)


async def test_a_release_that_comes_before_the_death_is_noticed(live_bench: Bench) -> None:
    """A kill with an immediate release, as after an interrupt, is no error: the worker restarts."""
    bench = live_bench
    async with Fleet([bench.produce()], bench.logs) as fleet:
        await fleet.start(READY_S)
        pid = fleet.pids()["p0"]
        mark_down(bench.spool, "p0", pid)
        os.kill(pid, signal.SIGKILL)
        mark_released(bench.spool, "p0")
        await until(lambda: fleet.pids().get("p0", pid) != pid, "another life")
        await fleet.go(bench.now_us())
        await flowing(fleet, "p0", 1)


def test_nobody_is_held_where_nothing_was_said(bench: Bench) -> None:
    """A release without a kill writes no marker, and a finished run is no error."""
    mark_released(bench.spool, "p0")
    assert not bench.spool.exists()


def test_counts_go_on_over_lives() -> None:
    """Each counter continues from the earlier process."""
    known = {"worker": "w", "workload": "w", "arm": "a", "op": "consume", "rack": "a", "t_us": 1, "sent": 0, "ok": 5}
    known |= {"failed": 0, "in_doubt": 0, "late_p99_us": 0, "window_us": (), "traffic": {}}
    before, now = (Progress(**known, counts=counts) for counts in ({"x": 2, "y": 1}, {"x": 3, "z": 4}))  # type: ignore[arg-type]
    both = _add_progress(before, now)
    assert both is not None
    assert ({"x": 5, "y": 1, "z": 4}, 10) == (both.counts, both.ok)
