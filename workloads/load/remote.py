"""Hosts of clients as the runner sees them: their clients' processes, their clocks, and the evidence that they send.

A host is reached by a command whose standard input and output are those of `host`, on this machine or another one.

Its clock is measured all the time, because times of clients on different hosts are compared. A request for the host's
time that takes R shows the difference of both clocks with an error of R/2 at most (Cristian, Probabilistic clock
synchronization, 1989). The difference at the start places the run's origin on the host's clock; how far the difference
later moves away from that, plus the error of the measurement and what clocks drift in its age, bounds how wrong a time
in the rows can be.
"""

import asyncio
import json
import os
import time
from asyncio.subprocess import PIPE, Process
from base64 import b64decode
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from aftershock.errors import WorkloadError
from aftershock.workloads.load.assignment import Assignment
from aftershock.workloads.load.host import EVENTS, FOLDERS, LINE_MAX, LOGS, OUTCOMES

START_S = 60.0
"""Time limit for a host to answer at its start, in which Python imports the clients' libraries."""

ANSWER_S = 30.0
"""Time limit for any other answer; a host that needs longer for its clock's time is frozen, or cut off."""
SAVE_S = 120.0
"""Time limit to bring the evidence of a minute, or of what is left at the end."""
_END_S = 30.0
FIRST_MEASUREMENTS, MEASUREMENTS = 20, 40
"""Requests for a host's time at its start, and those of which the best counts afterwards, four a second.

A request that waits behind others for a CPU takes milliseconds, and one that does not some tens of microseconds, so
that one of those of ten seconds is good enough on a host that is not overloaded.
"""
_PERIOD_S = 0.25
DRIFT_PPM = 100
"""How fast two clocks may drift apart: the quartz of a computer is within 50 ppm of its frequency."""


class Difference(NamedTuple):
    """How far a host's clock is ahead of the runner's, and the largest error of that; by an answer at ``at_ns``."""

    ns: int
    error_ns: int
    at_ns: int = 0


