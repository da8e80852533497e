from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from aftershock.errors import WorkloadError
from aftershock.tests.unit.workloads.load.test_fleet import READY_S, S, gone, run_to_the_end, until
from aftershock.workloads.load import remote
from aftershock.workloads.load.fleet import Fleet
from aftershock.workloads.load.process import Death
from aftershock.workloads.load.remote import Difference, RemoteHost, fastest

# ruff: noqa: PT012 -- a failure of a host may show at the end of its block

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aftershock.tests.unit.workloads.conftest import Bench

HERE = (sys.executable, "-P", "-m", "aftershock.workloads.load.host")
AHEAD_S = 3600
_TIME_NAMESPACE = ("unshare", "--user", "--map-root-user", "--time", "--monotonic", str(AHEAD_S), "--fork")
AHEAD = (*_TIME_NAMESPACE, "--kill-child", *HERE)
"""A host whose clock, also that of its clients, is an hour ahead: a time namespace (time_namespaces(7))."""

needs_time_namespaces = pytest.mark.skipif(
    subprocess.run([*_TIME_NAMESPACE, "true"], capture_output=True, check=False).returncode != 0,
    reason="the kernel permits no time namespaces here",
)


def closed(bench: Bench, name: str, command: tuple[str, ...] = HERE) -> RemoteHost:
    home = bench.events.parent
    bench.logs.mkdir(exist_ok=True)
    bench.events.touch()
    return RemoteHost(name, command, str(home / "away" / name), "run-1", home, bench.origin_ns)


@asynccontextmanager
async def host(bench: Bench, name: str, command: tuple[str, ...] = HERE) -> AsyncIterator[RemoteHost]:
    """Open a host, and close it as a run does."""
    away, in_order = closed(bench, name, command), False
    try:
        await away.open()
        yield away
        in_order = True
    finally:
        await away.close(in_order=in_order)


