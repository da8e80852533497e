"""One client in a process of its own: ``python -m aftershock.workloads.worker RUN WORKER``.

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
import logging
import os
import signal
import sys

from confluent_kafka import KafkaException

from aftershock.errors import WorkloadError
from aftershock.workloads.assignment import parse_assignment
from aftershock.workloads.clients import make_client
from aftershock.workloads.clients.client import Client
from aftershock.workloads.clock import Clock, run_clock
from aftershock.workloads.events import Events
from aftershock.workloads.load import US_PER_MS
from aftershock.workloads.orders import Quit, parse_order
from aftershock.workloads.pipe import Inbox, Outbox
from aftershock.workloads.pulse import Beat, Pulse

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