def fastest(measured: Sequence[tuple[int, int, int]]) -> Difference:
    """Return the difference of two clocks by the fastest of requests, each (sent, host's time, answered) in ns."""
    sent_ns, host_ns, answered_ns = min(measured, key=lambda one: one[2] - one[0])
    return Difference(host_ns - (sent_ns + answered_ns) // 2, (answered_ns - sent_ns + 1) // 2, answered_ns)


class ClientInput:
    """Standard input of a client on a host."""

    def __init__(self, host: "RemoteHost", worker: str) -> None:
        self._host, self._worker = host, worker

    def write(self, line: bytes) -> None:
        self._host.send("write", worker=self._worker, line=line.decode().rstrip("\n"))

    async def drain(self) -> None:
        await self._host.drain()


class RemoteProcess:
    """Process of a client on a host, with the part of ``asyncio.subprocess.Process`` that the runner uses."""

    def __init__(self, host: "RemoteHost", worker: str) -> None:
        self._host, self._worker = host, worker
        self.pid = 0
        self.returncode: int | None = None
        self.stdin, self.stdout = ClientInput(host, worker), asyncio.StreamReader()
        self.started, self._ended = asyncio.Event(), asyncio.Event()

    def kill(self) -> None:
        if not self._ended.is_set():
            self._host.send("kill", worker=self._worker)

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode

    def end(self, status: int | None) -> None:
        self.returncode = status
        self.stdout.feed_eof()
        self.started.set()
        self._ended.set()


class RemoteHost:
    """One host of a run, from ``open`` to ``close``.

    ``command`` starts `host`, up to its arguments. ``home`` is the run directory, to which the host's files go,
    ``root`` the folder for them on the host. Methods raise WorkloadError if the host has ended.
    """

    def __init__(self, name: str, command: Sequence[str], root: str, run_id: str, home: Path, origin_ns: int) -> None:
        self.name = name
        self._command = (*command, run_id, name, root)
        self._home, self._origin_ns = home, origin_ns
        self._process: Process | None = None
        self._clients: dict[str, RemoteProcess] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._asked: deque[tuple[int, asyncio.Future[tuple[int, int, int]]]] = deque()
        self._measured: deque[tuple[int, int, int]] = deque(maxlen=MEASUREMENTS)
        self._saves = count(1)
        self._saved: dict[int, asyncio.Future[None]] = {}
        self._failure = ""
        self._over: str | None = None
        self._opened = False
        self.start = Difference(0, 0)
        self.bound_us = 0

    async def open(self) -> None:
        """Start the host, and measure its clock. Raises WorkloadError if it does not answer in time."""
        (self._home / OUTCOMES).mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, stderr=log, limit=LINE_MAX, start_new_session=True
            )
        self._tasks = [asyncio.create_task(self._listen(self._process))]
        try:
            async with asyncio.timeout(START_S):
                measured = [await self._measure() for _ in range(FIRST_MEASUREMENTS)]
        except TimeoutError:
            problem = f"{self._subject} does not answer after {START_S:.0f} s; its log is {self._log}"
            raise WorkloadError(problem) from None
        self.start, self._opened = fastest(measured), True
        self.bound_us = -(-self.start.error_ns // 1000)
        self._tasks.append(asyncio.create_task(self._keep_measuring(self._process)))

    async def close(self, *, in_order: bool) -> None:
        """Bring what is left of the evidence, and end the host.

        Raises WorkloadError if evidence is missing, unless the run does not end ``in_order`` and so has its own error.
        """
        try:
            if self._process and not self._opened:
                self._fail(self._process, "it did not start")
            elif self._process:
                await self.save(over=True)
                if self._measured:  # of a short run fewer than usual
                    self.bound_us = max(self.bound_us, self._bound_us())
        except WorkloadError:
            if in_order:
                raise
        finally:
            await self._end()

    async def spawn(self, assignment: Assignment, _log: Path) -> RemoteProcess:
        """Start the process of a client."""
        process = self._clients[assignment.worker] = RemoteProcess(self, assignment.worker)
        self.send("start", worker=assignment.worker, origin_ns=self._origin_ns + self.start.ns)
        await process.started.wait()
        return process

    async def save(self, *, over: bool = False) -> None:
        """Bring the rows, transactions, events and logs of the host's clients to the run directory."""
        number, saved = next(self._saves), asyncio.get_running_loop().create_future()
        self._saved[number] = saved
        self.send("save", number=number, over=over)
        try:
            async with asyncio.timeout(SAVE_S):
                await saved
        except TimeoutError:
            problem = f"{self._subject} did not send its evidence within {SAVE_S:.0f} s; its log is {self._log}"
            raise WorkloadError(problem) from None
        finally:
            del self._saved[number]

    def send(self, do: str, **details: Any) -> None:
        if self._over is not None or self._process is None or self._process.stdin is None:
            raise WorkloadError(self._over or f"{self._subject} has not started")
        self._process.stdin.write(json.dumps({"do": do} | details).encode() + b"\n")

    async def drain(self) -> None:
        if self._process and self._process.stdin:
            with suppress(ConnectionError):  # `_listen` tells of the end
                await self._process.stdin.drain()

    @property
    def _subject(self) -> str:
        return f"the host {self.name} of the clients"

    @property
    def _log(self) -> Path:
        return self._home / "logs" / f"host-{self.name}.log"

    async def _measure(self) -> tuple[int, int, int]:
        answer: asyncio.Future[tuple[int, int, int]] = asyncio.get_running_loop().create_future()
        self._asked.append((time.monotonic_ns(), answer))
        self.send("clock")
        return await answer

    async def _keep_measuring(self, process: Process) -> None:
        with suppress(WorkloadError):
            while True:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        self._measured.append(await self._measure())
                except TimeoutError:
                    self._fail(process, f"it gave no answer for {ANSWER_S:.0f} s")
                    return
                if len(self._measured) == MEASUREMENTS:
                    self.bound_us = max(self.bound_us, self._bound_us())
                await asyncio.sleep(_PERIOD_S)

    def _bound_us(self) -> int:
        """Return how wrong the host's times may be now: each of the latest measurements is a bound."""
        now_ns = self._measured[-1][2]

        def bound_ns(measured: tuple[int, int, int]) -> int:
            then = fastest([measured])
            drifted_ns = (now_ns - then.at_ns) * DRIFT_PPM // 1_000_000
            return abs(then.ns - self.start.ns) + then.error_ns + drifted_ns

        return -(-min(map(bound_ns, self._measured)) // 1000)

    def _fail(self, process: Process, why: str) -> None:
        self._failure = self._failure or why
        with suppress(ProcessLookupError):
            process.kill()

    async def _listen(self, process: Process) -> None:
        try:
            while process.stdout and (line := await process.stdout.readline()):
                now_ns = time.monotonic_ns()
                self._hear(json.loads(line), now_ns)
        except (ValueError, KeyError, TypeError) as error:
            self._fail(process, f"it wrote a line that is not its own: {error}")
        except asyncio.CancelledError:  # by a second Ctrl-C: clients are waited for, so their host must end
            self._fail(process, "the run was interrupted")
            raise
        except (WorkloadError, OSError) as error:
            self._fail(process, f"its evidence can't be written: {error}" if isinstance(error, OSError) else str(error))
        finally:
            status = await process.wait()
            self._over = (
                f"{self._subject} ended early ({self._failure or f'exit status {status}'}); its log is {self._log}"
            )
            reason = json.dumps({"say": "died", "why": self._over}).encode() + b"\n"
            for client in self._clients.values():
                if client.returncode is None:
                    client.stdout.feed_data(reason)
                    client.end(None)
            waiting: list[asyncio.Future[Any]] = [answer for _, answer in self._asked]
            for answer in (*waiting, *self._saved.values()):
                if not answer.done():
                    answer.set_exception(WorkloadError(self._over))
                    answer.exception()  # that it was not awaited is no error

    def _hear(self, message: dict[str, Any], now_ns: int) -> None:
        match message["say"]:
            case "clock":
                sent_ns, answer = self._asked.popleft()
                if not answer.done():
                    answer.set_result((sent_ns, message["ns"], now_ns))
            case "started":
                process = self._clients[message["worker"]]
                process.pid = message["pid"]
                process.started.set()
            case "line":
                self._clients[message["worker"]].stdout.feed_data(message["line"].encode())
            case "ended":
                self._clients[message["worker"]].end(message["status"])
            case "events":
                self._append(EVENTS, "".join(f"{line}\n" for line in message["lines"]).encode())
            case "log":
                self._append(f"{LOGS}/{_plain(message['name'])}", b64decode(message["content"]))
            case "file":
                self._write_file(message["path"], b64decode(message["content"]), last=message["last"])
            case "saved":
                self._remove_stale(message["parts"])
                if (saved := self._saved.get(message["number"])) and not saved.done():
                    saved.set_result(None)
            case "failed":
                raise WorkloadError(message["why"])

    def _append(self, name: str, content: bytes) -> None:
        descriptor = os.open(self._home / name, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)

    def _write_file(self, relative: str, piece: bytes, *, last: bool) -> None:
        """Add the next piece to a file, which takes the place of the one before with its last piece."""
        folder, _, name = relative.partition("/")
        if folder not in FOLDERS:
            raise ValueError(f"the file {relative}")
        path = self._home / folder / _plain(name)
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        with draft.open("ab") as file:
            file.write(piece)
        if last:
            draft.replace(path)

    def _remove_stale(self, parts: Sequence[str]) -> None:
        """Remove the files of this host's clients that others have replaced (`outcomes`)."""
        own = {part.partition("~")[0].removesuffix(".parquet") for part in parts}
        for path in (self._home / OUTCOMES).glob("part-*.parquet"):
            if path.name.partition("~")[0].removesuffix(".parquet") in own and path.name not in parts:
                path.unlink()

    async def _end(self) -> None:
        for task in self._tasks[1:]:
            task.cancel()
        process = self._process
        if process is None:
            return
        if process.stdin:
            process.stdin.close()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            self._fail(process, "it did not end")
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _plain(name: str) -> str:
    """Return the name of a file; raise ValueError for a path."""
    if not name or name in (".", "..") or "/" in name:
        raise ValueError(f"the file {name}")
    return name
