"""Client processes of one run, as a fleet of workers that are started, commanded and restarted together."""

import asyncio
import itertools
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, NoReturn, Self, TypeVar

from aftershock.errors import WorkloadError
from aftershock.workloads.load.assignment import (
    Assignment,
    CommitAssignment,
    ConsumeAssignment,
    Drain,
    Go,
    Order,
    PipeAssignment,
    Place,
    ProduceAssignment,
    Quit,
    Stop,
    in_reserve,
)
from aftershock.workloads.load.events import run_clock
from aftershock.workloads.load.process import Death, Progress, Spawn, WorkerProcess, spawn_here
from aftershock.workloads.load.schedule import US_PER_MS, US_PER_S
from aftershock.workloads.load.spool import write_assignment
from aftershock.workloads.load.warmup import SecondMedians

FILE = "held.json"


class DownMarker(NamedTuple):
    """Content of the file ``held.json`` of a worker whose process ``pid`` a fault ends, 0 if there is no process yet.

    A fault writes the file into the worker's directory before the fault ends the worker; the death of a worker without
    the file is an error. The fleet restarts a killed worker when healing the fault has set ``down`` to False. The file
    ``held.json`` remains after the restart, because the fleet may notice the death of the process only after the
    restart.
    """

    pid: int
    down: bool


def mark_down(spool: Path, worker: str, pid: int) -> None:
    _write(spool / worker, DownMarker(pid, down=True))


def mark_released(spool: Path, worker: str) -> None:
    """Allow the fleet to restart a worker that a fault killed; do nothing if no fault has killed the worker."""
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


class Life(NamedTuple):
    """Latest process of a service: its id, and its start in clock ticks since boot (proc(5))."""

    pid: int
    started: int
    state: Literal["running", "frozen", "ended"] = "running"


_LIFE = "life.json"


def write_life(spool: Path, worker: str, pid: int) -> None:
    """Write down which process a worker has just started as its service, for other processes to find."""
    folder = spool / worker
    draft = folder / f".{_LIFE}"
    draft.write_text(json.dumps([pid, _stat(pid)[1]]))
    draft.replace(folder / _LIFE)


def read_lives(spool: Path, workers: Iterable[str]) -> dict[str, Life]:
    """Return the latest process of each service that was ever started, by the names of their workers."""
    lives = {}
    for worker in workers:
        with suppress(FileNotFoundError):
            pid, started = json.loads((spool / worker / _LIFE).read_bytes())
            lives[worker] = Life(pid, started, "ended")
            with suppress(OSError):
                letter, now_started = _stat(pid)
                if now_started == started and letter not in "ZX":  # else the id is another process's
                    lives[worker] = Life(pid, started, "frozen" if letter == "T" else "running")
    return lives


