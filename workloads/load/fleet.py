"""Who of a run's workers is down on purpose: a word, on the disk, from whoever kills one to the fleet that owns it.

The killer may be another process than the fleet's (a fault by hand), and so may be the one that ends it (``heal``). So
the word is a file beside the worker's rows. It names the process that was killed: any other death of that worker is
nobody's intention. It stays when the worker may come back, for a fleet that sees the death later than that.

One worker over all its lives: a death that a fault ordered is followed by another life, any other is the end.

::

    start ─▶ lives ──killed, and held──▶ down ──released──▶ lives again ─▶ … ─▶ quits
               │
               └──any other death──▶ over: every command, and ``end``, says so

Rules: what was ordered once (``go``) is told to every life, with the end that is known by then; what is asked
(``stop``, ``drain``) is asked of the life that can answer, for as long as whoever asks will wait; counts go on over all
lives.

All client processes of one run, commanded together.

Rules: every process is this runner's child and is gone when the ``async with`` block is left, however it is left; a
worker that ends without being told to is an error, at the next command and from ``watch``, that names it and shows its
last log lines. One that a fault killed is no error, and starts again when the fault is over (``lives.py``).
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

from aftershock.errors import WorkloadError
from aftershock.workloads.load.assignment import Assignment
from aftershock.workloads.load.events import run_clock
from aftershock.workloads.load.orders import Drain, Go, Order, Quit, Stop
from aftershock.workloads.load.process import Progress, WorkerProcess
from aftershock.workloads.load.schedule import US_PER_MS, US_PER_S
from aftershock.workloads.load.warmup import Seconds

FILE = "held.json"


class Held(NamedTuple):
    """The process (``pid``) of a worker that a fault killed; ``down``: it is to stay dead for now."""

    pid: int
    down: bool


def hold(spool: Path, worker: str, pid: int) -> None:
    """To be said before the kill."""
    _write(spool / worker, Held(pid, down=True))


def release(spool: Path, worker: str) -> None:
    """It may be started again; nothing to do if it isn't held, or the run is over."""
    held = held_of(spool, worker)
    if held is not None and held.down:
        _write(spool / worker, held._replace(down=False))


def held_of(spool: Path, worker: str) -> Held | None:
    """What was last said of a worker; None for one that nobody ever killed."""
    with suppress(OSError):
        return Held(**json.loads((spool / worker / FILE).read_bytes()))
    return None


def _write(folder: Path, held: Held) -> None:
    draft = folder / f".{FILE}"
    draft.write_text(json.dumps(held._asdict()))
    draft.replace(folder / FILE)


_LOOK_S = 0.05


class Worker:
    """Started once; lives as often as faults let it."""

    def __init__(self, assignment: Assignment, logs: Path) -> None:
        self.assignment = assignment
        self.seconds = Seconds()
        self._logs = logs
        self._life = WorkerProcess(assignment, logs, self.seconds)
        self._up, self._over = asyncio.Event(), asyncio.Event()
        self._orders: list[Order] = []
        self._stop_us: int | None = None
        self._before: Progress | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of its latest life, None before ``start``."""
        return self._life.pid

    @property
    def progress(self) -> Progress | None:
        """What it last said of itself, all lives counted."""
        return _summed(self._before, self._life.progress)

    async def start(self) -> None:
        """Begin its first life; returns when it is ready, ``WorkloadError`` if it ends."""
        await self._life.start()
        self._up.set()
        self._keeper = asyncio.create_task(self._keep())

    async def order(self, order: Order) -> None:
        """Hand over an order, to every later life as well; ``WorkloadError`` if the worker has ended."""
        self._orders.append(order)
        if self._up.is_set():
            life = self._life
            try:
                await life.order(order)
            except WorkloadError:
                if not self._forgiven(life):
                    raise
        if isinstance(order, Quit) and not self._up.is_set():
            self._over.set()  # there is nobody to tell

    async def ask(self, order: Order) -> dict[str, Any]:
        """Hand over an order and wait for it to be done; ``WorkloadError`` if the worker ends first."""
        if isinstance(order, Stop):
            self._stop_us = order.at_us
        while True:
            life = await self._living()
            try:
                return await life.ask(order)
            except WorkloadError:
                if not self._forgiven(life):
                    raise

    async def kill(self) -> None:
        """End it for good, whatever it is doing, and wait until it is gone. Nothing to do for one that has ended."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self._life.kill()

    async def end(self) -> None:
        """Wait for its end. ``WorkloadError`` if it ended without being told to."""
        await self._over.wait()
        if self._up.is_set():
            await self._life.end()

    def lateness(self, what: str) -> WorkloadError:
        """The sentence about a worker that is not where it should be."""
        return self._life.lateness(what if self._up.is_set() else f"{what}: a fault killed it, and it is not back")

    async def _keep(self) -> None:
        """Have it live again after each death that was ordered; any other death is the end."""
        while True:
            await self._life.ended.wait()
            if self._life.quitting or not self._was_held(self._life):
                self._over.set()
                return
            self._up.clear()
            while _is_down(self._held()):  # noqa: ASYNC110 -- whoever ends it may be another process
                await asyncio.sleep(_LOOK_S)
            await self._live_again()

    async def _live_again(self) -> None:
        self._before = self.progress
        told = self._life.assignment
        self._life = WorkerProcess(told.model_copy(update={"life": told.life + 1}), self._logs, self.seconds)
        with suppress(WorkloadError):  # what became of it is seen by its end, as with every life
            await self._life.start()
            for order in self._orders:
                known = {"stop_us": self._stop_us} if isinstance(order, Go) else {}
                await self._life.order(order.model_copy(update=known))
        self._up.set()

    async def _living(self) -> WorkerProcess:
        """The life that can be asked, once there is one; the latest one's death when there will be none."""
        up, over = asyncio.create_task(self._up.wait()), asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({up, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
            over.cancel()
        return self._life

    def _forgiven(self, life: WorkerProcess) -> bool:
        """Whether a life's death was a fault's work; then it isn't asked again."""
        if not self._was_held(life):
            return False
        if life is self._life:
            self._up.clear()
        return True

    def _held(self) -> Held | None:
        return held_of(self.assignment.spool, self.assignment.worker)

    def _was_held(self, life: WorkerProcess) -> bool:
        held = self._held()
        return held is not None and held.pid == life.pid


def _is_down(held: Held | None) -> bool:
    return held is not None and held.down


def _summed(before: Progress | None, now: Progress | None) -> Progress | None:
    """The latest, with the counts of earlier lives added."""
    if before is None or now is None:
        return now or before
    traffic = {
        broker: (one[0] + other[0], one[1] + other[1])
        for broker in {*before.traffic, *now.traffic}
        for one, other in [(before.traffic.get(broker, (0, 0)), now.traffic.get(broker, (0, 0)))]
    }
    told = dict(Counter(before.counts) + Counter(now.counts))
    sums = {name: getattr(before, name) + getattr(now, name) for name in ("sent", "ok", "failed", "in_doubt")}
    return replace(now, traffic=traffic, counts=told, **sums)


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
