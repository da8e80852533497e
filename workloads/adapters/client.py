"""What a worker asks of any client, whichever library is inside.

The clients that a worker can be: the same small interface over whatever library is under test.
"""

from importlib import import_module
from typing import Any, Protocol, cast

from aftershock.workloads.load.assignment import Assignment
from aftershock.workloads.load.events import Clock, Events
from aftershock.workloads.load.orders import Order


class Client(Protocol):
    """One producer or consumer. It owns no thread: everything happens in ``step``, which never waits for long."""

    def prepare(self) -> None:
        """Come to where the first record can be sent or read. Tries until it can: whoever asked has a deadline."""

    def obey(self, order: Order) -> None:
        """Take an order. What comes of it, if anything, is told by ``answer``."""

    def step(self, wait_us: int) -> None:
        """Do what is due, or wait for something to do, at most about ``wait_us``."""

    def answer(self) -> dict[str, Any] | None:
        """Once, when the last order has been carried out: what to tell about it."""

    def progress(self) -> dict[str, Any]:
        """Counts so far and latencies since the last call, as ``tally.Tally.progress`` has them."""

    def counters(self) -> dict[str, int]:
        """The closing counts."""

    def close(self) -> None:
        """Leave in good order, as far as the cluster lets us."""


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
_PROGRAMS = {"java": "exec"}  # Kafka's Java clients are a program that speaks the protocol of `exec`


def make_client(assignment: Assignment, clock: Clock, events: Events) -> Client:
    """The client that the assignment asks for. It alone is imported: a worker's memory and start-up are measured."""
    key = _PROGRAMS.get(assignment.client, assignment.client), assignment.op
    module, name = _CLASSES[key].split(".")
    make: Any = getattr(import_module(f"aftershock.workloads.adapters.{module}"), name)
    return cast("Client", make(assignment, clock, events))