def _stat(pid: int) -> tuple[str, int]:
    """Return the state of a process, and its start in clock ticks since boot; raise OSError if it does not exist."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    state, *fields = text.rpartition(")")[2].split()
    return state, int(fields[18])


_POLL_S = 0.05


Died = Callable[[Assignment, Death], None]
"""Function that is told at once of each client that has ended by itself."""


class Worker:
    """Supervisor of one worker, which starts its process, and restarts it after a fault on the client is healed.

    A worker whose client ends by itself is restarted without it (``adapters/ended.py``), and ``death`` says how it
    ended; ``start_error`` is the error of one that ended before it was ready. Every method raises ``WorkloadError`` if
    the worker's process has ended for another reason.
    """

    def __init__(self, assignment: Assignment, logs: Path, died: Died | None = None, spawn: Spawn = spawn_here) -> None:
        self.assignment = assignment
        self._spawn = spawn
        self.death: Death | None = None
        self.start_error: WorkloadError | None = None
        self._died = died
        self.seconds = SecondMedians()
        self._logs = logs
        self._process = WorkerProcess(assignment, logs, self.seconds, spawn)
        self._up, self._over = asyncio.Event(), asyncio.Event()
        self._orders: list[Order] = []
        self._stop_us: int | None = None
        self._reports: tuple[str, ...] = ()
        self._earlier: Progress | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def progress(self) -> Progress | None:
        return _add_progress(self._earlier, self._process.progress)

    @property
    def reports(self) -> tuple[str, ...]:
        """What the client reports (``events.Reported``); empty before the start of a worker in reserve."""
        self._reports = self._process.reports or self._reports  # those of the process before while it restarts
        return self._reports

    @property
    def waits(self) -> bool:
        """True if the worker is in reserve and no fault has started it, or a fault has ended it again."""
        return in_reserve(self.assignment) and not self._up.is_set()

    async def start(self) -> None:
        """Start the worker's process; a worker in reserve starts when its marker is released."""
        assignment = self.assignment
        if in_reserve(assignment):
            directory = assignment.spool / assignment.worker
            directory.mkdir(parents=True)
            mark_down(assignment.spool, assignment.worker, pid=0)
            write_assignment(directory, assignment)
            self._process.ended.set()
        else:
            try:
                await self._process.start()
                self._up.set()
            except WorkloadError as error:
                if self._process.death is None:
                    raise
                self.start_error = error
        self._supervisor = asyncio.create_task(self._supervise())

    async def order(self, order: Order) -> None:
        """Send an order that has no answer to the worker, and again after each restart of its process."""
        self._orders.append(order)
        if self._up.is_set():
            process = self._process
            try:
                await process.order(order)
            except WorkloadError:
                if not self._is_replaced(process):
                    raise
        if isinstance(order, Quit) and not self._up.is_set():
            self._over.set()  # there is no process to order

    async def ask(self, order: Order) -> dict[str, Any]:
        """Send an order to the worker and return the answer; ask again after a restart."""
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
                if not self._is_replaced(process):
                    raise

    async def kill(self) -> None:
        if self._supervisor:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await self._process.kill()

    async def end(self) -> None:
        await self._over.wait()
        if self._up.is_set():
            await self._process.end()

    def overdue_error(self, problem: str) -> WorkloadError:
        process = self._process
        was_killed = process.assignment.life > 0 or self._marked_down(process)
        is_away = was_killed and not self._up.is_set()
        return process.error(f"{problem}: a fault killed the client, which has not restarted" if is_away else problem)

    async def _supervise(self) -> None:
        while True:
            await self._process.ended.wait()
            killed = self._marked_down(self._process)
            death = None if killed else self._process.death
            if self._process.quitting or not (killed or death):
                self._over.set()
                return
            self._up.clear()
            ended = self._process.assignment.ended
            if death is not None:
                self.death, ended = death, True
                if self._died is not None:
                    self._died(self.assignment, death)
            spool, worker = self.assignment.spool, self.assignment.worker
            while killed and (marker := read_down_marker(spool, worker)) is not None and marker.down:  # noqa: ASYNC110 -- another process may release it
                await asyncio.sleep(_POLL_S)
            self._earlier = self.progress
            assignment = self._process.assignment
            next_life = assignment.model_copy(update={"life": assignment.life + 1, "ended": ended})
            self._process = WorkerProcess(next_life, self._logs, self.seconds, self._spawn)
            with suppress(WorkloadError):  # a failure shows by the process's end
                await self._process.start()
                for order in self._orders:
                    update = {"stop_us": self._stop_us} if isinstance(order, Go) else {}
                    await self._process.order(order.model_copy(update=update))
            self._up.set()

    def _is_replaced(self, process: WorkerProcess) -> bool:
        """Return True if another process follows one that has ended: a fault killed it, or its client has ended."""
        if not self._marked_down(process) and process.death is None:
            return False
        if process is self._process:
            self._up.clear()
        return True

    def _marked_down(self, process: WorkerProcess) -> bool:
        marker = read_down_marker(self.assignment.spool, self.assignment.worker)
        return marker is not None and marker.pid == (process.pid or 0)


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


class Standstill(NamedTuple):
    """Where a group stopped reading after the load: per partition the position and the end that it did not reach.

    ``idle_us`` is how long it had read nothing; None if all of its members had ended.
    """

    positions: dict[Place, tuple[int, int]]
    idle_us: int | None


DRAIN_LIMIT_S = 300.0
"""Seconds that consumers may read after the load, as long as they advance fast enough to finish in time."""

_DRAIN_PAUSE_S = 0.5

SENDERS = frozenset({"produce", "commit"})
READERS = frozenset({"consume"})
PIPES = frozenset({"pipe"})

T = TypeVar("T")


async def _no_wait(_worker: str) -> None:
    """Return at once."""


