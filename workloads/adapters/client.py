"""Interface that every client of a worker implements, independent of its library, and the table of implementations.

``confluent`` is librdkafka through confluent-kafka, ``reference`` is this project's own clients, and ``exec`` is a
program that speaks the protocol of ``docs/EXEC.md``. Kafka's Java clients (``java``) are run as such a program.
"""

from importlib import import_module
from typing import Any, Protocol, cast

from aftershock.workloads.load.assignment import Assignment
from aftershock.workloads.load.events import Clock, Events
from aftershock.workloads.load.orders import Order


class Client(Protocol):
    """One producer, consumer or committer.

    It owns no thread: all work happens in ``step``, which never blocks for long.
    """

    def prepare(self) -> None:
        """Get ready to send or read the first record. Retries until it succeeds; the caller has a deadline."""

    def obey(self, order: Order) -> None:
        """Accept an order. ``answer`` returns its result, if it has one."""

    def step(self, wait_us: int) -> None:
        """Do the work that is due, or wait for work for about ``wait_us`` at most."""

    def answer(self) -> dict[str, Any] | None:
        """Return the result of the last order once, when it has been carried out."""

    def progress(self) -> dict[str, Any]:
        """Return the counts so far and the latencies since the last call, as ``events.Tally.progress`` does."""

    def counters(self) -> dict[str, int]:
        """Return the final counts."""

    def close(self) -> None:
        """Close in an orderly way (commit, leave the group), if the cluster responds."""


_CLASSES = {
    ("confluent", "produce"): "confluent.ConfluentProducer",
    ("confluent", "consume"): "confluent.ConfluentConsumer",
    ("confluent", "commit"): "confluent.ConfluentCommitter",
    ("reference", "produce"): "reference.ReferenceProducer",
    ("reference", "consume"): "reference.ReferenceConsumer",
    ("reference", "commit"): "reference.ReferenceCommitter",
    ("exec", "produce"): "exec.ExecProducer",
    ("exec", "consume"): "exec.ExecConsumer",
    ("exec", "commit"): "exec.ExecCommitter",
}
_PROGRAMS = {"java": "exec"}  # the Java clients speak the protocol of `exec`


def make_client(assignment: Assignment, clock: Clock, events: Events) -> Client:
    """Create the client of the assignment.

    Only its module is imported: a worker's memory and start-up time are measured.
    """
    key = _PROGRAMS.get(assignment.client, assignment.client), assignment.op
    module, name = _CLASSES[key].split(".")
    make: Any = getattr(import_module(f"aftershock.workloads.adapters.{module}"), name)
    return cast("Client", make(assignment, clock, events))
