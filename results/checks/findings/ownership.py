"""Ownership of partitions by the members of a consumer group, read from the members' events.

A member owns a partition from the event ``assigned`` to ``revoked`` or ``lost``, or until a fault kills its process. An
``assigned`` of a partition that the member owns already changes nothing. The fault ``churn`` does not say when it
killed whom: such a member owns the partition until its process is started again (``restarted``), although it delivers
nothing after its death.

A reader starts to read a partition (``Start``) when it is assigned, and again when its position is reset. A member that
is assigned a partition resumes at the last commit that the group's coordinator had acknowledged before; at-least-once
permits it to deliver the records from there again.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from aftershock.results.checks.explanations.model import Anomaly
from aftershock.results.evidence.evidence import Client, Evidence, listed_once, workload_of
from aftershock.results.evidence.groups import Commit, commits_of, group_of, reader_events
from aftershock.results.evidence.hosts import apart_us
from aftershock.results.evidence.outages import FROZEN, KILLED, POLLING_STOPPED, worker_outages

CHURN = "churn"
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


def tenures(evidence: Evidence, client: Client) -> list[Tenure]:
    """Return the tenures of a client's consumers, in order of their start."""
    workers = client.workers("consume")
    moments: list[tuple[int, str, str, list[Place], int | None]] = []
    for line in evidence.events:
        of_ownership = line.get("event") in _EVENTS and line.get("op", "consume") == "consume"
        if of_ownership and client.wrote(line):
            places = [(topic, number) for topic, number in line.get("partitions") or ()]
            moments.append((int(line.get("t_us", 0)), line["event"], client.reader_of(line), places, line.get("epoch")))
    for worker, spans in worker_outages(evidence, KILLED, besides=CHURN, since="injected").items():
        moments += [(start, "killed", worker, [], None) for start, _ in spans if worker in workers]
    open_: dict[tuple[str, Place], Tenure] = {}
    done: list[Tenure] = []
    for at_us, event, worker, places, epoch in sorted(moments, key=lambda moment: moment[0]):
        if event == "assigned":
            for place in places:
                open_.setdefault((worker, place), Tenure(worker, place, at_us, epoch=epoch))
            continue
        for key in [key for key in open_ if key[0] == worker and (event in _OF_PROCESS or key[1] in places)]:
            begun = open_.pop(key)
            done.append(Tenure(worker, begun.place, begun.start_us, at_us, event, begun.epoch))
    return sorted([*done, *open_.values()], key=lambda tenure: (tenure.start_us, tenure.place))


class Start(NamedTuple):
    """Moment at which a reader began to read a partition: an assignment, or a reset of its position.

    ``committed`` is the offset of the last commit before an assignment, acknowledged at ``committed_us``; None without
    one. ``ended_us`` is the time at which the reader gave the partition up or lost it, None if it did not.
    """

    client: str
    worker: str
    topic: str
    partition: int
    at_us: int
    assigned: bool
    committed: int | None
    committed_us: int | None
    ended_us: int | None


