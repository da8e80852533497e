"""All client processes of one run, commanded together.

Rules: every process is this runner's child and is gone when the ``async with`` block is left, however it is left; a
worker that ends without being told to is an error, at the next command and from ``watch``, that names it and shows its
last log lines. One that a fault killed is no error, and starts again when the fault is over (``lives.py``).
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from aftershock.workloads.assignment import Assignment
from aftershock.workloads.clock import run_clock
from aftershock.workloads.lives import Worker
from aftershock.workloads.load import US_PER_MS, US_PER_S
from aftershock.workloads.orders import Drain, Go, Quit, Stop
from aftershock.workloads.process import Progress

__all__ = ["Fleet", "Progress"]

MARGIN_S = 20.0
"""How much longer than a worker's own limit the runner waits for it: past that the worker hangs."""

SENDERS = frozenset({"produce", "commit"})
READERS = frozenset({"consume"})
EVERYBODY = SENDERS | READERS

T = TypeVar("T")


class Fleet:
    """The client processes of one run. ``logs`` is the directory for ``<worker>.log``, created when missing."""

    def __init__(self, assignments: Sequence[Assignment], logs: Path) -> None:
        names = [assignment.worker for assignment in assignments]
        if len(set(names)) < len(names):
            raise ValueError(f"workers need names of their own: {sorted(names)}")
        logs.mkdir(parents=True, exist_ok=True)
        self._told = assignments
        self._workers = [Worker(assignment, logs) for assignment in assignments]
        self._now_us = run_clock(assignments[0].origin_ns if assignments else 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    async def start(self, deadline_s: float) -> None:
        """Start all; returns when every one is ready: leaders known, partitions assigned.

        ``WorkloadError`` when one ends, or isn't ready within ``deadline_s``.
        """
        await self._all(EVERYBODY, Worker.start, deadline_s, "ready")

    async def go(self, start_us: int) -> None:
        """Senders begin their schedules at ``start_us`` (run clock), each shifted by its own offset."""
        await self._all(SENDERS, lambda worker: worker.order(Go(start_us=start_us)), MARGIN_S, "told to go")

    async def stop(self, at_us: int) -> None:
        """Senders send nothing intended at or after ``at_us``; returns when every record has its final status.

        That takes at most the longest deadline after ``at_us``, and some seconds. ``WorkloadError`` when a worker ends
        or hangs.
        """
        longest_us = max((told.deadline_ms for told in self._told if told.op != "consume"), default=0) * US_PER_MS
        limit_s = (max(0, at_us - self._now_us()) + longest_us) / US_PER_S + MARGIN_S
        await self._all(SENDERS, lambda worker: worker.ask(Stop(at_us=at_us)), limit_s, "done with its records")

    async def drain(
        self, end_offsets: Mapping[str, Mapping[int, int]], deadline_s: float
    ) -> Mapping[str, Mapping[int, int]]:
        """Consumers go on to the end offsets (topic -> partition -> offset), at most for ``deadline_s``.

        Returns what is missing, worker -> partition -> number of offsets: empty when all got to the end.
        """
        until_us = self._now_us() + int(deadline_s * US_PER_S)

        async def drain(worker: Worker) -> tuple[str, dict[int, int]]:
            ends = dict(end_offsets.get(worker.assignment.topic, {}))
            answer = await worker.ask(Drain(end_offsets=ends, until_us=until_us))
            return worker.assignment.worker, {int(number): count for number, count in answer["missing"].items()}

        answers = await self._all(READERS, drain, deadline_s + MARGIN_S, "done reading")
        return {name: missing for name, missing in answers if missing}

    async def quit(self, deadline_s: float = 10.0) -> None:
        """All write their closing counters, close their clients and end. One that is too slow at it is killed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await asyncio.gather(*(worker.order(Quit()) for worker in self._workers))
                await asyncio.gather(*(worker.end() for worker in self._workers))
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    async def watch(self) -> NoReturn:
        """Never returns. Raises ``WorkloadError`` as soon as a worker ends that wasn't told to. For a task group."""
        await _together([worker.end() for worker in self._workers], None)
        await asyncio.Event().wait()
        raise AssertionError("an event that nobody sets was set")

    def progress(self) -> Mapping[str, Progress]:
        """Worker -> its last message, for those that have said anything."""
        return {worker.assignment.worker: worker.progress for worker in self._workers if worker.progress}

    def medians_us(self) -> Mapping[str, Sequence[float]]:
        """Worker -> its one-second latency medians so far, oldest first: what ``warmup.settled`` takes."""
        return {worker.assignment.worker: worker.seconds.medians_us() for worker in self._workers}

    def pids(self) -> Mapping[str, int]:
        """Worker -> process id, for those that were started."""
        return {worker.assignment.worker: worker.pid for worker in self._workers if worker.pid}

    async def _all(
        self,
        ops: frozenset[str],
        act: Callable[[Worker], Coroutine[Any, Any, T]],
        deadline_s: float,
        what: str,
    ) -> list[T]:
        """What ``act`` returns for every worker of those ``ops``; ``WorkloadError`` when one is too late."""
        workers = [worker for worker in self._workers if worker.assignment.op in ops]
        results, late = await _together([act(worker) for worker in workers], deadline_s)
        if late:
            raise workers[late[0]].lateness(f"is not {what} after {deadline_s:.0f} s")
        return results


async def _together(actions: Sequence[Coroutine[Any, Any, T]], deadline_s: float | None) -> tuple[list[T], list[int]]:
    """Results of those that finished and indices of those that did not; the first error ends all and is raised."""
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
