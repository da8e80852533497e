"""The clients that a worker can be: the same small interface over whatever library is under test."""

from importlib import import_module
from typing import Any, cast

from aftershock.workloads.assignment import Assignment
from aftershock.workloads.clients.client import Client
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events

_CLASSES = {
    ("confluent", "produce"): "confluent_producer.ConfluentProducer",
    ("confluent", "consume"): "confluent_consumer.ConfluentConsumer",
    ("confluent", "commit"): "confluent_committer.ConfluentCommitter",
    ("reference", "produce"): "reference_producer.ReferenceProducer",
    ("reference", "consume"): "reference_consumer.ReferenceConsumer",
    ("reference", "commit"): "reference_committer.ReferenceCommitter",
    ("exec", "produce"): "exec_producer.ExecProducer",
    ("exec", "consume"): "exec_consumer.ExecConsumer",
    ("exec", "commit"): "exec_committer.ExecCommitter",
}
_PROGRAMS = {"java": "exec"}  # Kafka's Java clients are a program that speaks the protocol of `exec`


def make_client(assignment: Assignment, clock: Clock, events: Events) -> Client:
    """The client that the assignment asks for. It alone is imported: a worker's memory and start-up are measured."""
    key = _PROGRAMS.get(assignment.client, assignment.client), assignment.op
    module, name = _CLASSES[key].split(".")
    make: Any = getattr(import_module(f"{__name__}.{module}"), name)
    return cast("Client", make(assignment, clock, events))
