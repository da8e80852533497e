"""One life of a worker, seen from the runner: a child process, what it said, and how it ended."""

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aftershock.errors import WorkloadError
from aftershock.workloads.load.assignment import Assignment
from aftershock.workloads.load.orders import Order, Quit
from aftershock.workloads.load.warmup import Seconds

WORKER = (sys.executable, "-P", "-m", "aftershock.workloads.load.worker")
"""What starts a worker; who looks for its process knows it by the last word here, the run and its name."""

LOG_LINES = 5
_ROLES = {"produce": "producer", "consume": "consumer", "commit": "committer"}


@dataclass(frozen=True)
class Progress:
    """What a worker last said of itself. ``t_us`` is when; ``window_us`` the latencies completed since the time before.

    A consumer's ``ok`` are the records delivered to it; it sends none. ``traffic`` is broker → bytes (sent, received),
    ``counts`` those of a client's counters that are told while it runs.
    """

    worker: str
    workload: str
    arm: str
    op: Literal["produce", "consume", "commit"]
    rack: str
    t_us: int
    sent: int
    ok: int
    failed: int
    in_doubt: int
    late_p99_us: int
    window_us: tuple[int, ...]
    traffic: Mapping[int, tuple[int, int]]
    counts: Mapping[str, int] = field(default_factory=dict)


class WorkerProcess:
    """Starts one worker, hands it orders, keeps what it says. All of it on the event loop's thread."""

    def __init__(self, assignment: Assignment, logs: Path, seconds: Seconds) -> None:
        self.assignment = assignment
        self.log = logs / f"{assignment.worker}.log"
        self.seconds = seconds
        self.progress: Progress | None = None
        self.ended = asyncio.Event()
        self._process: Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._quitting = False
        self._why: str | None = None

    @property
    def quitting(self) -> bool:
        """Whether it was told to end."""
        return self._quitting

    @property
    def pid(self) -> int | None:
        """The process id, None before ``start``."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process and hand over its assignment; returns when it is ready, ``WorkloadError`` if it ends."""
        ready = self._awaited("ready")
        with self.log.open("ab") as log:
            # a session of its own: a terminal's Ctrl-C is for the runner to judge, and what it starts is known by it;
            # the names are there for `heal`, and for faults on clients
            self._process = await asyncio.create_subprocess_exec(
                *WORKER,
                *(self.assignment.run_id, self.assignment.worker),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._listening = asyncio.create_task(self._listen(self._process))
        await self._write(self.assignment.model_dump_json())
        await self._or_ended(ready)

    async def order(self, order: Order) -> None:
        """Hand over an order; ``WorkloadError`` if the worker has ended."""
        if self.ended.is_set() and not self._quitting:
            raise self.death()
        self._quitting = self._quitting or isinstance(order, Quit)
        await self._write(order.model_dump_json())

    async def ask(self, order: Order) -> dict[str, Any]:
        """Hand over an order and wait for it to be done; ``WorkloadError`` if the worker ends first."""
        done = self._awaited(order.do)
        await self.order(order)
        return await self._or_ended(done)

    async def kill(self) -> None:
        """End it by its id, whatever it is doing, and wait until it is gone. Nothing to do for one that has ended."""
        if self._process is None:
            return
        self._quitting = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._listening:
            await self._listening

    async def end(self) -> None:
        """Wait for the process to be gone. ``WorkloadError`` if it ended without being told to."""
        await self.ended.wait()
        if not self._quitting:
            raise self.death()

    def death(self) -> WorkloadError:
        """The sentence about a worker that ended too early: who, why, or else how and the last lines of its log."""
        if self._why is not None:
            return self._sentence(f"ended early: {self._why}", "")
        return self._sentence(f"ended early: {self._exit()}", _last_lines(self.log))

    def lateness(self, what: str) -> WorkloadError:
        """The sentence about a worker that is alive but not where it should be."""
        return self._sentence(what, _last_lines(self.log))

    def _sentence(self, what: str, lines: str) -> WorkloadError:
        told = self.assignment
        who = f"the {_ROLES[told.op]} of arm {told.arm} in workload {told.workload}"
        return WorkloadError(f"{who} {what}; its log is {self.log}{lines}")

    def _exit(self) -> str:
        status = self._process.returncode if self._process else None
        return f"killed by signal {-status}" if status is not None and status < 0 else f"exit status {status}"

    def _awaited(self, what: str) -> asyncio.Future[dict[str, Any]]:
        self._answers[what] = asyncio.get_running_loop().create_future()
        return self._answers[what]

    async def _or_ended(self, answer: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        ended = asyncio.create_task(self.ended.wait())
        either: set[asyncio.Future[Any]] = {answer, ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if answer.done():
            return answer.result()
        raise self.death()

    async def _write(self, line: str) -> None:
        if self._process and self._process.stdin:
            with contextlib.suppress(ConnectionError):  # it has ended: whoever waits for the answer is told
                self._process.stdin.write(line.encode() + b"\n")
                await self._process.stdin.drain()

    async def _listen(self, process: Process) -> None:
        if process.stdout is None:
            return
        try:
            while line := await process.stdout.readline():
                self._hear(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:  # no JSON, a line without end: that is not our worker
            self._why = f"it said what is no report: {error}"
            process.kill()
        await process.wait()
        self.ended.set()

    def _hear(self, message: dict[str, Any]) -> None:
        match message.pop("say"):
            case "progress":
                self._note(message)
            case "died":
                self._why = message["why"]
            case "done":
                self._answer(message.pop("did"), message)
            case "ready":
                self._answer("ready", message)

    def _answer(self, what: str, message: dict[str, Any]) -> None:
        answer = self._answers.pop(what, None)
        if answer and not answer.done():
            answer.set_result(message)

    def _note(self, message: dict[str, Any]) -> None:
        told, window_us = self.assignment, message.pop("window")
        traffic = {int(broker): (sent, received) for broker, (sent, received) in message.pop("traffic").items()}
        self.seconds.add(message["t_us"], window_us)
        self.progress = Progress(
            told.worker,
            told.workload,
            told.arm,
            told.op,
            told.rack,
            window_us=tuple(window_us),
            traffic=traffic,
            **message,
        )


def _last_lines(log: Path) -> str:
    """The log's last lines, to be read under the sentence; nothing when the worker wrote none."""
    try:
        size = log.stat().st_size
        with log.open("rb") as file:
            file.seek(max(0, size - 16_384), os.SEEK_SET)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "".join(f"\n    {line}" for line in lines[-LOG_LINES:])
