"""How long a consumer may be silent before its group goes on without it, as far as a plan says it.

In a classic group that is the client's own ``session.timeout.ms`` (45 s in Kafka since KIP-735, and in librdkafka); in
one of KIP-848 the broker's ``group.consumer.session.timeout.ms``, which is 45 s as well. The reference client knows
only those. What the program of an ``exec`` client does with its settings is its own; it is taken at its word.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aftershock.faults.crew import Selector
from aftershock.faults.fault import Rest

if TYPE_CHECKING:
    from aftershock.faults.plan import Arm

DEFAULT_MS = 45_000


def sessions_of(selector: Selector, rest: Rest) -> Iterator[tuple[str, int]]:
    """The consumers in groups that it means: ``workload/arm``, and the timeout of its session in ms."""
    for workload in rest.workloads.values():
        for name, arm in workload.arms.items():
            grouped = workload.consume is not None and workload.consume.group is not None
            if grouped and selector.takes(workload.name, name, "consume"):
                yield f"{workload.name}/{name}", _session_ms(arm, rest)


def _session_ms(arm: "Arm", rest: Rest) -> int:
    if arm.client == "reference" or str(arm.settings.get("group.protocol", "classic")).lower() == "consumer":
        brokers = rest.cluster.config if rest.cluster else {}
        return _ms(brokers.get("group.consumer.session.timeout.ms"))
    return _ms(arm.settings.get("session.timeout.ms"))


def _ms(said: object) -> int:
    return int(str(said)) if str(said).isdecimal() else DEFAULT_MS
