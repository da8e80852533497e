"""Duplicates, inversions and losses that a second attempt, or a lost connection, of a producer explains.

Without idempotence a broker writes each attempt (KIP-98), so a record is written twice, or behind later records, only
if its producer sent it again. A producer that tells its ``attempts`` settles this. For others, a second attempt was
possible only if, between the sending of the record and its final status,

* a connection of the producer ended, or one of its requests timed out (its events say so),
* the response came later than the producer's request time-out,
* the leader of the partition changed, or
* a fault was in force that ends connections, or drops requests or answers, between this producer and its brokers.

A mere delay is none of these. If a producer does not report the ends of its connections (``reports`` in run.json), the
evidence can't tell. With acks=0 the same events explain a loss, because what was in a broken connection is gone.

A kill of the producer's process explains inversions of an idempotent producer, too: requests of the former process may
reach the log after those of the new one, which has another producer id.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from aftershock.results.checks.explanations.leadership import changes, led_by
from aftershock.results.checks.explanations.model import Explanation, for_rules
from aftershock.results.checks.obligations.reach import LEGACY_DELAY_MS, Harm, harms_of
from aftershock.results.evidence.evidence import Client, Evidence, workload_of
from aftershock.results.evidence.manifest import LEADERS
from aftershock.results.evidence.outages import KILLED, deaths_of, worker_outages

IN_FLIGHT = ("max.in.flight.requests.per.connection", "max.in.flight")
_IN_FLIGHT_DEFAULT = 5
_TIMEOUTS = ("request.timeout.ms", "socket.timeout.ms")
_TIMEOUT_US_DEFAULT = 30_000_000
"""request.timeout.ms of the Java client and of librdkafka."""
_ENDS = {"node_disconnected": "a connection of the {} ended", "request_timed_out": "a request timed out"}
_NOUNS = {"produce": "producer", "consume": "consumer", "commit": "committer"}
_TELLING = ("reference",)
"""Clients that report the ends of their connections in every version."""


def of_retries(evidence: Evidence) -> Iterator[Explanation]:
    """Yield what second attempts and kills of each producer explain."""
    harms = harms_of(evidence, max((phase.end_us for phase in evidence.phases), default=0))
    kills, died = worker_outages(evidence, KILLED), {death.worker for death in deaths_of(evidence)}
    for client in evidence.clients:
        if not client.produces_to:
            continue
        own = Explanation("", "", "", "", client=client.key)
        for worker in client.workers("produce"):
            for start_us, end_us in kills.get(worker, ()):
                killed = replace(own, cause=f"the kill of {worker}", evidence="journal.jsonl")
                if worker in died and start_us == kills[worker][-1][0]:
                    killed = replace(own, cause=f"the end of {worker}", evidence="events.jsonl")
                yield from for_rules(
                    replace(killed, from_us=start_us, until_us=end_us), ("order", "produce"), ("backward", "produce")
                )
        places = list(_places(evidence, client))
        if places:
            yield from (
                explanation
                for cause in _second_attempts(evidence, client, own, harms)
                for explanation in for_rules(cause, *places)
            )


def _places(evidence: Evidence, client: Client) -> Iterator[tuple[str, str]]:
    """Yield the rules that a second attempt of the producer may break."""
    if client.acks == "0":
        yield "lost", "produce"
    if client.idempotent:
        return
    yield "duplicate", "produce"
    # an earlier copy lies below the acknowledged offset
    yield "misplaced", "produce"
    settings = evidence.arm_settings(client)
    if next((int(settings[name]) for name in IN_FLIGHT if name in settings), _IN_FLIGHT_DEFAULT) > 1:
        yield "order", "produce"


def _second_attempts(evidence: Evidence, client: Client, own: Explanation, harms: list[Harm]) -> Iterator[Explanation]:
    yield replace(
        own, cause="the producer sent the record more than once", evidence="attempts in outcomes/", attempts=2
    )
    ends, tells = connection_ends(evidence, client, "produce")
    for since_us, at_us, cause in ends:
        yield replace(own, cause=cause, evidence="events.jsonl", from_us=since_us, until_us=at_us)
    timeout_us = _timeout_us(evidence.arm_settings(client))
    cause = f"a response later than the request time-out of {timeout_us / 1e6:g} s"
    yield replace(own, cause=cause, evidence="outcomes/", lasting_us=timeout_us)
    for leadership in changes(evidence.leaders or ()):
        if leadership.topic in client.produces_to:
            cause = f"the change of leader of {leadership.topic}/{leadership.partition} to epoch {leadership.epoch}"
            yield replace(
                *(own,),
                cause=cause,
                evidence=LEADERS,
                topic=leadership.topic,
                topic_id=leadership.topic_id,
                partition=leadership.partition,
                from_us=leadership.after_us,
                until_us=leadership.by_us,
                certain=None not in (leadership.after_us, leadership.by_us),
            )
    parameters = {step["id"]: step.get("parameters") or {} for step in evidence.steps}
    for harm in harms:
        api = parameters.get(harm.fault, {}).get("api")
        workers, topics = client.workers("produce"), client.produces_to
        if api in (None, "Produce") and breaks_connections(harm, workers, client.produce_rack, topics):
            cause = f"{harm.fault} ({harm.kind}), which breaks connections or loses answers"
            during = replace(own, cause=cause, evidence="journal.jsonl", from_us=harm.start_us, until_us=harm.end_us)
            if client.acks_all or not harm.brokers or harm.links or not evidence.leaders:
                yield during
            else:  # without acks=all, a broker that leads nothing of a partition has none of its requests
                for topic, number in led_by(evidence.leaders, harm.brokers, harm.start_us, harm.end_us):
                    if topic in topics:
                        yield replace(during, topic=topic, partition=number)
    if not tells:
        cause = "the producer does not tell when its connections end"
        yield replace(own, cause=cause, evidence="events.jsonl has no such event", from_us=0, certain=False)


def connection_ends(evidence: Evidence, client: Client, op: str) -> tuple[list[tuple[int, int, str]], bool]:
    """Return the interval and cause of each lost connection or request of a client, and whether the client tells them.

    The interval is that between two statistics of a client that learns of lost connections from these.
    """
    workload = workload_of(evidence, client)
    tells = (workload["arms"][client.arm] or {}).get("client") in _TELLING
    reports = evidence.run.get("reports") or {}
    tells |= all({*_ENDS} <= {*reports.get(worker, ())} for worker in client.workers(op))
    ends = [
        (int(event.get("since_us", event["t_us"])), int(event["t_us"]), _ENDS[event["event"]].format(_NOUNS[op]))
        for event in evidence.events
        if event["event"] in _ENDS and client.wrote(event) and event.get("op", op) == op
    ]
    return ends, tells


def breaks_connections(harm: Harm, workers: Collection[str], rack: str | None, topics: Collection[str]) -> bool:
    """Return True if a fault ends connections of these client processes, or loses their requests or the answers."""
    if harm.impact == "leaders":
        return False
    if harm.impact == "moments" and harm.delay_ms <= LEGACY_DELAY_MS:  # shorter than any request time-out
        return False
    if harm.clients:
        return bool(harm.clients & {*workers})
    of_rack = any(link.startswith(f"client_{rack}-") for link in harm.links)
    return of_rack or bool(harm.brokers) or bool(harm.topics & {*topics}) or harm.everywhere


def _timeout_us(settings: Mapping[str, Any]) -> int:
    values = {str(name).replace("_", "."): value for name, value in settings.items()}
    given = [int(values[name]) * 1000 for name in _TIMEOUTS if str(values.get(name, "")).isdigit()]
    return min([*given, _TIMEOUT_US_DEFAULT])