@listed_once
def starts(evidence: Evidence) -> Iterator[Start]:
    """Yield each start of a reader; the positions of a group are those that any of its members committed.

    A reader outside groups starts once, and again only when its process does.
    """
    commits: dict[tuple[str, str, int], list[Commit]] = {}
    for commit in sorted(commits_of(evidence), key=lambda commit: (commit.done_us, commit.offset)):
        commits.setdefault((commit.client, commit.topic, commit.partition), []).append(commit)
    readers = [client for client in evidence.clients if client.consumes_from]
    owned = {client.key: tenures(evidence, client) for client in readers}
    told = {client.key: _told(evidence, client) for client in readers}
    outside = {client.key for client in readers if group_of(evidence, client) is None}
    for key, of_client in owned.items():
        former: dict[tuple[str, Place], str] = {}
        for tenure in of_client:
            owner = tenure.worker, tenure.place
            ended, former[owner] = former.get(owner), tenure.ended
            if key in outside and ended is not None and ended not in _OF_PROCESS:
                continue
            known = commits.get((key, *tenure.place), [])
            earlier = bisect_left(known, tenure.start_us, key=lambda commit: commit.done_us)
            last = known[earlier - 1] if earlier else None
            committed, committed_us = (last.offset, last.done_us) if last else (None, None)
            topic, number = tenure.place
            ended_us = _given_up_us(tenure)
            begun = Start(key, tenure.worker, topic, number, tenure.start_us, True, committed, committed_us, ended_us)
            yield from _as_member(begun, told[key].get(tenure.worker, ()))
    for client, line in reader_events(evidence, "position_reset"):
        worker, place, at_us = client.reader_of(line), (line["topic"], line["partition"]), int(line["t_us"])
        of_place = (tenure for tenure in owned[client.key] if (tenure.worker, tenure.place) == (worker, place))
        around = next((tenure for tenure in of_place if tenure.start_us <= at_us < tenure.end_us), None)
        ended_us = _given_up_us(around) if around else None
        reset = Start(client.key, worker, *place, at_us, False, None, None, ended_us)
        yield from _as_member(reset, told[client.key].get(worker, ()))


TOLD_US = 5_000_000
"""Time in which a member that is told to be none must have stopped: the silence that an obligation allows."""


def _told(evidence: Evidence, client: Client) -> dict[str, list[tuple[int, float]]]:
    """Return the times, by worker, in which a coordinator had told it that it is no member.

    They end with an assignment, or with the success of a commit that the worker sent later. An answer to a request that
    the worker sent before its last assignment concerns an earlier membership. They begin when no fault stops the worker
    any more. Clients that process a whole batch before they look at anything else are left out.
    """
    spans: dict[str, list[tuple[int, float]]] = {}
    if (workload_of(evidence, client).get("consume") or {}).get("processing_ms"):
        return spans
    since: dict[str, int] = {}
    assigned: dict[str, int] = {}
    for line in sorted(evidence.events, key=lambda line: int(line.get("t_us", 0))):
        event, took_us = line.get("event"), line.get("took_us")
        if event not in ("member_fenced", "assigned", "committed") or not client.wrote(line):
            continue
        worker, at_us = client.reader_of(line), int(line["t_us"])
        if event == "assigned":
            assigned[worker] = at_us
        if event == "member_fenced":
            if took_us is not None and at_us - took_us > assigned.get(worker, 0):
                since.setdefault(worker, at_us)
        elif worker in since and (event == "assigned" or at_us - (took_us or 0) > since[worker]):
            spans.setdefault(worker, []).append((since.pop(worker), at_us))
    for worker, from_us in since.items():
        spans.setdefault(worker, []).append((from_us, inf))
    stopped = [worker_outages(evidence, what) for what in (KILLED, FROZEN, POLLING_STOPPED)]

    def able_us(worker: str, from_us: int) -> int:
        """Return when a worker that was told at a time could act on it, after faults that stopped it."""
        outages = sorted(outage for by_worker in stopped for outage in by_worker.get(worker, ()))
        for start, end in outages:
            from_us = end if start <= from_us + TOLD_US and end >= from_us else from_us
        return from_us

    return {
        worker: [(able_us(worker, from_us), until_us) for from_us, until_us in of_worker]
        for worker, of_worker in spans.items()
    }


def _as_member(begun: Start, told: Sequence[tuple[int, float]]) -> Iterator[Start]:
    """Yield a start, which ends ``TOLD_US`` after its reader is told to be no member, and again when it is one."""
    end_us = inf if begun.ended_us is None else begun.ended_us
    for from_us, until_us in told:
        if begun.at_us < until_us and from_us + TOLD_US < min(until_us, end_us):
            yield begun._replace(ended_us=max(begun.at_us, from_us + TOLD_US))
            if until_us >= end_us:
                return
            begun = begun._replace(at_us=int(until_us), assigned=False, committed=None, committed_us=None)
    yield begun


DYING_US = 1_000_000
"""Time in which what a process delivered before its kill may still arrive from its pipe."""


