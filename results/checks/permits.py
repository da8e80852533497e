"""When a fault held a client itself: killed or frozen, so that what it did late or not at all is the fault's doing.

Read from the journal, so it covers faults of the plan and those that somebody injected by hand meanwhile. A rehearsal
holds nobody.

What a client's configuration, its topic's and the plan's own faults permit: a reason for a rule's breach, or None.

=========================================  ===========================================================================
configuration                              permits
=========================================  ===========================================================================
acks=1, acks=0                             lost (from the log), backward (by acknowledgements of a deposed leader)
min.insync.replicas below 2,               lost: an acknowledged record may have been on one disk only
with a replication of 2 or more
unclean.leader.election.enable             lost, duplicate, order, collision, skipped, backward: the log may be cut
                                           back behind its high watermark, and written anew
no idempotence                             duplicate; backward; and order, if more than one request may be in flight,
                                           or records that were in doubt came late
a fault that killed the producer           order, backward: what was under way may come after what it sent anew
a fault that says so (``roles.permits``)   what it says, of its topics: records were deleted, the log was cut back
=========================================  ===========================================================================

Source: Kafka's producer and topic configuration; KIP-98 (idempotence), KIP-101 (truncation), KIP-966 (min ISR).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from aftershock.results.checks.obligations.reach import settings_of
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import Interval, merged

KILLED = "start_clients"
FROZEN = "resume_clients"
"""The undos of such faults, as the journal has them."""


def held(evidence: Evidence, *verbs: str) -> dict[tuple[str, str], tuple[Interval, ...]]:
    """The times, by (side, client key), of faults with these undos; one never healed holds its clients to the end."""
    spans: dict[str, list[Interval]] = {}
    for worker, span in _spans(evidence, verbs):
        spans.setdefault(worker, []).append(span)
    return {
        (side, client.key): merged(spans[worker])
        for client in evidence.clients
        for side in ("produce", "consume", "commit")
        if (worker := f"{client.workload}-{client.arm}-{side}") in spans
    }


def _spans(evidence: Evidence, verbs: tuple[str, ...]) -> Iterator[tuple[str, Interval]]:
    lasted_us = max((phase.end_us for phase in evidence.phases), default=0)
    for fault in dict.fromkeys(line["fault"] for line in evidence.journal):
        lines = [line for line in evidence.journal if line["fault"] == fault and _undo(line) in verbs]
        if lines:
            healed = [line["t_us"] for line in lines if line["state"] == "healed"]
            span = (lines[0]["t_us"], healed[-1] if healed else max(lasted_us, lines[-1]["t_us"]))
            yield from ((worker, span) for worker in lines[0]["targets"]["clients"])


def _undo(line: Mapping[str, Any]) -> str | None:
    undo = line.get("undo") or {}
    return undo.get("verb")


TRUNCATED = ("lost", "duplicate", "order", "collision", "skipped", "backward")
"""What an unclean leader election permits."""

AS = {"misplaced": "duplicate", "collision": "duplicate", "skipped": "lost", "backward": "order", "beyond": "order"}
"""Which of the words that faults know (``lost duplicate order``) stands for a rule that came later."""

IN_FLIGHT = ("max.in.flight.requests.per.connection", "max.in.flight")
_IN_FLIGHT_DEFAULT = 5
_COPIES = 2  # of an acknowledged record, at the least, if the loss of one disk is to lose nothing


def permit(evidence: Evidence, client: Client, side: str, rule: str) -> str | None:
    """Why the rule need not hold for what a client produces (``produce``) or consumes (``consume``)."""
    topic = client.produces_to if side == "produce" else client.consumes_from
    by_producer = _by_producer(evidence, client, rule) if side == "produce" else None
    return by_producer or _by_topic(evidence, topic, rule) or _by_fault(evidence, topic, rule)


def lossy(evidence: Evidence, client: Client) -> bool:
    """Whether what it had acknowledged may be missing from the log."""
    return permit(evidence, client, "produce", "lost") is not None


def _by_producer(evidence: Evidence, client: Client, rule: str) -> str | None:
    if rule == "lost":
        return _thin(evidence, client)
    if rule == "backward" and not client.acks_all:
        return f"permitted by acks={client.acks}"
    if rule in ("duplicate", "backward") and not client.idempotent:
        return "permitted without idempotence"
    if rule == "order" and not client.idempotent and in_flight(evidence, client) > 1:
        return f"permitted without idempotence, with {in_flight(evidence, client)} requests in flight"
    if rule in ("order", "backward") and ("produce", client.key) in held(evidence, KILLED):
        return "permitted, for a fault killed the producer"
    return None


def _thin(evidence: Evidence, client: Client) -> str | None:
    """Why an acknowledged record may have been on one disk only."""
    if not client.acks_all:
        return f"permitted by acks={client.acks}"
    name = "min.insync.replicas"
    at_least = _setting(evidence, client.produces_to, name)
    copied = _topic(evidence, client.produces_to).get("replication", 1) > 1
    thin = copied and at_least is not None and int(str(at_least)) < _COPIES
    return f"permitted by {name}={at_least}" if thin else None


def _by_topic(evidence: Evidence, topic: str | None, rule: str) -> str | None:
    name = "unclean.leader.election.enable"
    unclean = rule in TRUNCATED and str(_setting(evidence, topic, name)).lower() == "true"
    return f"permitted by {name}" if unclean else None


def _by_fault(evidence: Evidence, topic: str | None, rule: str) -> str | None:
    fault = evidence.excused(topic, AS.get(rule, rule))
    return f"permitted by {fault}, which rewrites {topic} by plan" if fault else None


def _setting(evidence: Evidence, topic: str | None, name: str) -> object:
    """The topic's own, else the brokers' as the run tells it; None where neither says."""
    return (_topic(evidence, topic).get("config") or {}).get(name, settings_of(evidence).get(name))


def _topic(evidence: Evidence, topic: str | None) -> Mapping[str, Any]:
    return next((one for one in evidence.timeline.get("topics", ()) if one["name"] == topic), {})


def in_flight(evidence: Evidence, client: Client) -> int:
    """How many requests a producer may have under way at once: more than one may change places when retried."""
    settings = evidence.arm_settings(client)
    return next((int(settings[name]) for name in IN_FLIGHT if name in settings), _IN_FLIGHT_DEFAULT)
