"""The live half of a run: calibration, sampled metrics, and the reads after the load."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from aftershock.errors import AdminError, EvidenceError, FaultError, PlanError
from aftershock.faults.timeline.timeline import Objective
from aftershock.harness.run import live_run, recording
from aftershock.harness.run.drive import Noise, calibrate, unmeasurable_slos
from aftershock.harness.run.recording import Reading, Sample, Sampler
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.tests.unit.faults.fake_world import FakeWorld, JumpingClock
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.load.logread import ReadLimit
from aftershock.workloads.load.spool import ProduceSpool

OBJECTIVES = (
    Objective("produce.latency p95 < 2ms in steady", "plan.yaml:9:5"),
    Objective("produce.latency p50 < 20ms in steady", "plan.yaml:10:5"),
    Objective("lost == 0", "plan.yaml:11:5"),
)


class LateClock(JumpingClock):
    """A clock whose timers all fire late by the same time."""

    late_us = 0

    async def sleep_until_us(self, t_us: int) -> None:
        await super().sleep_until_us(t_us + self.late_us)


@pytest.fixture
def home(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "plan", 1, "aftershock run plan")


async def calibrated(home: RunDir, late_us: int) -> Noise:
    clock = LateClock()
    clock.late_us = late_us
    await calibrate(home, OBJECTIVES, FakeWorld(clock), clock)
    return Noise(**json.loads((home.path / "run.json").read_text())["calibration"])


async def test_every_slo_may_be_judged_on_a_quiet_host(home: RunDir) -> None:
    """Punctual timers and a probe through each client link."""
    noise = await calibrated(home, 100)
    assert noise.timer_late_ms == pytest.approx(0.1)
    assert (noise.timers, noise.probes) == (100, 27)
    assert noise.probe_ms is not None


async def test_an_slo_finer_than_the_noise_is_refused(home: RunDir) -> None:
    """With timers 3 ms late, 2 ms can't be judged: the error has position and remedy, and the measurement is kept."""
    with pytest.raises(PlanError) as refused:
        await calibrated(home, 3_000)
    (problem,) = refused.value.problems
    assert problem.startswith("plan.yaml:9:5: this host's timers are ")
    assert "so it can't measure `produce.latency p95 < 2ms in steady`; raise the threshold" in problem
    assert json.loads((home.path / "run.json").read_text())["calibration"]["timer_late_ms"] == pytest.approx(3.0)


def test_slos_above_the_noise_are_accepted() -> None:
    assert [] == list(unmeasurable_slos(OBJECTIVES[1:], Noise(19.9, 100, None, 0)))


COMMITS = {"name": "commits", "commit": {"groups": 1}, "arms": {"plain": {"settings": {}}}}
READERS = {"name": "readers", "consume": {"group": "readers"}, "arms": {"plain": {"settings": {}}}}
ALONE = {"name": "reader", "consume": {"group": None}, "arms": {"plain": {"settings": {}}}}
LAUNCHED = {"racks": {"a": 1}}


class Unreadable:
    """A cluster whose brokers don't answer; ``asked`` counts the attempts."""

    asked = 0

    @property
    def admin(self) -> Any:
        return SimpleNamespace(partitions=self._refuse, copy=lambda: self.admin)

    def _refuse(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise AdminError("no broker answered", "NETWORK_EXCEPTION")


@pytest.mark.parametrize(
    ("cluster", "workload", "asked"),
    [
        (LAUNCHED, COMMITS, True),
        (LAUNCHED, READERS, True),
        (LAUNCHED, ALONE, False),
        (LAUNCHED, {"name": "w", "commit": None}, False),
        ({"attach": {}}, COMMITS, False),
        ({"attach": {}}, READERS, False),
    ],
)
async def test_commits_are_read_of_launched_clusters_only(
    cluster: dict[str, Any], workload: dict[str, Any], asked: bool, tmp_path: Path
) -> None:
    """And only if the plan has groups; an error is logged and recorded, and the run continues."""
    said: list[str] = []
    brokers, timeline = Unreadable(), cast("Any", SimpleNamespace(cluster=cluster, workloads=[workload]))
    result = await live_run.read_commits(cast("Any", brokers), timeline, tmp_path, said.append, ReadLimit(1))
    assert (asked, asked) == (brokers.asked > 0, bool(said))
    assert result == ({"error": "no broker answered"} if asked else None)


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
            # The sampler signals nothing, so its file is polled.
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


def test_samples_are_stored_in_files_of_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each store adds to the latest file; nothing is lost or stored twice."""
    monkeypatch.setattr(recording, "SAMPLES_A_FILE", 25)
    for first in range(0, 60, 10):
        recording.store(tmp_path, [Sample(t_us, t_us % 2 or None, "x", t_us / 2) for t_us in range(first, first + 10)])
        stored = [pq.read_table(path) for path in sorted(tmp_path.glob("*.parquet"))]
        assert list(range(first + 10)) == sorted(t_us for table in stored for t_us in table["t_us"].to_pylist())
    assert ["samples-00001.parquet", "samples.parquet"] == sorted(path.name for path in tmp_path.iterdir())
    assert {30} == {pq.ParquetFile(path).metadata.num_rows for path in tmp_path.iterdir()}


async def test_everything_recorded_is_on_the_disk_periodically(
    tmp_path: Path, home: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients' rows, the samples and the events of a run that then dies without a chance to do anything."""
    monkeypatch.setattr(recording, "SAVE_PERIOD_S", 0.02)
    synced: list[Path] = []
    real = recording.os.fsync
    monkeypatch.setattr(
        recording.os, "fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").resolve()), real(fd))
    )
    bench = Bench(tmp_path, "127.0.0.1:1", "orders")
    spool = ProduceSpool(bench.spool, bench.produce())
    for seq in range(3):
        spool.begin(seq, intended_us=seq, deadline_us=seq, sent_us=seq, size_bytes=1)
    sampler = Sampler(home.path / "metrics", RunClock.starting_now(), list)
    sampler._samples.append(Sample(1, None, "x", 1.0))
    said: list[tuple[int, int]] = []
    saving = asyncio.create_task(
        recording.keep_saving(home.path, bench.spool, sampler, lambda *saved: said.append(saved))
    )
    part = home.path / "outcomes" / "part-p0.parquet"
    async with asyncio.timeout(30):
        while not said:  # noqa: ASYNC110 - nothing else signals it
            await asyncio.sleep(0.01)
    saving.cancel()
    await asyncio.wait([saving])
    assert 3 == pq.read_table(part).num_rows == said[0][0]
    assert 0 <= said[0][1] <= sampler.now_us()  # everything before that time is there
    assert 1 == pq.read_table(home.path / "metrics" / "samples.parquet").num_rows
    assert home.path / "events.jsonl" in synced
    assert [] == sampler._samples


async def test_rows_that_cannot_be_moved_end_the_run(
    tmp_path: Path, home: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would fill the memory; the error says why and what to do."""
    monkeypatch.setattr(recording, "SAVE_PERIOD_S", 0.02)
    bench = Bench(tmp_path, "127.0.0.1:1", "orders")
    ProduceSpool(bench.spool, bench.produce())
    (home.path / "outcomes").rmdir()
    sampler = Sampler(home.path / "metrics", RunClock.starting_now(), list)
    with pytest.raises(EvidenceError, match=r"can't be written \(.*outcomes.*: No such file.*\); free disk space"):
        await recording.keep_saving(home.path, bench.spool, sampler, lambda *_: None)
