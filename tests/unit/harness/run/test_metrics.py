"""The sampler: what it writes is what it saw, and a Toxiproxy that doesn't answer doesn't end it."""

import asyncio
from pathlib import Path

import pyarrow.parquet as pq

from aftershock.errors import FaultError
from aftershock.harness.run.drive import Reading, Sampler, cpu_times
from aftershock.harness.run.rundir import RunClock


async def test_counters_and_the_host_are_recorded(tmp_path: Path) -> None:
    """Counters carry their broker's id; the timer's lateness and the CPU are there too, all on the run's clock."""
    seen = asyncio.Event()

    def read() -> list[Reading]:
        loop.call_soon_threadsafe(seen.set)
        return [Reading(2, "bytes/client_a-k2", 42)]

    loop = asyncio.get_running_loop()
    clock = RunClock.starting_now()
    async with Sampler(tmp_path, clock, read) as sampler:
        await asyncio.wait_for(seen.wait(), 10)
        async with asyncio.timeout(10):
            # polled, since the sampler has no reason to tell anybody
            while not any(s.name == "host.cpu_busy" for s in sampler._samples):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    rows = pq.read_table(tmp_path / "samples.parquet").to_pylist()
    links = [row for row in rows if row["name"] == "bytes/client_a-k2"]
    assert {(2, 42.0)} == {(row["broker_id"], row["value"]) for row in links}
    assert {"host.tick_late_us", "host.cpu_busy", "host.steal"} <= {row["name"] for row in rows}
    assert all(0 <= row["t_us"] <= clock.now_us() for row in rows)


async def test_a_silent_toxiproxy_leaves_a_gap(tmp_path: Path) -> None:
    """Counters that can't be read are missing, never zero, and the sampler goes on."""
    asked = asyncio.Event()

    def read() -> list[Reading]:
        loop.call_soon_threadsafe(asked.set)
        raise FaultError("no answer")

    loop = asyncio.get_running_loop()
    async with Sampler(tmp_path, RunClock.starting_now(), read):
        await asyncio.wait_for(asked.wait(), 10)
        await asyncio.sleep(0.25)
    names = set(pq.read_table(tmp_path / "samples.parquet").column("name").to_pylist())
    assert "host.tick_late_us" in names
    assert {"host"} == {name.partition(".")[0] for name in names}


def test_cpu_times_add_up() -> None:
    """Busy and stolen time are parts of the whole."""
    times = cpu_times()
    assert times is not None
    assert 0 < times.busy + times.steal <= times.total
