"""Process of one worker, as the runner sees it, with its reports and its end."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from aftershock.errors import WorkloadError
from aftershock.workloads.load.assignment import Assignment, Order, ProduceAssignment, Quit
from aftershock.workloads.load.warmup import SecondMedians

WORKER = (sys.executable, "-P", "-m", "aftershock.workloads.load.worker")
"""Command that starts a worker's process; the run's id and the worker's name follow as arguments."""

LOG_LINES = 5
_ROLES = {"produce": "producer", "consume": "consumer", "commit": "committer", "pipe": "service"}


@dataclass(frozen=True)
class Progress:
    """Latest progress report of a worker, made at ``t_us``.

    ``window_us`` holds the latencies since the worker's previous report. ``traffic`` maps each broker to the bytes
    (sent, received). ``counts`` holds the client's own counters. A consumer's ``ok`` counts its delivered records.
    """

    worker: str
    workload: str
    arm: str
    op: str
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


_CRASHES = frozenset(
    (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP)
)
"""Signals that a process causes itself; others come from another process or from the kernel's memory management."""


class Death(NamedTuple):
    """End of a client that neither the runner nor a fault caused.

    ``status`` is the exit status, or the negative number of the signal; None if the client only gave up. ``lines`` are
    the last of its output.
    """

    why: str
    status: int | None
    lines: tuple[str, ...]


def descendants(ancestor: int) -> list[int]:
    """Return the processes that a process has started, and theirs (proc(5)), without those that are dead."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent, *_ = (
                (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            )
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(folder.name))
    found, unread = list[int](), [ancestor]
    while unread:
        own = children.get(unread.pop(), [])
        found += own
        unread += own
    return found


class Input(Protocol):
    """Standard input of a process, as ``asyncio.StreamWriter``."""

    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None: ...


class Started(Protocol):
    """Process of a worker, as ``asyncio.subprocess.Process``, here or elsewhere (``remote``)."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    @property
    def stdin(self) -> Input | None: ...

    @property
    def stdout(self) -> asyncio.StreamReader | None: ...

    def kill(self) -> None: ...

    async def wait(self) -> int | None: ...


Spawn = Callable[[Assignment, Path], Awaitable[Started]]
"""Function that starts the process of a worker, whose log lines belong to a file."""


async def start_worker(run_id: str, worker: str, log: Path) -> Process:
    """Start a worker as a child process, which still needs its assignment.

    The worker has its own session, because the runner handles Ctrl-C, and to find the worker's children. `heal` and
    faults on clients find the worker by the names on its command line.
    """
    with log.open("ab") as stderr:
        return await asyncio.create_subprocess_exec(
            *WORKER, run_id, worker, stdin=PIPE, stdout=PIPE, stderr=stderr, start_new_session=True
        )


async def spawn_here(assignment: Assignment, log: Path) -> Started:
    return await start_worker(assignment.run_id, assignment.worker, log)


