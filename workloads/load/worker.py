"""One client in a process of its own: ``python -m aftershock.workloads.load.worker RUN WORKER``.

The arguments only make the process easy to find; its assignment arrives on standard input. The conversation is one JSON
object per line, the runner's side on standard input::

    {assignment}                       ->
                                       <-  {"say": "ready"}
    {"do": "go", "start_us": ...}      ->
                                       <-  {"say": "progress", "t_us": ..., "sent": ..., ...}   about twice a second
    {"do": "stop", "at_us": ...}       ->                                      (producers)
                                       <-  {"say": "done", "did": "stop", "unreported": 0}
    {"do": "drain", "end_offsets": ..} ->                                      (consumers)
                                       <-  {"say": "done", "did": "drain", "missing": {}}
    {"do": "quit"}                     ->
                                       <-  {"say": "done", "did": "quit"}

and ``{"say": "died", "why": ...}`` if the client ends although it was not ordered to. Standard error, with librdkafka's
log lines, is the worker's log. SIGINT is ignored, because the runner handles Ctrl-C.

Pipes: one thread reads standard input, another writes standard output; the client only touches queues, so neither pipe
can delay it. The reader also ends the worker with its runner: at the end of input (the runner closed it, or is gone),
and when the parent process changes (the runner is gone and another process holds the pipe).

Heartbeat: a few numbers in a file mapped into memory, in the worker's spool, so that a heartbeat costs no system call
and the last one of a frozen or killed worker stays readable by any process. A worker writes it about twice a second
once it is ready.
"""

import gc
import json
import logging
import mmap
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from struct import Struct
from threading import Thread
from typing import Any, NamedTuple

from confluent_kafka import KafkaException

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.client import Client, make_client
from aftershock.workloads.load.assignment import Assignment, parse_assignment
from aftershock.workloads.load.events import Clock, Events, run_clock
from aftershock.workloads.load.orders import Quit, parse_order
from aftershock.workloads.load.schedule import US_PER_MS

ORPHANED = 4
"""Exit status of a worker whose runner is gone."""

_LOOK_EVERY_S = 0.5
_CHUNK = 65_536


class Inbox:
    """Lines from ``descriptor``. The process exits at once when no more can come."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._parent = os.getppid()
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=self._read, name="inbox", daemon=True).start()

    def wait(self) -> bytes:
        """Return the next line, however long it takes."""
        return self._lines.get()

    def take(self) -> bytes | None:
        """Return the next line if there is one."""
        try:
            return self._lines.get_nowait()
        except Empty:
            return None

    def _read(self) -> None:
        rest = b""
        while True:
            *lines, rest = (rest + self._chunk()).split(b"\n")
            for line in lines:
                self._lines.put(line)

    def _chunk(self) -> bytes:
        while not select.select([self._descriptor], [], [], _LOOK_EVERY_S)[0]:
            if os.getppid() != self._parent:
                os._exit(ORPHANED)
        return os.read(self._descriptor, _CHUNK) or os._exit(ORPHANED)


class Outbox:
    """Reports to ``descriptor``, one JSON object per line. The process exits when they can no longer be read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="outbox", daemon=True)
        self._thread.start()

    def report(self, say: str, **details: Any) -> None:
        """Report ``{"say": say, ...details}``; returns before it is written."""
        self._lines.put(json.dumps({"say": say} | details).encode() + b"\n")

    def flush(self, deadline_s: float) -> None:
        """Wait until all reports are written, ``deadline_s`` at most; nothing can be reported afterwards."""
        self._lines.put(None)
        self._thread.join(deadline_s)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:
                os._exit(ORPHANED)


FILE = "pulse"
_BEAT = Struct("<qqq")


class Heartbeat(NamedTuple):
    """``t_us``: time on the run clock. ``ok``: successes of this process. ``late_us``: p99 lateness of its schedule."""

    t_us: int
    ok: int
    late_us: int


class HeartbeatFile:
    """Heartbeat file of one worker, whose spool exists."""

    def __init__(self, assignment: Assignment) -> None:
        descriptor = os.open(assignment.spool / assignment.worker / FILE, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            os.truncate(descriptor, _BEAT.size)
            self._map = mmap.mmap(descriptor, _BEAT.size)
        finally:
            os.close(descriptor)

    def write(self, heartbeat: Heartbeat) -> None:
        """Overwrite the heartbeat."""
        _BEAT.pack_into(self._map, 0, *heartbeat)


def read_heartbeat(spool: Path, worker: str) -> Heartbeat | None:
    """Return the latest heartbeat of a worker in the spools of its run; None if it never wrote one."""
    with suppress(OSError):
        content = (spool / worker / FILE).read_bytes()
        if len(content) == _BEAT.size:
            return Heartbeat(*_BEAT.unpack(content))
    return None


PROGRESS_US = 500 * US_PER_MS
STEP_US = 50 * US_PER_MS
"""Longest time that a client waits for work before orders are read again."""

_FLUSH_S = 5.0
_LOG = logging.getLogger("aftershock.worker")


def main() -> int:
    """Run one worker; the exit status is 0 after ``quit`` and 1 after a failure."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    outbox = Outbox(sys.stdout.fileno())
    try:
        _work(Inbox(sys.stdin.fileno()), outbox)
    except Exception as error:  # noqa: BLE001  # any failure must be reported to the runner
        _LOG.exception("died")
        outbox.report("died", why=_reason(error))
        outbox.flush(_FLUSH_S)
        return 1
    return 0


def _reason(error: Exception) -> str:
    if isinstance(error, WorkloadError):
        return str(error)
    if isinstance(error, KafkaException):
        return f"librdkafka: {error.args[0].str()}"
    return f"{type(error).__name__}: {error}"


def _work(inbox: Inbox, outbox: Outbox) -> None:
    assignment = parse_assignment(inbox.wait())
    clock = run_clock(assignment.origin_ns)
    events = Events(assignment, clock)
    client = make_client(assignment, clock, events)
    client.prepare()
    gc.collect()
    gc.freeze()  # objects of the set-up stay alive; a full collection would stall the schedule
    outbox.report("ready")
    _serve(client, inbox, outbox, clock, HeartbeatFile(assignment))
    events.emit("counters", counters=client.counters())
    client.close()
    outbox.report("done", did="quit")
    outbox.flush(_FLUSH_S)


def _serve(client: Client, inbox: Inbox, outbox: Outbox, clock: Clock, heartbeats: HeartbeatFile) -> None:
    progress_us = clock() + PROGRESS_US
    while True:
        client.step(STEP_US)
        while line := inbox.take():
            order = parse_order(line)
            if isinstance(order, Quit):
                return
            client.obey(order)
        if answer := client.answer():
            outbox.report("done", **answer)
        now_us = clock()
        if now_us >= progress_us:
            progress_us = now_us + PROGRESS_US
            progress = client.progress()
            heartbeats.write(Heartbeat(now_us, progress["ok"], progress["late_p99_us"]))
            outbox.report("progress", t_us=now_us, **progress)


if __name__ == "__main__":
    # librdkafka's threads may still wait for dead brokers; everything important is written
    os._exit(main())
