"""A worker's two pipes: orders come in, reports go out, and neither may ever hold up the client.

One thread reads standard input, another writes standard output; the client only touches queues in between. The reader
also sees to it that the worker dies with its runner: at the end of input (the runner closed it, or is gone), and when
the parent process changes (the runner is gone and somebody else holds the pipe).

A worker's sign of life: what it last said of itself, where any process can read it without asking the worker.

Rules: a few numbers in a file mapped into memory, in the worker's spool, so that a beat costs no system call and a
frozen or killed worker's last one stays. A worker beats about twice a second from the moment that it is ready.

One client in a process of its own: ``python -m aftershock.workloads.load.worker RUN WORKER``.

The arguments are for whoever looks for the process; what it is to do comes with its assignment.

The conversation, a JSON object a line, the runner's side on standard input::

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

and ``{"say": "died", "why": ...}`` for an end that nobody ordered. Standard error, librdkafka's log lines included,
is the worker's log. Ctrl-C is the runner's to judge: SIGINT is ignored here.
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
    """Lines from ``descriptor``. The process ends at once when there will be no more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._parent = os.getppid()
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=self._read, name="inbox", daemon=True).start()

    def wait(self) -> bytes:
        """The next line, however long it takes."""
        return self._lines.get()

    def take(self) -> bytes | None:
        """The next line if there is one."""
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
    """Reports to ``descriptor``, one JSON object a line. The process ends when nobody can read them any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="outbox", daemon=True)
        self._thread.start()

    def say(self, say: str, **details: Any) -> None:
        """Report ``{"say": say, ...details}``; returns before it is written."""
        self._lines.put(json.dumps({"say": say} | details).encode() + b"\n")

    def flush(self, deadline_s: float) -> None:
        """Wait until all that was said is written, at most ``deadline_s``; nothing can be said after."""
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


class Beat(NamedTuple):
    """``t_us``: when (run clock). ``ok``: what has succeeded in this life. ``late_us``: p99 behind its schedule."""

    t_us: int
    ok: int
    late_us: int


class Pulse:
    """Beats for one worker, whose spool is there already."""

    def __init__(self, assignment: Assignment) -> None:
        descriptor = os.open(assignment.spool / assignment.worker / FILE, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            os.truncate(descriptor, _BEAT.size)
            self._map = mmap.mmap(descriptor, _BEAT.size)
        finally:
            os.close(descriptor)

    def beat(self, beat: Beat) -> None:
        """Leave the latest."""
        _BEAT.pack_into(self._map, 0, *beat)


def read_pulse(spool: Path, worker: str) -> Beat | None:
    """The last beat of a worker in the spools of its run; None if it never beat."""
    with suppress(OSError):
        left = (spool / worker / FILE).read_bytes()
        if len(left) == _BEAT.size:
            return Beat(*_BEAT.unpack(left))
    return None


PROGRESS_US = 500 * US_PER_MS
STEP_US = 50 * US_PER_MS
"""The longest that a client waits for something to do before orders are looked at again."""

_FLUSH_S = 5.0
_LOG = logging.getLogger("aftershock.worker")


def main() -> int:
    """Run one worker; its exit status is 0 after ``quit`` and 1 when it died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    outbox = Outbox(sys.stdout.fileno())
    try:
        _work(Inbox(sys.stdin.fileno()), outbox)
    except Exception as error:  # noqa: BLE001  # whatever it was, the runner must hear of it
        _LOG.exception("died")
        outbox.say("died", why=_why(error))
        outbox.flush(_FLUSH_S)
        return 1
    return 0


def _why(error: Exception) -> str:
    if isinstance(error, WorkloadError):
        return str(error)
    if isinstance(error, KafkaException):
        return f"librdkafka says: {error.args[0].str()}"
    return f"{type(error).__name__}: {error}"


def _work(inbox: Inbox, outbox: Outbox) -> None:
    assignment = parse_assignment(inbox.wait())
    clock = run_clock(assignment.origin_ns)
    events = Events(assignment, clock)
    client = make_client(assignment, clock, events)
    client.prepare()
    gc.collect()
    gc.freeze()  # what set-up left behind is never garbage; a full collection would stall the schedule
    outbox.say("ready")
    _serve(client, inbox, outbox, clock, Pulse(assignment))
    events.emit("counters", counters=client.counters())
    client.close()
    outbox.say("done", did="quit")
    outbox.flush(_FLUSH_S)


def _serve(client: Client, inbox: Inbox, outbox: Outbox, clock: Clock, pulse: Pulse) -> None:
    progress_us = clock() + PROGRESS_US
    while True:
        client.step(STEP_US)
        while line := inbox.take():
            order = parse_order(line)
            if isinstance(order, Quit):
                return
            client.obey(order)
        if answer := client.answer():
            outbox.say("done", **answer)
        now_us = clock()
        if now_us >= progress_us:
            progress_us = now_us + PROGRESS_US
            told = client.progress()
            pulse.beat(Beat(now_us, told["ok"], told["late_p99_us"]))
            outbox.say("progress", t_us=now_us, **told)


if __name__ == "__main__":
    # librdkafka's threads may still wait for brokers that are gone; all that matters is written
    os._exit(main())
