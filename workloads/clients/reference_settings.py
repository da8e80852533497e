"""From an assignment to the settings of a reference client, layered as those of librdkafka are in ``settings.py``."""

from dataclasses import fields
from math import ceil
from typing import Any, TypeVar

from aftershock.workloads.assignment import Assignment, CommitAssignment, ConsumeAssignment, ProduceAssignment
from aftershock.workloads.reference.committer_settings import CommitterSettings
from aftershock.workloads.reference.consumer_settings import ConsumerSettings
from aftershock.workloads.reference.settings import ClientSettings, ProducerSettings, parse

REQUEST_TIMEOUT_MS = 30_000
"""Kafka's default of ``request.timeout.ms``."""

_REFERENCE = (ProducerSettings, ConsumerSettings, CommitterSettings)

S = TypeVar("S", bound=ClientSettings)


def reference_settings(cls: type[S], assignment: Assignment) -> S:
    """The settings of a reference client; ``SettingError`` for one that doesn't exist, or can't be.

    An arm's settings and switches are for its clients of every kind: each takes what is meant for it.
    """
    said: dict[str, Any] = {"bootstrap.servers": assignment.bootstrap, "client.id": assignment.worker}
    said |= {"client.rack": assignment.client_rack} if assignment.client_rack is not None else {}
    said["security"] = assignment.security.resolved()
    mine = {field.name for field in fields(cls)}
    foreign = {field.name for each in _REFERENCE for field in fields(each)} - mine
    arms = assignment.settings | assignment.switches
    own = {name: value for name, value in arms.items() if name.replace(".", "_") not in foreign}
    return parse(cls, said | _planned(assignment) | own)


def _planned(assignment: Assignment) -> dict[str, Any]:
    """What the plan says in words of its own. A request may take no longer than the record it carries."""
    if isinstance(assignment, ConsumeAssignment):
        group = {"group.id": assignment.group} if assignment.group else {}
        return {"enable.auto.commit": bool(group), "auto.offset.reset": assignment.from_, **group}
    linger_ms = assignment.linger_ms if isinstance(assignment, ProduceAssignment) else 0
    patience_ms = max(1, min(REQUEST_TIMEOUT_MS, assignment.deadline_ms - ceil(linger_ms)))
    timeouts = {"delivery.timeout.ms": assignment.deadline_ms, "request.timeout.ms": patience_ms}
    if isinstance(assignment, CommitAssignment):
        return timeouts
    flags = {"acks": assignment.acks, "enable.idempotence": assignment.idempotence}
    return timeouts | flags | {"linger.ms": assignment.linger_ms}