class Fleet:
    """Client processes of one run, which are killed when the fleet's ``async with`` block ends for any reason.

    Each worker writes the log file ``<worker>.log`` in the directory ``logs``. Workers named in ``spawns`` are started
    by that function, on another host; all others are child processes. A client that ends by itself is told to
    ``died``, and the others go on. Every command to the fleet raises ``WorkloadError``, with the last lines of the
    worker's log, if a worker ends for another reason or hangs.
    """

    def __init__(
        self,
        assignments: Sequence[Assignment],
        logs: Path,
        died: Died | None = None,
        spawns: Mapping[str, Spawn] = MappingProxyType({}),
    ) -> None:
        names = [assignment.worker for assignment in assignments]
        if len(set(names)) < len(names):
            raise ValueError(f"worker names must be unique: {sorted(names)}")
        logs.mkdir(parents=True, exist_ok=True)
        self.assignments = assignments
        self._workers = [
            Worker(assignment, logs, died, spawns.get(assignment.worker, spawn_here)) for assignment in assignments
        ]
        self._now_us = run_clock(assignments[0].origin_ns if assignments else 0)
        self.standstills: dict[str, Standstill] = {}  # of groups of several, by the worker of their first member

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    async def start(
        self,
        deadline_s: float,
        in_turn: Iterable[Sequence[str]] = (),
        joined: Callable[[str], Awaitable[None]] = _no_wait,
    ) -> None:
        """Start all workers; wait until producers know leaders, consumers have partitions, and services are ready.

        The workers of each sequence of ``in_turn`` start one after the other, when ``joined`` returns for the one
        before. Raises ``WorkloadError`` if a client of each arm ends before it is ready.
        """
        done = {worker: asyncio.Event() for names in in_turn for worker in names}
        before = {later: earlier for names in in_turn for earlier, later in itertools.pairwise(names)}

        async def start(worker: Worker) -> None:
            name = worker.assignment.worker
            if name in before:
                await done[before[name]].wait()
            await worker.start()
            if name in done:
                await joined(name)
                done[name].set()

        await self._all(SENDERS | READERS | PIPES, start, deadline_s, "ready")
        failed = {_arm(worker): worker.start_error for worker in self._workers if worker.start_error is not None}
        if failed.keys() == {_arm(worker) for worker in self._workers}:
            raise next(iter(failed.values()))

    @property
    def dead(self) -> frozenset[str]:
        """Workers whose clients have ended by themselves."""
        return frozenset(worker.assignment.worker for worker in self._workers if worker.death is not None)

    async def go(self, start_us: int) -> None:
        """Start the schedules of all producers and committers; ``start_us`` is a time on the run's clock."""
        await self._all(SENDERS, lambda worker: worker.order(Go(start_us=start_us)), MARGIN_S, "started")

    async def stop(self, at_us: int) -> None:
        """End the schedules of producers and committers at ``at_us``; return when every record has its final status."""
        deadlines_ms = [
            assignment.deadline_ms
            for assignment in self.assignments
            if isinstance(assignment, ProduceAssignment | CommitAssignment)
        ]
        wait_us = max(0, at_us - self._now_us()) + max(deadlines_ms, default=0) * US_PER_MS
        limit_s = wait_us / US_PER_S + MARGIN_S
        await self._all(SENDERS, lambda worker: worker.ask(Stop(at_us=at_us)), limit_s, "done with its records")

    async def drain(
        self, end_offsets: Mapping[str, Mapping[int, int]], idle_s: float, limit_s: float = DRAIN_LIMIT_S
    ) -> Mapping[str, Mapping[Place, int]]:
        """Let consumers read up to the end offsets (topic → partition → offset), for ``limit_s`` at most.

        A consumer gives up earlier if its positions don't advance for ``idle_s``, or advance too slowly to finish.
        Return the number of offsets that consumers have not reached (worker → place → number); for a group of several
        members, the number that no member has reached, under the name of the first; ``standstills`` has then where the
        group stopped.
        """
        until_us, idle_us = self._now_us() + int(limit_s * US_PER_S), int(idle_s * US_PER_S)

        async def drain(clients: Sequence[Worker]) -> tuple[str, dict[Place, int]]:
            """Order the members of one client to read until they have reached every end together."""
            topics = [topic.name for topic in clients[0].assignment.topics]
            of_topics = {name: dict(end_offsets[name]) for name in topics if name in end_offsets}
            ends = _by_place(of_topics)
            order = Drain(end_offsets=of_topics, until_us=until_us, idle_us=idle_us)
            unread, progress_us = math.inf, self._now_us()
            while True:
                answers = await asyncio.gather(*(client.ask(order) for client in clients))
                reached = _highest(answer["positions"] for answer in answers)
                missing = {place: end - reached.get(place, 0) for place, end in ends.items()}
                missing = {place: count for place, count in missing.items() if count > 0}
                now_us = self._now_us()
                if sum(missing.values()) < unread:
                    unread, progress_us = sum(missing.values()), now_us
                # a partition may be on its way from one member to another
                dead = all(client.death is not None for client in clients)
                if missing and not dead and len(clients) > 1 and now_us < min(until_us, progress_us + idle_us):
                    await asyncio.sleep(_DRAIN_PAUSE_S)
                    continue
                worker = clients[0].assignment.worker
                if missing and len(clients) > 1:
                    positions = {place: (ends[place] - count, ends[place]) for place, count in missing.items()}
                    self.standstills[worker] = Standstill(positions, None if dead else now_us - progress_us)
                return worker, missing

        # another workload in the same group consumes other topics
        readers: dict[str, list[Worker]] = {}
        for worker in self._workers:
            assignment = worker.assignment
            if isinstance(assignment, ConsumeAssignment) and not worker.waits:
                members = f"{assignment.workload}/{assignment.arm}" if assignment.members > 1 else assignment.worker
                readers.setdefault(members, []).append(worker)
        answers, late = await _gather_within([drain(clients) for clients in readers.values()], limit_s + MARGIN_S)
        if late:
            raise [*readers.values()][late[0]][0].overdue_error(f"is not done reading after {limit_s + MARGIN_S:.0f} s")
        return {name: missing for name, missing in answers if missing}

    async def quit(self, deadline_s: float = 10.0, ops: frozenset[str] = SENDERS | READERS | PIPES) -> None:
        """Order the workers of ``ops`` to close and exit; kill those that still run after the deadline."""
        workers = [worker for worker in self._workers if worker.assignment.op in ops]
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await asyncio.gather(*(worker.order(Quit()) for worker in workers))
                await asyncio.gather(*(worker.end() for worker in workers))
        await asyncio.gather(*(worker.kill() for worker in workers))

    async def watch(self) -> NoReturn:
        """Raise ``WorkloadError`` as soon as a worker ends unexpectedly; never return."""
        await _gather_within([worker.end() for worker in self._workers], None)
        await asyncio.Event().wait()
        raise AssertionError("watch() returned from a wait for an event that nothing sets")

    def progress(self) -> Mapping[str, Progress]:
        return {worker.assignment.worker: worker.progress for worker in self._workers if worker.progress}

    def reports(self) -> Mapping[str, tuple[str, ...]]:
        """Return what each worker reports (``events.Reported``), except workers that report none of it."""
        return {worker.assignment.worker: worker.reports for worker in self._workers if worker.reports}

    def medians_us(self) -> Mapping[str, Sequence[float]]:
        """Return the latency medians of each worker, by name.

        A consumer that has read nothing of topics to which no worker produces is left out.
        """
        topics = {worker: {topic.name for topic in worker.assignment.topics} for worker in self._workers}
        produced = set[str]().union(*(topics[worker] for worker in topics if worker.assignment.op == "produce"))
        return {
            worker.assignment.worker: medians_us
            for worker in self._workers
            if not worker.waits and worker.death is None and worker.assignment.op not in PIPES
            if (medians_us := worker.seconds.medians_us())
            or worker.assignment.op in SENDERS
            or produced & topics[worker]
        }

    def worst_minute(self, since_us: int) -> tuple[int, float] | None:
        """Return the start and the p99 latency in us of the worst minute of a producer or committer since a time."""
        workers = [worker for worker in self._workers if worker.assignment.op in SENDERS]
        minutes = [minute for worker in workers for minute in worker.seconds.minutes if minute[0] >= since_us]
        return max(minutes, key=lambda minute: minute[1], default=None)

    def pids(self) -> Mapping[str, int]:
        return {worker.assignment.worker: worker.pid for worker in self._workers if worker.pid}

    async def _all(
        self, ops: frozenset[str], act: Callable[[Worker], Coroutine[Any, Any, T]], deadline_s: float, goal: str
    ) -> list[T]:
        workers = [worker for worker in self._workers if worker.assignment.op in ops]
        results, late = await _gather_within([act(worker) for worker in workers], deadline_s)
        if late:
            worker = workers[late[0]]
            unmet = worker.assignment.unmet if isinstance(worker.assignment, PipeAssignment) else ""
            raise worker.overdue_error(f"is not {goal} after {deadline_s:.0f} s{unmet}")
        return results


def _arm(worker: Worker) -> tuple[str, str]:
    return worker.assignment.workload, worker.assignment.arm


def _by_place(positions: Mapping[str, Mapping[Any, int]]) -> dict[Place, int]:
    """Return positions by place; the numbers of partitions may be the text that JSON makes of them."""
    return {(topic, int(number)): at for topic, numbers in positions.items() for number, at in numbers.items()}


def _highest(positions: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[Place, int]:
    """Return the highest of several readers' positions, by place."""
    highest: dict[Place, int] = {}
    for place, position in (item for of_reader in positions for item in _by_place(of_reader).items()):
        highest[place] = max(position, highest.get(place, 0))
    return highest


async def _gather_within(
    actions: Sequence[Coroutine[Any, Any, T]], deadline_s: float | None
) -> tuple[list[T], list[int]]:
    """Run coroutines for at most ``deadline_s``; return the results, and the indices of unfinished coroutines."""
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