def no_more_runs(pid: int) -> bool:
    """Return True if a process has ended, also if its parent has not read its exit status yet."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return True


def rows(bench: Bench, worker: str) -> list[dict[str, Any]]:
    parts = sorted(bench.outcomes.glob(f"part-{worker}*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


@needs_time_namespaces
async def test_clients_on_hosts_with_other_clocks_give_the_same_evidence(live_bench: Bench) -> None:
    """Rows are on the runner's clock, complete and once; events and logs are the run's; nothing stays on the hosts."""
    bench = live_bench
    producers = [bench.produce(worker=f"p{n}", producer_id=n, offset_us=2_500 * n) for n in range(2)]
    reader = bench.consume(worker="c0")
    async with host(bench, "w1", AHEAD) as ahead, host(bench, "w2") as near:
        assert abs(ahead.start.ns - AHEAD_S * 10**9) < 10**9
        spawns = {"p0": ahead.spawn, "p1": near.spawn, "c0": ahead.spawn}
        async with Fleet([*producers, reader], bench.logs, spawns=spawns) as fleet:
            await fleet.start(READY_S)
            start_us = bench.now_us() + 50_000
            await fleet.go(start_us)
            await asyncio.sleep(0.4)
            await asyncio.gather(ahead.save(), near.save())  # in the middle of the load
            assert rows(bench, "p0")
            stop_us = bench.now_us() + S
            await run_to_the_end(fleet, bench, stop_us)
            assert fleet.progress().keys() == {"p0", "p1", "c0"}
            assert all(gone(pid) for pid in fleet.pids().values())
    ended_us = bench.now_us()
    for number, worker in enumerate(("p0", "p1")):
        sent = rows(bench, worker)
        due_us = [*range(start_us + 2_500 * number, stop_us, 5_000)]
        assert [(row["seq"], row["intended_us"]) for row in sent] == [*enumerate(due_us)]
        assert all(start_us <= row["done_us"] <= ended_us for row in sent)
    written = sorted((number, row["seq"]) for number in range(2) for row in rows(bench, f"p{number}"))
    assert sorted((row["producer_id"], row["seq"]) for row in rows(bench, "c0")) == written
    events = [json.loads(line) for line in bench.events.read_text().splitlines()]
    assert {event["worker"] for event in events if event["event"] == "counters"} == {"p0", "p1", "c0"}
    assert all(0 <= event["t_us"] <= ended_us for event in events)
    assert {path.name for path in bench.logs.iterdir()} >= {"p0.log", "p1.log", "c0.log", "host-w1.log"}
    assert not any((bench.events.parent / "away").iterdir())


async def test_a_host_that_ends_is_an_error_and_keeps_what_was_saved(live_bench: Bench) -> None:
    bench = live_bench
    ended = r"the host w1 of the clients ended early \(exit status -9\)"
    with pytest.raises(WorkloadError, match=ended):  # its last evidence is missing
        async with host(bench, "w1") as away, Fleet([bench.produce()], bench.logs, spawns={"p0": away.spawn}) as fleet:
            await fleet.start(READY_S)
            await fleet.go(bench.now_us() + 50_000)
            await asyncio.sleep(0.5)
            await away.save()
            assert away._process
            os.kill(away._process.pid, signal.SIGKILL)
            with pytest.raises(WorkloadError, match=ended):
                await fleet.watch()
    assert rows(bench, "p0")
    await until(lambda: all(no_more_runs(pid) for pid in fleet.pids().values()), "the end of the host's client")


async def test_a_client_that_crashes_on_a_host_ends_alone(live_bench: Bench) -> None:
    bench, deaths = live_bench, list[Death]()
    async with host(bench, "w1") as away:
        both = [bench.produce(), bench.produce(worker="p1", producer_id=1)]
        spawns = {"p0": away.spawn, "p1": away.spawn}
        async with Fleet(both, bench.logs, lambda _, death: deaths.append(death), spawns) as fleet:
            await fleet.start(READY_S)
            start_us = bench.now_us() + 50_000
            await fleet.go(start_us)
            os.kill(fleet.pids()["p0"], signal.SIGSEGV)
            await until(lambda: bool(deaths), "the death")
            await fleet.stop(start_us + S)
            await fleet.quit()
    assert deaths[0].status == -signal.SIGSEGV
    assert [row["status"] for row in rows(bench, "p1")] == ["ok"] * 200
    assert len(rows(bench, "p0")) == 200


async def test_a_host_whose_runner_is_gone_removes_everything(live_bench: Bench) -> None:
    bench = live_bench
    root = bench.events.parent / "away"
    process = await asyncio.create_subprocess_exec(
        *HERE, "run-1", "w1", str(root), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    order = {"do": "start", "worker": "p0", "origin_ns": bench.origin_ns}
    process.stdin.write(json.dumps(order).encode() + b"\n")
    pid = json.loads(await process.stdout.readline())["pid"]
    assert not gone(pid)
    assert root.exists()
    process.stdin.close()
    await process.wait()
    assert gone(pid)
    assert not root.exists()


async def test_a_host_that_does_not_start_is_named(bench: Bench) -> None:
    with pytest.raises(WorkloadError, match=r"the host w1 of the clients ended early \(exit status 3\); its log is"):
        async with host(bench, "w1", (sys.executable, "-c", "raise SystemExit(3)")):
            pass


def test_the_fastest_answer_gives_the_difference_of_two_clocks() -> None:
    """Of an answer after R, the host's time may have been read at any moment in between."""
    slow, fast = (1_000, 90_000, 51_000), (60_000, 100_010, 60_020)
    assert fastest([slow, fast]) == Difference(100_010 - 60_010, 10, 60_020)
    for true in (100_010 - 60_000, 100_010 - 60_020):
        found = fastest([slow, fast])
        assert abs(found.ns - true) <= found.error_ns


