"""Configuration of librdkafka from an assignment, and what librdkafka's statistics tell about each broker.

Settings in an arm's ``settings`` override the plan's keys (acks, linger, deadline). An arm's settings apply to its
producer and its consumer; each client gets only the settings that it supports, because librdkafka warns about others.
"""

import json
from collections import Counter
from collections.abc import Callable

from aftershock.errors import WorkloadError
from aftershock.workloads.load.assignment import (
    Assignment,
    CommitAssignment,
    ConsumeAssignment,
    ProduceAssignment,
    Setting,
)
from aftershock.workloads.load.events import Clock, Reported
from aftershock.workloads.load.security import librdkafka_config

STATISTICS_INTERVAL_MS = 1000


_COUNTED = {"disconnects": Reported.DISCONNECTIONS, "req_timeouts": Reported.TIMEOUTS}


class Traffic:
    """Bytes (sent, received) of a client by broker, which prove that a fault on a link has affected the client.

    Toxiproxy's byte count can't prove an effect on a client, because Toxiproxy counts a connection's bytes only when it
    closes. The statistics also count the connections to each broker that ended, and the requests that timed out; each
    increase is an event, which happened since the time of the statistics before (``since_us``).
    """

    def __init__(self, clock: Clock, emit: Callable[..., None]) -> None:
        self.by_broker: dict[int, tuple[int, int]] = {}
        self._clock, self._emit = clock, emit
        self._counts: Counter[tuple[str, int]] = Counter()
        self._read_us = clock()

    def on_statistics(self, statistics: str) -> None:
        """Handle librdkafka's ``stats_cb``, which lists bootstrap addresses as brokers with a negative node id."""
        totals: dict[int, tuple[int, int]] = {}
        counts: Counter[tuple[str, int]] = Counter()
        for broker in json.loads(statistics)["brokers"].values():
            if (node := broker["nodeid"]) >= 0:
                sent, received = totals.get(node, (0, 0))
                totals[node] = (sent + broker["txbytes"], received + broker["rxbytes"])
                for name in _COUNTED:
                    counts[name, node] += broker[name]
        self.by_broker = totals
        now_us = self._clock()
        for (name, node), count in (counts - self._counts).items():
            self._emit(_COUNTED[name], t_us=now_us, node_id=node, count=count, since_us=self._read_us)
        self._counts, self._read_us = counts, now_us


Config = dict[str, Setting]

# The producer and consumer settings are those in column C/P of librdkafka 2.16's list, as a test confirms.
PRODUCER_ONLY = frozenset(
    """
    acks batch.num.messages batch.size compression.codec compression.level compression.type
    delivery.report.only.error delivery.timeout.ms enable.gapless.guarantee enable.idempotence linger.ms
    message.send.max.retries message.timeout.ms partitioner produce.offset.report
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queuing.strategy request.required.acks request.timeout.ms retries
    sticky.partitioning.linger.ms transaction.timeout.ms transactional.id
    """.split()  # noqa: SIM905  # a list would take a page
)
CONSUMER_ONLY = frozenset(
    """
    auto.commit.enable auto.commit.interval.ms auto.offset.reset check.crcs consume.callback.max.messages
    coordinator.query.interval.ms enable.auto.commit enable.auto.offset.store enable.partition.eof
    fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
    heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    offset.store.method offset.store.path offset.store.sync.interval.ms partition.assignment.strategy
    queued.max.messages.kbytes queued.min.messages session.timeout.ms share.acknowledgement.mode
    """.split()  # noqa: SIM905  # a list would take a page
)

_CANONICAL = {
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
}

# settings that the recorder cannot work with
_REFUSED = {
    "bootstrap.servers": "the harness chooses the bootstrap servers by the rack of the client",
    "client.rack": "set the rack of the client with client_rack in the arm",
    "delivery.report.only.error": "the harness needs the delivery reports of successful records",
    "enable.partition.eof": "the harness would record the end of a partition as an error",
    "group.id": "name the consumer group with group in the workload",
    "produce.offset.report": "the harness needs the offsets of delivered records",
    "statistics.interval.ms": "the harness sets the interval, to count each broker's traffic",
    "transactional.id": "transactions are planned with transaction under produce",
}


def producer_config(assignment: ProduceAssignment) -> Config:
    """Return librdkafka's producer settings; raise ``WorkloadError`` for a setting that is not allowed."""
    planned: Config = {
        "acks": assignment.acks,
        "enable.idempotence": assignment.idempotence,
        "linger.ms": assignment.linger_ms,
        "delivery.timeout.ms": assignment.delivery_timeout_ms,
    }
    if assignment.transaction:
        planned["transactional.id"] = assignment.transactional_id or ""
        planned["transaction.timeout.ms"] = assignment.transaction.timeout_ms
    return _common(assignment) | planned | _own(assignment, CONSUMER_ONLY)


def consumer_config(assignment: ConsumeAssignment) -> Config:
    """Return librdkafka's consumer settings; raise ``WorkloadError`` for a setting that is not allowed.

    A consumer without a group gets a unique ``group.id``, because librdkafka requires one; it commits no offsets.
    """
    planned: Config = {
        "group.id": assignment.group or f"aftershock-{assignment.run_id}-{assignment.worker}",
        "enable.auto.commit": assignment.group is not None and assignment.own_commits is None,
        "auto.offset.reset": assignment.from_,
    }
    if assignment.protocol is not None:
        planned["group.protocol"] = assignment.protocol
    if assignment.assignor is not None:
        by_coordinator = assignment.protocol == "consumer"
        planned["group.remote.assignor" if by_coordinator else "partition.assignment.strategy"] = assignment.assignor
    if assignment.instance_id is not None:
        planned["group.instance.id"] = assignment.instance_id
    if assignment.isolation is not None:
        planned["isolation.level"] = assignment.isolation
    return _common(assignment) | planned | _own(assignment, PRODUCER_ONLY)


def committer_config(assignment: CommitAssignment) -> Config:
    """Return librdkafka's admin client settings; raise ``WorkloadError`` for a setting that is not allowed."""
    return _common(assignment) | _own(assignment, CONSUMER_ONLY | PRODUCER_ONLY)


def _common(assignment: Assignment) -> Config:
    common: Config = {
        "bootstrap.servers": assignment.bootstrap,
        "client.id": assignment.worker,
        "statistics.interval.ms": STATISTICS_INTERVAL_MS,
    }
    if assignment.client_rack is not None:
        common["client.rack"] = assignment.client_rack
    return common | librdkafka_config(assignment.security.resolved())


def _own(assignment: Assignment, other_clients: frozenset[str]) -> Config:
    settings = {_CANONICAL.get(name, name): value for name, value in assignment.settings.items()}
    for name in settings:
        if name in _REFUSED:
            raise WorkloadError(
                f"arm {assignment.arm} of workload {assignment.workload}: the setting {name} is not allowed: "
                f"{_REFUSED[name]}; remove it from the arm's settings"
            )
    return {name: value for name, value in settings.items() if name not in other_clients}
