"""Ownership of partitions by the members of a consumer group, read from the members' events.

A member owns a partition from the event ``assigned`` to ``revoked`` or ``lost``, or until a fault kills its process.
The fault ``churn`` does not say when it killed whom: such a member owns the partition until its process is started
again (``restarted``), although it delivers nothing after its death. A member may not know yet that it has lost a
partition while a fault keeps it from learning that: while its process is stopped or does not poll, and while a fault is
at work on the cluster, through which the coordinator would tell it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.outages import FROZEN, KILLED, POLLING_STOPPED, worker_outages
from aftershock.results.evidence.phases import Interval, merged

SESSION_US = 45_000_000
"""Kafka's session.timeout.ms: the longest time until a coordinator removes a silent member."""
_GROUP_APIS = ("FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat")
"""Requests by which a member learns what it has lost; a fault on other requests only does not keep it from that."""
RETURN_US = 10_000_000
"""Time after which a member that runs again must have learned from a heartbeat what it has lost."""

_EVENTS = ("assigned", "revoked", "lost", "restarted")
_OF_PROCESS = ("killed", "restarted")
"""Ends of a process, after which it owns no partition."""

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class Tenure:
    """Time in which a member owned a partition; ``end_us`` is infinite if the run ended first.

    ``ended`` is the event with which it ended, or ``killed``; ``epoch`` is the member epoch or generation, if known.
    """

    worker: str
    place: Place
    start_us: int
    end_us: float = inf
    ended: str = ""
    epoch: int | None = None


def group_of(evidence: Evidence, client: Client) -> str | None:
    """Return the name of a client's consumer group, ``<group>-<arm>``; None if the client joins no group."""
    workloads = {workload["name"]: workload for workload in evidence.timeline["workloads"]}
    group = (workloads.get(client.workload, {}).get("consume") or {}).get("group")
    return f"{group}-{client.arm}" if group else None


def tenures(evidence: Evidence, client: Client) -> list[Tenure]:
    """Return the tenures of a client's consumers, in order of their start."""
    workers = client.workers("consume")
    moments: list[tuple[int, str, str, list[Place], int | None]] = []
    for line in evidence.events:
        of_ownership = line.get("event") in _EVENTS and line.get("op", "consume") == "consume"
        if of_ownership and client.wrote(line):
            places = [(topic, number) for topic, number in line.get("partitions") or ()]
            moments.append((int(line.get("t_us", 0)), line["event"], client.reader_of(line), places, line.get("epoch")))
    for worker, spans in worker_outages(evidence, KILLED, besides="churn").items():
        moments += [(start, "killed", worker, [], None) for start, _ in spans if worker in workers]
    open_: dict[tuple[str, Place], Tenure] = {}
    done: list[Tenure] = []
    for at_us, event, worker, places, epoch in sorted(moments, key=lambda moment: moment[0]):
        for key in [key for key in open_ if key[0] == worker and (event in _OF_PROCESS or key[1] in places)]:
            begun = open_.pop(key)
            done.append(Tenure(worker, begun.place, begun.start_us, at_us, event, begun.epoch))
        if event == "assigned":
            open_ |= {(worker, place): Tenure(worker, place, at_us, epoch=epoch) for place in places}
    return sorted([*done, *open_.values()], key=lambda tenure: (tenure.start_us, tenure.place))


def unaware(evidence: Evidence, worker: str) -> tuple[Interval, ...]:
    """Return the times in which a consumer may not know that it has lost partitions."""
    own = worker_outages(evidence, FROZEN, POLLING_STOPPED, KILLED).get(worker, ())
    return merged([*((start, end + RETURN_US) for start, end in own), *_of_cluster(evidence)])


def unaware_others(evidence: Evidence, client: Client, worker: str) -> tuple[Interval, ...]:
    """Return the times in which other members than ``worker`` may not know that they have lost partitions."""
    others = [other for other in client.workers("consume") if other != worker] or [worker]
    return merged([span for other in others for span in unaware(evidence, other)])


def _of_cluster(evidence: Evidence) -> Iterator[Interval]:
    """Yield the time of each fault that may have separated members from their coordinator, with a session time-out."""
    apis = {step["id"]: (step.get("parameters") or {}).get("api") for step in evidence.timeline.get("steps", ())}
    for fault in dict.fromkeys(line["fault"] for line in evidence.journal):
        if apis.get(fault) not in (None, *_GROUP_APIS):
            continue
        lines = [line for line in evidence.journal if line["fault"] == fault]
        targets: Mapping[str, Any] = next((line["targets"] for line in lines if line.get("targets")), {})
        if not targets.get("clients") or targets.get("brokers") or targets.get("links"):
            times = [line["t_us"] for line in lines]
            yield min(times), max(times) + SESSION_US


def fenced(evidence: Evidence, client: Client) -> tuple[int, int]:
    """Return how many commits are comparable, and how many Kafka accepted from a member that had been replaced.

    A commit comes from a replaced member if another member got the partition after the committer did and before the
    committer sent the commit. A commit without ``took_us``, whose time of sending is unknown, is not comparable.
    """
    by_place: dict[Place, list[Tenure]] = {}
    for tenure in tenures(evidence, client):
        by_place.setdefault(tenure.place, []).append(tenure)
    examined = broken = 0
    for line in evidence.events:
        if line.get("event") != "committed" or line.get("took_us") is None or not client.wrote(line):
            continue
        worker, sent_us = client.reader_of(line), line["t_us"] - line["took_us"]
        for topic, number, _ in line["offsets"]:
            begun = [tenure for tenure in by_place.get((topic, number), ()) if tenure.start_us <= sent_us]
            if begun:
                examined += 1
                newest = max(begun, key=lambda tenure: tenure.start_us)
                broken += newest.worker != worker
    return examined, broken


@dataclass(frozen=True)
class Overlaps:
    """Number of tenures examined, and of the forbidden and the permitted overlaps with other members."""

    examined: int
    forbidden: int
    permitted: int


def co_assigned(evidence: Evidence, client: Client) -> Overlaps:
    """Compare the tenures of the group's members; an overlap is permitted if the earlier owner may not know of it.

    An overlap of two members of this client is counted once, as one of the later tenure.
    """
    group, own = group_of(evidence, client), tenures(evidence, client)
    mates = [mate for mate in evidence.clients if mate != client and group and group_of(evidence, mate) == group]
    rivals = [*own, *(tenure for mate in mates for tenure in tenures(evidence, mate))]
    by_place: dict[Place, list[Tenure]] = {}
    for tenure in rivals:
        by_place.setdefault(tenure.place, []).append(tenure)
    counts = {True: 0, False: 0}
    blind = {worker: unaware(evidence, worker) for worker in {tenure.worker for tenure in rivals}}
    workers = client.workers("consume")
    for tenure in own:
        for other in by_place.get(tenure.place, ()):
            earlier, later = sorted((tenure, other), key=lambda each: (each.start_us, each.worker))
            counted_as_later = other.worker in workers and other is later
            if other.worker == tenure.worker or counted_as_later or later.start_us >= earlier.end_us:
                continue
            counts[any(start <= later.start_us <= end for start, end in blind[earlier.worker])] += 1
    return Overlaps(len(own), counts[False], counts[True])
