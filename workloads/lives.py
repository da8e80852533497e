"""One worker over all its lives: a death that a fault ordered is followed by another life, any other is the end.

::

    start ─▶ lives ──killed, and held──▶ down ──released──▶ lives again ─▶ … ─▶ quits
               │
               └──any other death──▶ over: every command, and ``end``, says so

Rules: what was ordered once (``go``) is told to every life, with the end that is known by then; what is asked
(``stop``, ``drain``) is asked of the life that can answer, for as long as whoever asks will wait; counts go on over all
lives.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from aftershock.errors import WorkloadError
from aftershock.workloads.assignment import Assignment
from aftershock.workloads.held import Held, held_of
from aftershock.workloads.orders import Go, Order, Quit, Stop
from aftershock.workloads.process import Progress, WorkerProcess
from aftershock.workloads.seconds import Seconds

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
