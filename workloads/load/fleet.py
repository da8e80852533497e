"""Client processes of one run: a fleet of supervised workers, started, commanded and restarted together.

Every client process is a child of the runner, and is gone when the fleet's ``async with`` block ends for any reason.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

from aftershock.errors import WorkloadError
from aftershock.workloads.load.assignment import Assignment, Drain, Go, Order, Quit, Stop
from aftershock.workloads.load.events import run_clock
from aftershock.workloads.load.process import Progress, WorkerProcess
from aftershock.workloads.load.schedule import US_PER_MS, US_PER_S
from aftershock.workloads.load.warmup import SecondMedians

FILE = "held.json"


class DownMarker(NamedTuple):
    """Marker of a worker that a fault killed: its process id, and ``down``, True while the worker must stay dead.

    A fault (possibly injected by hand from another process) writes the marker file into the worker's directory before
    the fault kills the worker. When the fault is healed (possibly by yet another process), ``down`` becomes False, and
    the fleet restarts the worker. The death of a worker without a marker file is an error. After the restart the marker
    file remains, because the fleet may notice the death only afterwards.
    """

    pid: int
    down: bool


def mark_down(spool: Path, worker: str, pid: int) -> None:
    _write(spool / worker, DownMarker(pid, down=True))


def mark_released(spool: Path, worker: str) -> None:
    """Allow the fleet to restart a worker that a fault killed; do nothing without a marker."""
    marker = read_down_marker(spool, worker)
    if marker is not None and marker.down:
        _write(spool / worker, marker._replace(down=False))


def read_down_marker(spool: Path, worker: str) -> DownMarker | None:
    with suppress(OSError):
        return DownMarker(**json.loads((spool / worker / FILE).read_bytes()))
    return None


def _write(folder: Path, marker: DownMarker) -> None:
    draft = folder / f".{FILE}"
    draft.write_text(json.dumps(marker._asdict()))
    draft.replace(folder / FILE)


_POLL_S = 0.05


class Worker:
    """Supervisor of one worker: starts its process, and restarts the process after the fault that killed it is healed.

    After a death that no fault caused, all commands to the worker, and ``end``, raise ``WorkloadError``.
    """

    def __init__(self, assignment: Assignment, logs: Path) -> None:
        self.assignment = assignment
        self.seconds = SecondMedians()
        self._logs = logs
        self._process = WorkerProcess(assignment, logs, self.seconds)
        self._up, self._over = asyncio.Event(), asyncio.Event()
        self._orders: list[Order] = []
        self._stop_us: int | None = None
        self._earlier: Progress | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def progress(self) -> Progress | None:
        return _add_progress(self._earlier, self._process.progress)

    async def start(self) -> None:
        """Start the worker's first process and wait until it is ready; raise ``WorkloadError`` if the process ends."""
        await self._process.start()
        self._up.set()
        self._supervisor = asyncio.create_task(self._supervise())

    async def order(self, order: Order) -> None:
        """Send an order without an answer to the worker, also after each restart; raise WorkloadError if it ended."""
        self._orders.append(order)
        if self._up.is_set():
            process = self._process
            try:
                await process.order(order)
            except WorkloadError:
                if not self._killed_by_fault(process):
                    raise
        if isinstance(order, Quit) and not self._up.is_set():
            self._over.set()  # there is no process to order

    async def ask(self, order: Order) -> dict[str, Any]:
        """Send the worker an order, again after a restart, and return the answer; raise WorkloadError if it ends."""
        if isinstance(order, Stop):
            self._stop_us = order.at_us
        while True:
            up, over = asyncio.create_task(self._up.wait()), asyncio.create_task(self._over.wait())
            try:
                await asyncio.wait({up, over}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel()
                over.cancel()
            process = self._process  # the latest dead process if none will follow
            try:
                return await process.ask(order)
            except WorkloadError:
                if not self._killed_by_fault(process):
                    raise

    async def kill(self) -> None:
        """Kill the worker without a restart, and wait until its process is gone."""
        if self._supervisor:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await self._process.kill()

    async def end(self) -> None:
        """Wait for the worker's end; raise ``WorkloadError`` if the worker ended unexpectedly."""
        await self._over.wait()
        if self._up.is_set():
            await self._process.end()

    def overdue_error(self, problem: str) -> WorkloadError:
        reason = "" if self._up.is_set() else ": a fault killed the client, which has not restarted"
        return self._process.error(f"{problem}{reason}")

    async def _supervise(self) -> None:
        while True:
            await self._process.ended.wait()
            if self._process.quitting or not self._marked_down(self._process):
                self._over.set()
                return
            self._up.clear()
            spool, worker = self.assignment.spool, self.assignment.worker
            while (marker := read_down_marker(spool, worker)) is not None and marker.down:  # noqa: ASYNC110 -- another process may release it
                await asyncio.sleep(_POLL_S)
            self._earlier = self.progress
            assignment = self._process.assignment
            next_life = assignment.model_copy(update={"life": assignment.life + 1})
            self._process = WorkerProcess(next_life, self._logs, self.seconds)
            with suppress(WorkloadError):  # a failure shows by the process's end
                await self._process.start()
                for order in self._orders:
                    update = {"stop_us": self._stop_us} if isinstance(order, Go) else {}
                    await self._process.order(order.model_copy(update=update))
            self._up.set()

    def _killed_by_fault(self, process: WorkerProcess) -> bool:
        """Return True if a fault killed the process; a killed process then gets no more orders."""
        if not self._marked_down(process):
            return False
        if process is self._process:
            self._up.clear()
        return True

    def _marked_down(self, process: WorkerProcess) -> bool:
        marker = read_down_marker(self.assignment.spool, self.assignment.worker)
        return marker is not None and marker.pid == process.pid


def _add_progress(earlier: Progress | None, latest: Progress | None) -> Progress | None:
    """Add the counts of a worker's earlier processes to the progress of its latest process."""
    if earlier is None or latest is None:
        return latest or earlier
    traffic = dict(earlier.traffic)
    for broker, (sent, received) in latest.traffic.items():
        earlier_sent, earlier_received = traffic.get(broker, (0, 0))
        traffic[broker] = (sent + earlier_sent, received + earlier_received)
    counts = dict(Counter(earlier.counts) + Counter(latest.counts))
    sums = {name: getattr(earlier, name) + getattr(latest, name) for name in ("sent", "ok", "failed", "in_doubt")}
    return replace(latest, traffic=traffic, counts=counts, **sums)


MARGIN_S = 20.0
"""Seconds that the runner waits beyond a worker's own time limit, before it reports that the worker hangs."""

SENDERS = frozenset({"produce", "commit"})
READERS = frozenset({"consume"})

T = TypeVar("T")


class Fleet:
    """Client processes of one run, with a log file ``<worker>.log`` each in the directory ``logs``, created if missing.

    Every command to the fleet raises ``WorkloadError`` if a worker ends or hangs; the error names the worker and shows
    the last lines of its log.
    """

    def __init__(self, assignments: Sequence[Assignment], logs: Path) -> None:
        names = [assignment.worker for assignment in assignments]
        if len(set(names)) < len(names):
            raise ValueError(f"worker names must be unique: {sorted(names)}")
        logs.mkdir(parents=True, exist_ok=True)
        self._assignments = assignments
        self._workers = [Worker(assignment, logs) for assignment in assignments]
        self._now_us = run_clock(assignments[0].origin_ns if assignments else 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    async def start(self, deadline_s: float) -> None:
        """Start all workers, and wait until every producer knows the leaders and every consumer has its partitions."""
        await self._all(SENDERS | READERS, Worker.start, deadline_s, "ready")

    async def go(self, start_us: int) -> None:
        """Start the schedules of producers and committers at ``start_us`` (run clock), each shifted by its offset."""
        await self._all(SENDERS, lambda worker: worker.order(Go(start_us=start_us)), MARGIN_S, "started")

    async def stop(self, at_us: int) -> None:
        """Order producers and committers to send nothing with an intended time of ``at_us`` or later.

        Return when every record has its final status, some seconds after the longest delivery deadline at the latest.
        """
        deadlines_ms = [assignment.deadline_ms for assignment in self._assignments if assignment.op != "consume"]
        wait_us = max(0, at_us - self._now_us()) + max(deadlines_ms, default=0) * US_PER_MS
        limit_s = wait_us / US_PER_S + MARGIN_S
        await self._all(SENDERS, lambda worker: worker.ask(Stop(at_us=at_us)), limit_s, "done with its records")

    async def drain(
        self, end_offsets: Mapping[str, Mapping[int, int]], deadline_s: float
    ) -> Mapping[str, Mapping[int, int]]:
        """Let consumers read on to the end offsets (topic → partition → offset), for ``deadline_s`` at most.

        Return the number of missing offsets by worker and partition: empty if all consumers have reached the end
        offsets.
        """
        until_us = self._now_us() + int(deadline_s * US_PER_S)

        async def drain(worker: Worker) -> tuple[str, dict[int, int]]:
            ends = dict(end_offsets.get(worker.assignment.topic, {}))
            answer = await worker.ask(Drain(end_offsets=ends, until_us=until_us))
            return worker.assignment.worker, {int(number): count for number, count in answer["missing"].items()}

        answers = await self._all(READERS, drain, deadline_s + MARGIN_S, "done reading")
        return {name: missing for name, missing in answers if missing}

    async def quit(self, deadline_s: float = 10.0) -> None:
        """Let all workers write their final counters, close their clients and exit; kill workers that are too slow."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await asyncio.gather(*(worker.order(Quit()) for worker in self._workers))
                await asyncio.gather(*(worker.end() for worker in self._workers))
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    async def watch(self) -> NoReturn:
        """Raise ``WorkloadError`` as soon as a worker ends unexpectedly; never return, as is usual in a task group."""
        await _gather_within([worker.end() for worker in self._workers], None)
        await asyncio.Event().wait()
        raise AssertionError("watch() returned from a wait for an event that nothing sets")

    def progress(self) -> Mapping[str, Progress]:
        return {worker.assignment.worker: worker.progress for worker in self._workers if worker.progress}

    def medians_us(self) -> Mapping[str, Sequence[float]]:
        return {worker.assignment.worker: worker.seconds.medians_us() for worker in self._workers}

    def pids(self) -> Mapping[str, int]:
        return {worker.assignment.worker: worker.pid for worker in self._workers if worker.pid}

    async def _all(
        self, ops: frozenset[str], act: Callable[[Worker], Coroutine[Any, Any, T]], deadline_s: float, goal: str
    ) -> list[T]:
        workers = [worker for worker in self._workers if worker.assignment.op in ops]
        results, late = await _gather_within([act(worker) for worker in workers], deadline_s)
        if late:
            raise workers[late[0]].overdue_error(f"is not {goal} after {deadline_s:.0f} s")
        return results


async def _gather_within(
    actions: Sequence[Coroutine[Any, Any, T]], deadline_s: float | None
) -> tuple[list[T], list[int]]:
    """Return the results of finished coroutines and the indices of unfinished ones; the first error cancels all."""
    tasks = [asyncio.create_task(action) for action in actions]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=deadline_s, return_when=asyncio.FIRST_EXCEPTION)
        results = [task.result() for task in tasks if task.done()]
        return results, [index for index, task in enumerate(tasks) if not task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
