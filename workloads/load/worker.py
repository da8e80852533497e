"""Process of one client (``python -m aftershock.workloads.load.worker RUN WORKER``).

The arguments RUN and WORKER only make the process easy to find. Runner and worker exchange one JSON object per line;
the runner writes to the worker's standard input::

    {assignment}                       ->
                                       <-  {"say": "ready", "reports": [...]}
    {"do": "go", "start_us": ...}      ->
                                       <-  {"say": "progress", "t_us": ..., "sent": ..., ...}   about twice a second
    {"do": "stop", "at_us": ...}       ->                                      (producers)
                                       <-  {"say": "done", "did": "stop", "unreported": 0}
    {"do": "drain", "end_offsets": ..} ->                                      (consumers)
                                       <-  {"say": "done", "did": "drain", "positions": {}}
    {"do": "quit"}                     ->
                                       <-  {"say": "done", "did": "quit"}

A worker that fails reports ``{"say": "died", "why": ...}``, with ``"client": {"cause": ..., "status": ..., "lines":
[...]}`` if not the worker but its client ended. The worker's standard error, with librdkafka's log lines,
is the worker's log. The worker ignores SIGINT, because the runner handles Ctrl-C; after SIGTERM it
closes the client and exits, between SIGUSR1 and SIGUSR2 a consumer does not poll.
"""

import errno
import gc
import json
import logging
import mmap
import os
import select
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from struct import Struct
from threading import Thread
from typing import Any, NamedTuple, Protocol, cast

from confluent_kafka import KafkaException

from aftershock.errors import ClientDiedError, WorkloadError
from aftershock.redaction import RedactingFormatter
from aftershock.workloads.load.assignment import (
    Assignment,
    Order,
    ProduceAssignment,
    Quit,
    parse_assignment,
    parse_order,
)
from aftershock.workloads.load.events import Clock, Events, Ticker, run_clock
from aftershock.workloads.load.schedule import US_PER_MS
from aftershock.workloads.load.spool import full_error

ORPHANED = 4
"""Exit status of a worker whose runner is gone."""

_PARENT_CHECK_S = 0.5
_CHUNK = 65_536


class Inbox:
    """Orders to a worker, read from the pipe ``descriptor`` by a thread, so that the pipe cannot delay the client.

    The worker exits at once when the pipe ends, or when the worker's parent process is no longer the runner.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._parent = os.getppid()
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=self._read, name="inbox", daemon=True).start()

    def wait(self) -> bytes:
        return self._lines.get()

    def take(self) -> bytes | None:
        try:
            return self._lines.get_nowait()
        except Empty:
            return None

    def _read(self) -> None:
        rest = b""
        while True:
            while not select.select([self._descriptor], [], [], _PARENT_CHECK_S)[0]:
                if os.getppid() != self._parent:
                    os._exit(ORPHANED)
            *lines, rest = (rest + (os.read(self._descriptor, _CHUNK) or os._exit(ORPHANED))).split(b"\n")
            for line in lines:
                self._lines.put(line)


class Outbox:
    """Reports of a worker, written by a thread; the worker exits when the runner can no longer read its reports."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="outbox", daemon=True)
        self._thread.start()

    def report(self, say: str, **details: Any) -> None:
        self._lines.put(json.dumps({"say": say} | details).encode() + b"\n")

    def flush(self, deadline_s: float) -> None:
        """Wait until all reports are written, for ``deadline_s`` at most; no report may follow."""
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
_BEAT = Struct("<qqq?")


class Heartbeat(NamedTuple):
    """Heartbeat of a worker, with the time on the run's clock, its successful records, and the p99 delay of sending.

    ``polls`` is False while a fault keeps a consumer from polling.
    """

    t_us: int
    ok: int
    late_us: int
    polls: bool


class HeartbeatFile:
    """File with the latest heartbeat of a worker, which any process can read when the worker is frozen or killed."""

    def __init__(self, assignment: Assignment) -> None:
        descriptor = os.open(assignment.spool / assignment.worker / FILE, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, _BEAT.size)  # a full disk is an error here, not a SIGBUS at a heartbeat
            self._map = mmap.mmap(descriptor, _BEAT.size)
        finally:
            os.close(descriptor)

    def write(self, heartbeat: Heartbeat) -> None:
        _BEAT.pack_into(self._map, 0, *heartbeat)


def read_heartbeat(spool: Path, worker: str) -> Heartbeat | None:
    with suppress(OSError):
        content = (spool / worker / FILE).read_bytes()
        if len(content) == _BEAT.size:
            return Heartbeat(*_BEAT.unpack(content))
    return None