class WorkerProcess:
    """Process of one worker; its methods raise ``WorkloadError`` if the process has ended unexpectedly."""

    def __init__(self, assignment: Assignment, logs: Path, seconds: SecondMedians, spawn: Spawn = spawn_here) -> None:
        self._spawn = spawn
        self.assignment = assignment
        self.log = logs / f"{assignment.worker}.log"
        self.seconds = seconds
        self.progress: Progress | None = None
        self.reports: tuple[str, ...] = ()
        self.ended = asyncio.Event()
        self._process: Started | None = None
        self._listener: asyncio.Task[None] | None = None
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.quitting = False  # the worker was ordered to end
        self.is_ready = False
        self._reason: str | None = None
        self._of_client: Mapping[str, Any] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        self._process = await self._spawn(self.assignment, self.log)
        self._listener = asyncio.create_task(self._listen(self._process))
        ready = await self._request("ready", self.assignment.model_dump_json())
        self.reports, self.is_ready = tuple(ready.get("reports", ())), True

    async def order(self, order: Order) -> None:
        if self.ended.is_set() and not self.quitting:
            raise self.early_end_error()
        self.quitting = self.quitting or isinstance(order, Quit)
        await self._write(order.model_dump_json())

    async def ask(self, order: Order) -> dict[str, Any]:
        return await self._request(order.do, order.model_dump_json())

    async def kill(self) -> None:
        if self._process is None:
            return
        self.quitting = True
        # the kernel ends a service's first process with the worker, but not the processes that it has started
        children = descendants(self._process.pid) if self.assignment.op == "pipe" else []
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._process.wait()
        if self._listener:
            await self._listener

    async def end(self) -> None:
        await self.ended.wait()
        if not self.quitting:
            raise self.early_end_error()

    @property
    def death(self) -> Death | None:
        """The end of the client by itself; None if it runs, was ordered to end, or the worker failed instead.

        A setting that a library refuses at its start is an error of the plan. A process that another one killed, and
        a benchmark, whose load ends with it, are failures of the run.
        """
        assignment = self.assignment
        if not self.ended.is_set() or self.quitting or assignment.ended or assignment.op == "pipe":
            return None
        if isinstance(assignment, ProduceAssignment) and assignment.num_records is not None:
            return None
        in_process = assignment.client == "confluent"
        if in_process and not self.is_ready:
            return None
        if (told := self._of_client) is not None:
            return Death(str(told["cause"]), told["status"], tuple(told["lines"]))
        status = self._process.returncode if self._process else None
        if in_process and self._reason is None and status is not None:  # a native library can end its process
            if -status in _CRASHES:
                why = f"the process was killed by signal {-status} ({signal.Signals(-status).name})"
                return Death(why, status, self._last_lines())
            if status > 0:
                return Death(f"the process ended with exit status {status}", status, self._last_lines())
        return None

    def _last_lines(self, count: int = LOG_LINES) -> tuple[str, ...]:
        lines: deque[str] = deque(maxlen=count)
        with contextlib.suppress(OSError), self.log.open(errors="replace") as file:
            lines.extend(line.rstrip() for line in file)
        return tuple(lines)

    def early_end_error(self) -> WorkloadError:
        if self._reason is not None:
            return self.error(f"ended early: {self._reason}", log_lines=0)
        status = self._process.returncode if self._process else None
        end = f"killed by signal {-status}" if status is not None and status < 0 else f"exit status {status}"
        return self.error(f"ended early: {end}")

    def error(self, problem: str, log_lines: int = LOG_LINES) -> WorkloadError:
        shown = "".join(f"\n    {line}" for line in self._last_lines(log_lines))
        assignment = self.assignment
        subject = f"the {_ROLES[assignment.op]} of arm {assignment.arm} in workload {assignment.workload}"
        return WorkloadError(f"{subject} {problem}; its log is {self.log}{shown}")

    async def _request(self, kind: str, line: str) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[kind] = answer
        await self._write(line)
        ended = asyncio.create_task(self.ended.wait())
        try:
            await asyncio.wait((answer, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if answer.done():
            return answer.result()
        raise self.early_end_error()

    async def _write(self, line: str) -> None:
        if self._process and self._process.stdin:
            with contextlib.suppress(ConnectionError):  # it has ended: the wait for the answer raises
                self._process.stdin.write(line.encode() + b"\n")
                await self._process.stdin.drain()

    async def _listen(self, process: Started) -> None:
        if process.stdout is None:
            return
        try:
            while line := await process.stdout.readline():
                message = json.loads(line)
                match message.pop("say"):
                    case "progress":
                        window_us, traffic = message.pop("window"), message.pop("traffic")
                        self.seconds.add(message["t_us"], window_us)
                        names = ("worker", "workload", "arm", "rack")
                        self.progress = Progress(
                            **{name: getattr(self.assignment, name) for name in names},
                            op=self.assignment.side,
                            **message,
                            window_us=tuple(window_us),
                            traffic={int(broker): (sent, received) for broker, (sent, received) in traffic.items()},
                        )
                    case "died":
                        self._reason, self._of_client = message["why"], message.get("client")
                    case "done" | "ready" as report:
                        answer = self._answers.pop(message.pop("did") if report == "done" else report, None)
                        if answer and not answer.done():
                            answer.set_result(message)
        except (ValueError, KeyError, TypeError) as error:  # not JSON, or an endless line: not a worker's output
            self._reason = f"the worker wrote a line that is not a report: {error}"
            process.kill()
        await process.wait()
        self.ended.set()
