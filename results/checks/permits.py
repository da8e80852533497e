"""Reasons (a client's or topic's settings, or a fault) why breaches of an integrity rule are permitted.

=========================================  ===========================================================================
configuration                              permits
=========================================  ===========================================================================
acks=1, acks=0                             lost (from the log), backward (by acknowledgements of a deposed leader)
unclean.leader.election.enable             lost, duplicate, order, collision, skipped, backward (the log may be
                                           truncated below its high watermark, and written again)
no idempotence                             duplicate; backward; and order, if more than one request may be in flight,
                                           or records in doubt arrived late
a fault that killed the producer           order, backward (requests in flight may arrive after later requests)
a fault with ``roles.permits``             the listed rules, for the fault's topics (the fault deletes records, or
                                           truncates the log)
=========================================  ===========================================================================

``min.insync.replicas`` permits nothing, neither as 1 nor unset, which is 1 too. With acks=all a record is acknowledged
by all replicas in sync, however few. One of them has it on its disk, unless all lose power at once, which the fault
says (``roles.permits``), and another replica leads only after an unclean election.

Findings are counted for a client, not for each of its topics, so what is permitted on one of several topics is
permitted on all of them.

Source: Kafka's producer and topic configuration; KIP-98 (idempotence), KIP-101 (truncation), KIP-966 (min ISR).

The times during which a fault killed or froze a client are read from the journal, so faults that were injected by hand
during the run are included. In a rehearsal clients are never killed or frozen, because no fault is injected.
"""

from collections.abc import Mapping
from typing import Any

from aftershock.results.checks.obligations.reach import settings_of
from aftershock.results.checks.rules import RULES
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import Interval, merged

KILLED = "start_clients"
FROZEN = "resume_clients"
POLLING_STOPPED = "resume_polling"
"""The undo verbs, in the journal, of faults that kill clients, freeze them, or keep consumers from polling."""


def worker_outages(evidence: Evidence, *verbs: str, besides: str = "") -> dict[str, tuple[Interval, ...]]:
    """Return, by client process, the times in which faults with one of the undo ``verbs`` stopped that process.

    Faults of the kind ``besides`` are left out.
    """
    end_us = max((phase.end_us for phase in evidence.phases), default=0)
    by_worker: dict[str, list[Interval]] = {}
    for fault in dict.fromkeys(line["fault"] for line in evidence.journal):
        of_fault = [line for line in evidence.journal if line["fault"] == fault and line.get("kind") != besides]
        lines = [line for line in of_fault if (line.get("undo") or {}).get("verb") in verbs]
        if lines:
            healed = [line["t_us"] for line in lines if line["state"] == "healed"]
            span = (lines[0]["t_us"], healed[-1] if healed else max(end_us, lines[-1]["t_us"]))
            for worker in lines[0]["targets"]["clients"]:
                by_worker.setdefault(worker, []).append(span)
    return {worker: merged(spans) for worker, spans in by_worker.items()}


def client_outages(evidence: Evidence, *verbs: str) -> dict[tuple[str, str], tuple[Interval, ...]]:
    """Return, by (side, client key), the times in which such faults stopped any of the client's processes."""
    by_worker = worker_outages(evidence, *verbs)
    outages = {
        (side, client.key): merged([span for worker in client.workers(side) for span in by_worker.get(worker, ())])
        for client in evidence.clients
        for side in ("produce", "consume", "commit")
    }
    return {place: spans for place, spans in outages.items() if spans}


IN_FLIGHT = ("max.in.flight.requests.per.connection", "max.in.flight")
_IN_FLIGHT_DEFAULT = 5


def permit(evidence: Evidence, client: Client, side: str, rule: str) -> str | None:
    """Return why the configuration lets a client (as producer or consumer) break a rule; None if it forbids that."""
    names = client.produces_to if side == "produce" else client.consumes_from
    own: list[Mapping[str, Any]] = [row for row in evidence.timeline.get("topics", ()) if row["name"] in names]
    if side == "produce" and (reason := _by_producer(evidence, client, rule)):
        return reason
    name = "unclean.leader.election.enable"
    of_cluster = settings_of(evidence).get(name)
    if RULES[rule].unclean and any(
        str((row.get("config") or {}).get(name, of_cluster)).lower() == "true" for row in own or [{}]
    ):
        return f"permitted by {name}"
    fault = evidence.excused(names, RULES[rule].covered_by or rule)
    return f"permitted by {fault}, the fault of the plan that rewrites topic {' or '.join(names)}" if fault else None


def lossy(evidence: Evidence, client: Client) -> bool:
    """Return True if records acknowledged to the producer may be missing from the log."""
    return permit(evidence, client, "produce", "lost") is not None


def _by_producer(evidence: Evidence, client: Client, rule: str) -> str | None:
    if rule in ("lost", "backward") and not client.acks_all:
        return f"permitted by acks={client.acks}"
    if rule in ("duplicate", "backward") and not client.idempotent:
        return "permitted without idempotence"
    if rule == "order" and not client.idempotent:
        # with more than one request in flight, a retry may change the order
        own = evidence.arm_settings(client)
        in_flight = next((int(own[name]) for name in IN_FLIGHT if name in own), _IN_FLIGHT_DEFAULT)
        if in_flight > 1:
            return f"permitted without idempotence, because the producer may have {in_flight} requests in flight"
    if rule in ("order", "backward") and ("produce", client.key) in client_outages(evidence, KILLED):
        return "permitted, because a fault killed the producer"
    return None