def test_a_clock_that_moves_away_widens_the_bound(bench: Bench) -> None:
    moved = closed(bench, "w1")
    moved.start = Difference(5_000_000, 20_000)
    moved._measured.extend([(0, 5_530_000, 1_060_000), (0, 5_030_000, 60_000)])
    assert moved._bound_us() == 30  # nothing but the error of the better measurement
    moved._measured.extend([(0, 8_030_000, 60_000)] * remote.MEASUREMENTS)
    assert moved._bound_us() == 3_030
    moved._measured.append((0, 8_030_000, 2 * 10**9 + 60_000))  # two seconds after the fastest
    assert moved._bound_us() == 3_030 + 200


@pytest.mark.parametrize("path", ["run.json", "../outcomes/part-p0.parquet", "outcomes/../run.json", "journal/x"])
def test_a_host_writes_evidence_of_its_clients_only(bench: Bench, path: str) -> None:
    with pytest.raises(ValueError, match="the file"):
        closed(bench, "w1")._write_file(path, b"", last=True)


async def test_a_frozen_host_ends_the_run(live_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like one behind a cut network, it would keep the end of the run waiting."""
    monkeypatch.setattr(remote, "ANSWER_S", 1.0)
    bench = live_bench
    with pytest.raises(WorkloadError, match=r"it gave no answer for 1 s"):
        async with host(bench, "w1") as away, Fleet([bench.produce()], bench.logs, spawns={"p0": away.spawn}) as fleet:
            await fleet.start(READY_S)
            assert away._process
            os.kill(away._process.pid, signal.SIGSTOP)
            await fleet.watch()


async def test_evidence_that_a_host_cannot_write_ends_the_run(live_bench: Bench) -> None:
    bench = live_bench
    with pytest.raises(WorkloadError, match=r"the host w1 of the clients ended early \(.*outcomes"):
        async with host(bench, "w1") as away, Fleet([bench.produce()], bench.logs, spawns={"p0": away.spawn}) as fleet:
            await fleet.start(READY_S)
            shutil.rmtree(bench.events.parent / "away" / "w1" / "outcomes")
            await away.save()


async def test_a_line_that_is_no_report_ends_the_run(live_bench: Bench, tmp_path: Path) -> None:
    """An endless line of a client's process, as of one on this host."""
    bench = live_bench
    broken = tmp_path / "broken.py"
    broken.write_text("import sys; sys.stdout.write('x' * 200_000); sys.stdout.flush(); sys.stdin.read()")
    planted = f"import aftershock.workloads.load.process as p; p.WORKER = ({sys.executable!r}, {str(broken)!r}); "
    planted += "import runpy; runpy.run_module('aftershock.workloads.load.host', run_name='__main__')"
    with pytest.raises(WorkloadError, match=r"the worker wrote a line that is not a report"):
        async with host(bench, "w1", (sys.executable, "-c", planted)) as away:
            async with Fleet([bench.produce()], bench.logs, spawns={"p0": away.spawn}) as fleet:
                await fleet.start(READY_S)


async def test_files_that_cannot_change_any_more_leave_the_memory_of_a_host(live_bench: Bench) -> None:
    """They are whole in the run directory, once, also those that the host sent by itself."""
    bench = live_bench
    fast = bench.produce(rate_per_s=60_000, record_size_min=0, record_size_max=0, linger_ms=50)
    async with host(bench, "w1") as away, Fleet([fast], bench.logs, spawns={"p0": away.spawn}) as fleet:
        await fleet.start(READY_S)
        start_us = bench.now_us() + 50_000
        await fleet.go(start_us)
        root = bench.events.parent / "away" / "w1" / "outcomes"
        await until(lambda: any(part.stat().st_size == 0 for part in root.glob("part-*")), "a file that is emptied")
        stop_us = bench.now_us() + S
        await fleet.stop(stop_us)
        await fleet.quit()
    seqs = [row["seq"] for row in rows(bench, "p0")]
    assert sorted(seqs) == [*range(len(seqs))]
    assert len(seqs) == -(-(stop_us - start_us) * 60_000 // 10**6)
