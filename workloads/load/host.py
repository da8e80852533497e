"""Process that runs clients of a run away from its runner (``python -m aftershock.workloads.load.host RUN NAME ROOT``).

The arguments RUN and NAME only make the process easy to find; ROOT is the folder for its files, which it creates and
removes. Runner and host exchange one JSON object per line; the runner writes to the host's standard input::

    {"do": "clock"}                                  ->
                                                     <-  {"say": "clock", "ns": MONOTONIC}
    {"do": "start", "worker": ..., "origin_ns": ...} ->
                                                     <-  {"say": "started", "worker": ..., "pid": ...}
    {"do": "write", "worker": ..., "line": ...}      ->      (a line for the client's standard input)
                                                     <-  {"say": "line", "worker": ..., "line": ...}
    {"do": "kill", "worker": ...}                    ->
                                                     <-  {"say": "ended", "worker": ..., "status": ...}
    {"do": "save", "number": ..., "over": ...}       ->
                                                     <-  {"say": "events", "lines": [...]}
                                                     <-  {"say": "log", "name": ..., "content": BASE64}
                                                     <-  {"say": "file", "path": ..., "content": BASE64, "last": ...}
                                                     <-  {"say": "saved", "number": ..., "parts": [...]}
                                                     <-  {"say": "failed", "why": ...}

The clients are processes of `worker`, unchanged: their first line, the assignment, gets the folders of this host, and
``origin_ns``, the run's origin by this host's clock. Their rows are converted to Parquet here, and sent with each
``save``, also one that the host makes by itself (``number`` is null): each file in pieces, and again if it has changed.
A file that can't change any more is emptied, because memory holds it. A host that can't go on says that it has
``failed``. If the runner is gone, the clients are killed and the files removed.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import Process
from base64 import b64encode
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from aftershock.workloads.load.assignment import parse_assignment
from aftershock.workloads.load.outcomes import convert, is_full, move
from aftershock.workloads.load.process import start_worker
from aftershock.workloads.load.transactions import SPOOL as TRANSACTIONS

_PIECE, _LINES = 1 << 20, 1_000
LINE_MAX = 1 << 22
"""Bytes of a line: the largest holds a piece of a file as text."""

OUTCOMES, EVENTS, LOGS = "outcomes", "events.jsonl", "logs"
FOLDERS = (OUTCOMES, TRANSACTIONS)
_EVENTS_S = 0.5
SEGMENTS_A_MOVE = 16
"""Number of new segments, of about 1 MiB, after which rows are sent without an order."""


class Host:
    """Clients of one host; ``root`` is the folder for their files."""

    def __init__(self, run_id: str, root: Path, output: asyncio.StreamWriter) -> None:
        self._run_id, self._root, self._output = run_id, root, output
        self._clients: dict[str, Process] = {}
        self._unassigned: dict[str, int] = {}  # the run's origin for clients whose first line is still to come
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent: dict[Path, tuple[int, int]] = {}  # time and size of each file when it was sent
        self._logged: dict[Path, int] = {}  # bytes of each log that were sent
        self._events_at = 0
        self._saving = asyncio.Lock()
        for folder in (*FOLDERS, LOGS):
            (root / folder).mkdir(parents=True)
        (root / EVENTS).touch()
        self._spool = root / "spool"
        self._spool.mkdir()

    async def obey(self, lines: asyncio.StreamReader) -> None:
        """Carry out orders until the runner closes its end."""
        self._keep(self._follow())
        try:
            while line := await lines.readline():
                order = json.loads(line)
                match order["do"]:
                    case "clock":
                        self._say("clock", ns=time.monotonic_ns())
                    case "start":
                        await self._start(order["worker"], order["origin_ns"])
                    case "write":
                        await self._write(order["worker"], order["line"])
                    case "kill":
                        with suppress(ProcessLookupError):
                            self._clients[order["worker"]].kill()
                    case "save":
                        self._keep(self._save(order["number"], over=order["over"]))
        finally:
            for client in self._clients.values():
                with suppress(ProcessLookupError):
                    client.kill()
            await asyncio.gather(*(client.wait() for client in self._clients.values()))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._say("failed", why=f"{type(error).__name__}: {error}")

    def _say(self, say: str, **details: Any) -> None:
        self._output.write(json.dumps({"say": say} | details).encode() + b"\n")

    async def _start(self, worker: str, origin_ns: int) -> None:
        client = await start_worker(self._run_id, worker, self._root / LOGS / f"{worker}.log")
        self._clients[worker], self._unassigned[worker] = client, origin_ns
        self._say("started", worker=worker, pid=client.pid)
        self._keep(self._relay(worker, client))

    async def _write(self, worker: str, line: str) -> None:
        if (origin_ns := self._unassigned.pop(worker, None)) is not None:
            here = {"origin_ns": origin_ns, "spool": self._spool, "events": self._root / EVENTS}
            line = parse_assignment(line.encode()).model_copy(update=here).model_dump_json()
        stdin = self._clients[worker].stdin
        if stdin is not None:
            with suppress(ConnectionError):  # it has ended, which `_relay` tells
                stdin.write(line.encode() + b"\n")
                await stdin.drain()

    async def _relay(self, worker: str, client: Process) -> None:
        try:
            while client.stdout and (line := await client.stdout.readline()):
                self._say("line", worker=worker, line=line.decode())
                await self._output.drain()
        except ValueError as error:  # an endless line, or bytes that are no text: not a worker's output
            self._say("line", worker=worker, line=f"{worker} wrote what is no report: {error}\n")
            client.kill()
        status = await client.wait()
        self._tell_events()
        self._send_logs()
        self._say("ended", worker=worker, status=status)

    async def _follow(self) -> None:
        kept = 0
        while True:
            await asyncio.sleep(_EVENTS_S)
            self._tell_events()
            if self._segments() - kept >= SEGMENTS_A_MOVE:
                await self._save(None, over=False)
                kept = self._segments()

    def _segments(self) -> int:
        return sum(1 for _ in self._spool.glob("*/*.rows"))

    def _tell_events(self) -> None:
        with (self._root / EVENTS).open("rb") as file:
            file.seek(self._events_at)
            whole, newline, _ = file.read().rpartition(b"\n")
        if newline:
            self._events_at += len(whole) + 1
            lines = whole.decode().split("\n")
            for first in range(0, len(lines), _LINES):
                self._say("events", lines=lines[first : first + _LINES])

    async def _save(self, number: int | None, *, over: bool) -> None:
        outcomes = self._root / OUTCOMES
        async with self._saving:
            await asyncio.to_thread(convert if over else move, self._spool, outcomes)
            self._tell_events()
            self._send_logs()
            for path in (path for folder in FOLDERS for path in sorted((self._root / folder).glob("part-*"))):
                self._send(path)
                await self._output.drain()
            self._say("saved", number=number, parts=sorted(path.name for path in outcomes.glob("part-*.parquet")))
            await self._output.drain()

    def _send(self, path: Path) -> None:
        """Send a file in pieces if it has changed since it was sent; empty it if it can't change any more."""
        status = path.stat()
        version = status.st_mtime_ns, status.st_size
        if self._sent.get(path) == version:
            return
        name = path.relative_to(self._root).as_posix()
        with path.open("rb") as file:
            last = False
            while not last:
                piece = file.read(_PIECE)
                last = file.tell() == status.st_size
                self._say("file", path=name, content=b64encode(piece).decode(), last=last)
        if is_full(path):
            os.truncate(path, 0)
            status = path.stat()
        self._sent[path] = status.st_mtime_ns, status.st_size

    def _send_logs(self) -> None:
        for path in sorted((self._root / LOGS).glob("*.log")):
            with path.open("rb") as file:
                file.seek(self._logged.get(path, 0))
                while (piece := file.read(_PIECE)) or path not in self._logged:
                    self._say("log", name=path.name, content=b64encode(piece).decode())
                    self._logged[path] = file.tell()


async def main(run_id: str, root: Path) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=LINE_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    output = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        await Host(run_id, root, output).obey(lines)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner handles Ctrl-C
    asyncio.run(main(sys.argv[1], Path(sys.argv[3])))
