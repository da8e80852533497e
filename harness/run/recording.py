"""Recording of a run: counters and the host's load are sampled, and what is recorded so far is saved every minute.

`docs/DESIGN.md` lists the metrics. A process of low priority (``python -m aftershock.harness.run.recording``), which
the runner starts for each save, writes to the disk; it reads one JSON object from its standard input, with the keys of
`save`. In the runner's own process, the conversion to Parquet would take memory for good, and delay the timers that the
run depends on.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.errors import AftershockError, EvidenceError
from aftershock.harness.run.estimate import SAVE_PERIOD_S, SEGMENTS_A_MOVE
from aftershock.workloads.load.events import cpu_times
from aftershock.workloads.load.outcomes import move, write_whole

if TYPE_CHECKING:
    from aftershock.harness.safety.rundir import RunClock

_SAVE_POLL_S = 5.0
_TICK_US = 100_000
_TICKS_PER_SAMPLE = 10
T = TypeVar("T")
SAMPLES_A_FILE = 32_768
_SCHEMA = pa.schema([("t_us", pa.int64()), ("broker_id", pa.int32()), ("name", pa.string()), ("value", pa.float64())])


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Call a blocking function in a thread, and wait for its end even if the caller is cancelled."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class Sample(NamedTuple):
    t_us: int
    broker_id: int | None
    name: str
    value: float


class Reading(NamedTuple):
    """Current value of a counter of a broker, or without ``broker_id`` of the whole run."""

    broker_id: int | None
    name: str
    value: float


class Sampler:
    """Async context manager that samples metrics during its block, and writes them to ``folder``.

    The function ``read``, called about once a second, returns the current counters, which are cumulative; it may block.
    """

    def __init__(self, folder: Path, clock: "RunClock", read: Callable[[], Sequence[Reading]]) -> None:
        self._folder = folder
        self._clock = clock
        self.now_us = clock.now_us
        self._read = read
        self._samples: list[Sample] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._sample_host()), asyncio.create_task(self._sample_counters())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await in_thread(save, self._folder, self.take())

    def add(self, samples: Sequence[Sample]) -> None:
        """Write also these samples; called in the event loop."""
        self._samples += samples

    def take(self) -> Sequence[Sample]:
        """Return the samples since the last call."""
        samples, self._samples = self._samples, []
        return samples

    async def _sample_host(self) -> None:
        due_us = self._clock.now_us()
        before = cpu_times()
        for tick in range(1, 1 << 62):
            due_us += _TICK_US
            await self._clock.sleep_until_us(due_us)
            now_us = self._clock.now_us()
            self._samples.append(Sample(now_us, None, "host.tick_late_us", now_us - due_us))
            if tick % _TICKS_PER_SAMPLE == 0:
                now = cpu_times()
                if now and before and now.total > before.total:
                    total = now.total - before.total
                    self._samples.append(Sample(now_us, None, "host.cpu_busy", (now.busy - before.busy) / total))
                    self._samples.append(Sample(now_us, None, "host.steal", (now.steal - before.steal) / total))
                before = now

    async def _sample_counters(self) -> None:
        while True:
            try:
                readings = await asyncio.to_thread(self._read)
            except AftershockError:
                # no counters for this second: the exposure check reports such a gap, which must not end the run
                readings = []
            now_us = self._clock.now_us()
            self._samples += [Sample(now_us, *reading) for reading in readings]
            await self._clock.sleep_until_us(now_us + _TICK_US * _TICKS_PER_SAMPLE)


def save(metrics: Path, samples: Sequence[Sample], spool: Path | None = None, outcomes: Path | None = None) -> int:
    """Start the process, and wait until it has added ``samples`` to ``metrics``, and moved the rows in ``spool``.

    Return the number of rows in ``outcomes``, which includes the rows that are still open.
    Raises EvidenceError if the files can't be written.
    """
    paths = {"metrics": metrics, "spool": spool, "outcomes": outcomes}
    request = {name: str(path) for name, path in paths.items() if path} | {"samples": samples}
    command = [sys.executable, "-P", "-m", "aftershock.harness.run.recording"]
    # in a session of its own, so that Ctrl-C does not end the process
    done = subprocess.run(
        command, input=json.dumps(request), capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise EvidenceError(f"the evidence so far can't be written ({why}); free disk space, or choose another --out")
    return int(done.stdout or 0)


def store(folder: Path, samples: Sequence[Sample]) -> None:
    """Add samples to the latest of the files ``samples.parquet``, ``samples-00001.parquet`` … or to a new file."""
    number = max((int(path.stem[8:] or 0) for path in folder.glob("samples*.parquet")), default=0)
    path = folder / (f"samples-{number:05}.parquet" if number else "samples.parquet")
    extending = path if path.exists() else None
    if extending and not samples:
        return
    if extending and pq.read_metadata(path).num_rows >= SAMPLES_A_FILE:
        path, extending = folder / f"samples-{number + 1:05}.parquet", None
    columns = [dict(zip(Sample._fields, zip(*samples, strict=True), strict=True))] if samples else []
    write_whole(path, _SCHEMA, columns, extending=extending)


async def _nothing() -> None:
    """Return at once."""


async def keep_saving(
    home: Path,
    spool: Path,
    sampler: Sampler,
    saved: Callable[[int, int], None],
    fetch: Callable[[], Awaitable[None]] = _nothing,
) -> NoReturn:
    """Move the clients' rows, metrics and events to the disk, every SAVE_PERIOD_S.

    ``fetch`` brings the rows of clients on other hosts to the disk. Rows are moved earlier if the clients are so fast
    that their rows would fill the shared memory. ``saved`` receives the number of rows on the disk, and the time before
    which all rows are there. Raises EvidenceError if nothing can be written.
    """
    saved_s, kept = time.monotonic(), 0

    def save_events() -> None:
        # clients append to this file too; fsync concerns the file, whoever wrote
        with (home / "events.jsonl").open("rb") as events:
            os.fsync(events.fileno())

    while True:
        await asyncio.sleep(min(_SAVE_POLL_S, SAVE_PERIOD_S))
        is_due = time.monotonic() - saved_s >= SAVE_PERIOD_S
        if is_due or _count_segments(spool) - kept >= SEGMENTS_A_MOVE:
            saved_s, before_us = time.monotonic(), sampler.now_us()
            await fetch()
            await in_thread(save_events)
            rows = await in_thread(save, home / "metrics", sampler.take(), spool, home / "outcomes")
            saved(rows, before_us)
            kept = _count_segments(spool)


def _count_segments(spool: Path) -> int:
    return sum(1 for _ in spool.glob("*/*.rows"))


if __name__ == "__main__":
    os.nice(10)
    request = json.load(sys.stdin)
    try:
        store(Path(request["metrics"]), request["samples"])
        if "spool" in request:
            outcomes = Path(request["outcomes"])
            move(Path(request["spool"]), outcomes)
            rows = 0
            for path in outcomes.glob("part-*.parquet"):
                with suppress(FileNotFoundError):  # a further host has just replaced it
                    rows += pq.read_metadata(path).num_rows
            sys.stdout.write(f"{rows}\n")
    except OSError as failure:
        sys.exit(f"{failure.filename or request['metrics']}: {failure.strerror or failure}")