def _given_up_us(tenure: Tenure) -> int | None:
    return int(tenure.end_us) + DYING_US * (tenure.ended == "killed") if tenure.ended else None


def fenced(evidence: Evidence, client: Client) -> tuple[int, list[Anomaly]]:
    """Return how many commits are comparable, and those that Kafka accepted from a member that had been replaced.

    A commit comes from a replaced member if another member got the partition after the committer did (``_turn``) and
    before the committer sent the commit, whatever clocks of several hosts may be apart. A commit without ``took_us``,
    whose time of sending is unknown, is not comparable.
    """
    by_place: dict[Place, list[Tenure]] = {}
    for tenure in tenures(evidence, client):
        by_place.setdefault(tenure.place, []).append(tenure)
    examined, accepted, apart = 0, list[Anomaly](), apart_us(evidence.run)
    for line in evidence.events:
        if line.get("event") != "committed" or line.get("took_us") is None or not client.wrote(line):
            continue
        worker, sent_us = client.reader_of(line), line["t_us"] - line["took_us"]
        for topic, number, offset in line["offsets"]:
            begun = [
                tenure
                for tenure in by_place.get((topic, number), ())
                if tenure.start_us + (apart if tenure.worker != worker else 0) <= sent_us
            ]
            if begun:
                examined += 1
                newest = max(begun, key=_turn(begun))
                if newest.worker != worker:
                    accepted.append(Anomaly(client.key, topic, number, offset, sent_us, line["t_us"], worker=worker))
    return examined, accepted


def _turn(rivals: Sequence[Tenure]) -> Callable[[Tenure], tuple[int, int, str]]:
    """Return the order in which the coordinator gave a partition to members: that of the epochs, or of the reports.

    A member that was away may report an assignment of an older epoch after another member got the partition.
    """
    known = all(tenure.epoch is not None for tenure in rivals)
    return lambda tenure: ((tenure.epoch or 0) if known else 0, tenure.start_us, tenure.worker)


def co_assigned(evidence: Evidence, client: Client) -> tuple[int, list[Anomaly]]:
    """Return the number of the client's tenures, and an anomaly of the earlier owner for each overlap with another.

    An overlap lasts from the later assignment to the end of either tenure, and longer than clocks of members on several
    hosts may be apart. An overlap of two members of this client is counted once, as one of the later tenure. An owner
    that ``churn`` may have killed before is no owner: whether it lived can only be seen by its deliveries.
    """
    group = group_of(evidence, client)
    mates = [mate for mate in evidence.clients if mate != client and group and group_of(evidence, mate) == group]
    own = [(client, tenure) for tenure in tenures(evidence, client)]
    by_place: dict[Place, list[tuple[Client, Tenure]]] = {}
    for rival in [*own, *((mate, tenure) for mate in mates for tenure in tenures(evidence, mate))]:
        by_place.setdefault(rival[1].place, []).append(rival)
    churns = worker_outages(evidence, KILLED, only=CHURN)
    run_end_us = max((phase.end_us for phase in evidence.phases), default=0)
    overlaps, apart = list[Anomaly](), apart_us(evidence.run)
    workers = client.workers("consume")
    for mine in own:
        for other in by_place.get(mine[1].place, ()):
            turn = _turn((mine[1], other[1]))
            (owner, earlier), (_, later) = sorted((mine, other), key=lambda each: turn(each[1]))
            from_us, end_us = max(earlier.start_us, later.start_us), min(earlier.end_us, later.end_us)
            counted_as_later = other[1].worker in workers and other[1] is later
            if other[1].worker == mine[1].worker or counted_as_later or from_us + apart >= end_us:
                continue
            churned = (start <= from_us <= end for start, end in churns.get(earlier.worker, ()))
            if earlier.ended in ("restarted", "") and any(churned):
                continue
            until_us = max(from_us, run_end_us) if end_us == inf else int(end_us)
            place = Anomaly(owner.key, *mine[1].place, from_us=from_us, until_us=until_us)
            overlaps.append(Anomaly(**vars(place) | {"worker": earlier.worker}))
    return len(own), overlaps
