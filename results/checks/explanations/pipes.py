"""Outputs of a service that are written twice or out of order, and causes that permit this at least once.

=========================  =============================================================================================
anomaly                    explained only by
=========================  =============================================================================================
output written twice, or   a change of the owner of the input's partition between the outputs, for inputs at or above
out of order               the position that the group had committed before it: the next owner begins there
                           a member that was frozen, if both outputs were written from then until ``AWAKE_US`` after it,
                           for such inputs of the partitions that changed their owner meanwhile: it writes what it holds
                           before it learns that it lost them
                           a second attempt of the service's producer: the leader of the outputs' partition changed, or
                           a fault ended connections, the first output was written then, and the second at most
                           ``RETRY_US`` after it. A process that was killed or frozen sends nothing again
=========================  =============================================================================================

A service with intermediate topics (`intermediate_topics`) repeats there what it repeats, too, and reads it from there
at any time later. So each of these causes explains all further outputs of the inputs that were sent before it.

Nothing explains those of a transactional service, which promises exactly once.

Without a group in the plan, or if the coordinator told no owners, the evidence can't tell.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from aftershock.results.checks.explanations.leadership import changes
from aftershock.results.checks.explanations.model import Explanation, for_rules
from aftershock.results.checks.explanations.retries import breaks_connections
from aftershock.results.checks.obligations.reach import Harm, harms_of
from aftershock.results.evidence.evidence import Client, Evidence, Pipe
from aftershock.results.evidence.manifest import LEADERS
from aftershock.results.evidence.outages import FROZEN, worker_outages

AWAKE_US = 10_000_000
"""Time in which a woken process writes what it holds: its next poll or commit tells it that its partitions are gone."""
RETRY_US = 31_000_000
"""Time after it until the second attempt: the request time-out of Java's client and librdkafka, and a back-off."""
_RULES = (("pipe_duplicate", "pipe"), ("pipe_order", "pipe"))
_POLLS = "group_changed in events.jsonl"


def of_pipes(evidence: Evidence) -> Iterator[Explanation]:
    """Yield what explains repeated and inverted outputs of each service."""
    harms = harms_of(evidence, max((phase.end_us for phase in evidence.phases), default=0))
    for client in evidence.clients:
        if client.pipe and not client.pipe.transactional:
            own = Explanation("", "", "", "", client=client.key)
            indirect = intermediate_topics(evidence, client.pipe)
            for cause in _causes(evidence, client, client.pipe, own, harms):
                yield from for_rules(_at_any_time_later(cause) if indirect else cause, *_RULES)


def _at_any_time_later(cause: Explanation) -> Explanation:
    """Return what a cause explains of a service with intermediate topics.

    The findings of such a service begin when the input was sent.
    """
    over_us = cause.until_us if cause.sent_by_us is None else cause.sent_by_us
    anywhere = replace(cause, topic=None, partition=None, from_offset=None, output=None)
    return replace(anywhere, until_us=over_us, sent_by_us=None, throughout=False)


def intermediate_topics(evidence: Evidence, pipe: Pipe) -> frozenset[str]:
    """Return the topics of a service's group through which the service passes records to itself.

    These are topics that the plan does not declare, like the repartition topics of Kafka Streams.
    """
    declared = {topic["name"] for topic in evidence.timeline["topics"]}
    return frozenset(
        topic
        for line in evidence.events
        if line["event"] == "group_changed" and line.get("group") == pipe.group
        for topic, _, _ in line.get("owners") or ()
        if topic not in declared
    )


def _causes(
    evidence: Evidence, client: Client, pipe: Pipe, own: Explanation, harms: list[Harm]
) -> Iterator[Explanation]:
    for topic in sorted(intermediate_topics(evidence, pipe)):
        for since_us, at_us in sorted({change[:2] for change in owner_changes(evidence, pipe, topic)}):
            cause = f"the change of owners of {topic} at {at_us / 1e6:.1f} s"
            yield replace(own, cause=cause, evidence=_POLLS, from_us=since_us, until_us=at_us)
    moves = list(owner_changes(evidence, pipe, pipe.reads))
    for since_us, at_us, partition, committed in moves:
        cause = f"the change of owner of {pipe.reads}/{partition}"
        moved = replace(own, cause=cause, evidence=_POLLS, topic=pipe.reads, partition=partition)
        yield replace(moved, from_us=since_us, until_us=at_us, from_offset=committed)
    for worker in client.workers("pipe"):
        for start_us, end_us in worker_outages(evidence, FROZEN).get(worker, ()):
            until_us = end_us + AWAKE_US
            cause = f"{worker} was frozen from {start_us / 1e6:.1f} to {end_us / 1e6:.1f} s and lost {pipe.reads}"
            lost = {number: at for since, end, number, at in moves if end >= start_us and since <= until_us}
            for partition, committed in sorted(lost.items()):
                frozen = replace(own, cause=f"{cause}/{partition}", evidence="journal.jsonl", topic=pipe.reads)
                within = replace(frozen, from_us=start_us, until_us=until_us, throughout=True)
                yield replace(within, partition=partition, from_offset=committed)
    if not any(line["event"] == "group_changed" and line.get("group") == pipe.group for line in evidence.events):
        yield replace(
            own,
            cause="a change of owner of the input's partition",
            evidence="events.jsonl has no `group_changed` of the pipe's group",
            certain=False,
        )
    for change in changes(evidence.leaders or ()):
        if change.topic == pipe.writes:
            output = f"{change.topic}/{change.partition}"
            cause = f"the change of leader of {output} to epoch {change.epoch}"
            led = _retried(replace(own, cause=cause, evidence=LEADERS, output=output), change.after_us, change.by_us)
            yield replace(led, certain=None not in (change.after_us, change.by_us))
    parameters = {step["id"]: step.get("parameters") or {} for step in evidence.steps}
    for harm in harms:
        api = parameters.get(harm.fault, {}).get("api")
        if harm.clients and harm.kind != "disconnect_client":
            continue  # the process was killed or frozen
        if api in (None, "Produce") and breaks_connections(harm, client.workers("pipe"), pipe.rack, (pipe.writes,)):
            cause = f"{harm.fault} ({harm.kind}), which breaks connections or loses answers"
            yield _retried(replace(own, cause=cause, evidence="journal.jsonl"), harm.start_us, harm.end_us)


def _retried(cause: Explanation, start_us: int | None, end_us: int | None) -> Explanation:
    """Return the explanation of outputs of which a retry, after a broken connection, may have written the second."""
    until_us = None if end_us is None else end_us + RETRY_US
    return replace(cause, from_us=start_us, until_us=until_us, sent_by_us=end_us, throughout=True)


def owner_changes(evidence: Evidence, pipe: Pipe, topic: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield the interval of each change of a partition's owner, the partition, and the position committed before."""
    before: Mapping[int, str] = {}
    for line in evidence.events:
        if line["event"] == "group_changed" and line.get("group") == pipe.group:
            owners = _of_topic(line.get("owners") or (), topic)
            committed = _of_topic(line.get("offsets") or (), topic)
            for partition in sorted(before.keys() | owners.keys()):
                if before.get(partition) != owners.get(partition) and before:
                    yield int(line["since_us"]), int(line["t_us"]), partition, int(committed.get(partition, 0))
            before = owners


def _of_topic(rows: Any, topic: str) -> Mapping[int, Any]:
    return {number: value for name, number, value in rows if name == topic}