class Client(Protocol):
    """Interface of a producer, consumer or committer of any client library.

    The client works only in ``step``, which never blocks for long. The constructor of a client takes the assignment,
    the clock and the event log.
    """

    def prepare(self) -> None:
        """Connect, with retries, until the client can send or read its first record; the caller sets the time limit."""

    def obey(self, order: Order) -> None:
        """Accept an order of the runner, without waiting for the order's result."""

    def step(self, wait_us: int) -> None:
        """Send, receive and record for about ``wait_us`` at most, which includes waiting for work."""

    def keep_polling(self, polls: bool) -> None:  # noqa: FBT001 -- a switch
        """Stop or resume the processing of records, while the client library goes on; producers ignore it."""

    def answer(self) -> dict[str, Any] | None:
        """Return the result of a ``stop`` or ``drain`` order once, when the order is carried out; otherwise None."""

    def progress(self) -> dict[str, Any]:
        """Return the fields of a progress report (counts so far, p99 delay of sending, and the latest latencies)."""

    def counters(self) -> dict[str, int]:
        """Return the client's final counts, by name."""

    def reports(self) -> Collection[str]:
        """Return the values of ``events.Reported`` that the client reports."""

    def close(self) -> None:
        """Commit and leave the consumer group, if the cluster responds, and close the client."""


def make_client(assignment: Assignment, clock: Clock, events: Events) -> Client:
    """Create the producer, consumer or committer of the assignment, from the client library that it names.

    Kafka's Java clients, and libraries of a chosen version, run as programs that speak the protocol of ``exec``
    (``docs/EXEC.md``), also the one that drives its own load (``benchmark``). Only the module of
    the chosen client library is imported, because a worker's memory and start-up time are measured.
    """
    library: str = assignment.client if assignment.client in ("confluent", "reference") else "exec"
    if assignment.op == "pipe":
        library = "service"
    if isinstance(assignment, ProduceAssignment) and assignment.num_records is not None:
        library = "benchmark"
    if assignment.ended:
        library = "ended"
    role = {"produce": "Producer", "consume": "Consumer", "commit": "Committer", "pipe": "Pipe"}[assignment.op]
    module = import_module(f"aftershock.workloads.adapters.{library}")
    return cast("Client", getattr(module, f"{library.title()}{role}")(assignment, clock, events))


PROGRESS_US = 500 * US_PER_MS
STEP_US = 50 * US_PER_MS
"""Longest time that a client waits for work before orders are read again."""

_FLUSH_S = 5.0
_LOG = logging.getLogger("aftershock.worker")


class Signals:
    """Orders of faults to a member of a group: to leave, as its own shutdown would, and to stop or resume polling."""

    LEAVE, STOP_POLLING, RESUME_POLLING = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2

    def __init__(self) -> None:
        self.leave, self.polls = False, True
        for number in (self.LEAVE, self.STOP_POLLING, self.RESUME_POLLING):
            signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: object) -> None:
        if number == self.LEAVE:
            self.leave = True
        else:
            self.polls = number == self.RESUME_POLLING


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals = Signals()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    outbox = Outbox(sys.stdout.fileno())
    assignment: Assignment | None = None
    try:
        inbox = Inbox(sys.stdin.fileno())
        assignment = parse_assignment(inbox.wait())
        clock = run_clock(assignment.origin_ns)
        events = Events(assignment, clock)
        if assignment.life and not assignment.ended:
            events.emit("restarted", life=assignment.life)
        client = make_client(assignment, clock, events)
        client.prepare()
        gc.collect()
        gc.freeze()  # objects of the set-up stay alive; a full collection would stall the schedule
        outbox.report("ready", reports=sorted(client.reports()))
        with Ticker(clock, events.emit):
            _serve(client, inbox, outbox, clock, HeartbeatFile(assignment), signals)
        events.emit("counters", counters=client.counters())
        client.close()
        outbox.report("done", did="quit")
    except Exception as error:  # noqa: BLE001  # any failure must be reported to the runner
        _LOG.exception("died")
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, WorkloadError):
            reason = str(error)
        elif isinstance(error, KafkaException):
            reason = f"librdkafka: {error.args[0].str()}"
        elif isinstance(error, OSError) and error.errno == errno.ENOSPC and assignment:
            reason = str(full_error(assignment.spool))
        outbox.report("died", why=reason, **_of_client(error, reason, assignment))
        return 1
    finally:
        outbox.flush(_FLUSH_S)
    return 0


def _of_client(error: Exception, reason: str, assignment: Assignment | None) -> dict[str, Any]:
    """Return what the report ``died`` says of a client program or library that ended; nothing of another failure.

    Of librdkafka only the client under test counts: workers of other clients use it to look up offsets.
    """
    if isinstance(error, ClientDiedError):
        return {"client": {"cause": error.cause, "status": error.status, "lines": error.lines}}
    if isinstance(error, KafkaException) and assignment is not None and assignment.client == "confluent":
        return {"client": {"cause": reason, "status": None, "lines": ()}}
    return {}


def _serve(
    client: Client, inbox: Inbox, outbox: Outbox, clock: Clock, heartbeats: HeartbeatFile, signals: Signals
) -> None:
    progress_us, polls = clock() + PROGRESS_US, True
    while not signals.leave:
        if signals.polls != polls:
            polls = signals.polls
            client.keep_polling(polls)
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
            heartbeats.write(Heartbeat(now_us, progress["ok"], progress["late_p99_us"], polls))
            outbox.report("progress", t_us=now_us, **progress)


if __name__ == "__main__":
    # librdkafka's threads may still wait for dead brokers; everything important is written
    os._exit(main())
