"""Check ``obligation/stuck``: no client stands still for good while others are served.

Unlike a stall, which ends, a client that is stuck is seen at the end of the run, so a busy host is no excuse: the time
in which the host or the client's process stood still is subtracted, and the rest counts. There is a check only for a
client that left something undone.

=========  =============================================================================================================
consumer   a partition has acknowledged records that the consumer (no member of the group) did not get in the drain.
           Since its last delivery there, nothing was delivered for longer than the patience of the drain, although
           progress was required. That the leader answered is known: the harness read the partition to its end. While a
           consumer reads on elsewhere it may only be slow, so it must have read nothing at all for the last 30 s
producer   records were accepted and got no result, neither success nor failure, in more than their delivery time-out,
           and no record succeeded since, although progress was required
=========  =============================================================================================================

A partition of a group counts from its last assignment; if nobody owned it at the end, a session time-out more is
allowed, for which the group may wait for a member. Not blamed are clients that a fault killed or that ended
(``client/died``), readers of committed records whom an open transaction holds back (``obligation/stable_offset``), and
records whose time-out had not passed. On an attached cluster, of which it is not known when progress was required, it
is from a minute after the last fault, as the harness waits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from aftershock.results.checks.doubts import left_out
from aftershock.results.checks.findings.ownership import tenures
from aftershock.results.checks.findings.records import RECOVERY_US, STILL_US
from aftershock.results.checks.obligations.lanes import Lane, lanes
from aftershock.results.checks.obligations.spans import DRAIN_PATIENCE_US, PATIENCE_US
from aftershock.results.checks.progress import held_back_in, overlaps
from aftershock.results.evidence.evidence import Client, Evidence, deadline_ms_of
from aftershock.results.evidence.groups import group_of, reader_events
from aftershock.results.evidence.outages import KILLED, worker_outages
from aftershock.results.evidence.phases import Interval, merged, overlap_us
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Facts, SentRows, Stall
from aftershock.results.slo import Side

Place = tuple[str, int]
SESSION_MS = 45_000
"""Default session time-out of a member of a group (``session.timeout.ms``)."""

_READ = "read logs/{}.log from {:.1f} s on: {}"
_PLACES_MAX = 3


@dataclass(frozen=True)
class _Still:
    """Standstill of a client until the end of what was waited for: how long progress was required, and the limit."""

    start_us: int
    end_us: int
    required_us: int
    allowed_us: int

    @property
    def too_long(self) -> bool:
        return self.required_us > self.allowed_us


def stuck_checks(evidence: Evidence, facts: Facts) -> list[Check]:
    if not evidence.complete:
        return []  # nobody knows what the clients would have done
    by_lane = {(lane.side, lane.client.key): lane for lane in lanes(evidence)}
    suspect = left_out(evidence)
    checks: list[Check] = []
    for client in evidence.clients:
        if client.consumes_from:
            lane = by_lane.get(("consume", client.key))
            checks += _of_reader(evidence, facts, client, lane, suspect.get(("consume", client.key), ()))
    checks += _of_senders(evidence, facts, by_lane, suspect)
    return checks


def _of_reader(
    evidence: Evidence, facts: Facts, client: Client, lane: Lane | None, suspect: Sequence[Interval]
) -> Iterator[Check]:
    unread: dict[Place, int] = {}
    end_us = 0
    for reader, line in reader_events(evidence, "drain_incomplete"):
        if reader == client:
            end_us = max(end_us, int(line["t_us"]))
            # older evidence does not tell for how long the consumer had read nothing
            still = line.get("idle_us") is not None and line["idle_us"] >= STILL_US
            for topic, number, position, end in line["positions"]:
                unread[topic, number] = max(0, end - position) if still else 0
    owners = _owners(evidence, client) if unread else {}
    stuck: dict[Place, _Still] = {}
    for stall in facts.stalls:
        of_place = (stall.side, stall.client) == ("consume", client.key) and stall.partition is not None
        place = stall.topic or client.consumes_from[0], int(stall.partition or 0)
        if of_place and stall.end_us >= end_us and unread.get(place):
            held = () if lane is None else held_back_in(evidence, facts, lane, stall)
            owned_us, patience_us = owners.get(place, (0, DRAIN_PATIENCE_US))
            since_owned = replace(stall, start_us=min(stall.end_us, max(stall.start_us, owned_us)))
            judged = _still(evidence, since_owned, lane, merged([*suspect, *held]), patience_us)
            if judged.too_long:
                stuck[place] = judged
    if not stuck:
        return
    longest = max(stuck.values(), key=lambda one: one.required_us)
    first_us = min(one.start_us for one in stuck.values())
    why = (
        f"nothing more was delivered of {_places(sorted(stuck), unread)}: for {longest.required_us / 1e6:.1f} s in "
        f"which progress was required (from {longest.start_us / 1e6:.1f} s to the end of the drain; "
        f"{longest.allowed_us / 1e6:g} s are allowed), though the harness read these records from the same brokers"
    )
    advice = _READ.format(f"{client.workload}-{client.arm}-consume*", first_us / 1e6, "why did it stop reading?")
    yield _check(evidence, client, "consume", longest, len(stuck), why, advice)


def _check(evidence: Evidence, client: Client, side: Side, still: _Still, n: int, why: str, advice: str) -> Check:
    return Check(
        id="obligation/stuck",
        kind="obligation",
        subject=f"{evidence.subject_of(client)} {side}",
        arm=client.arm,
        status=Status.FAIL,
        observed=still.required_us / 1e6,
        threshold=still.allowed_us / 1e6,
        unit="s",
        n=n,
        minimum=1,
        why=why,
        next=advice,
    )


def _owners(evidence: Evidence, client: Client) -> dict[Place, tuple[int, int]]:
    """Return of each partition of a group since when it has its owner, and for how long nothing need be delivered.

    A partition that nobody owned at the end may wait for a member that the group takes for alive, until its session is
    over: a busy host may expel members without any fault.
    """
    if group_of(evidence, client) is None:
        return {}
    session_us = 1000 * int(evidence.arm_settings(client).get("session.timeout.ms") or SESSION_MS)
    found = {}
    for tenure in tenures(evidence, client):
        is_owned = tenure.end_us == inf
        patience_us = DRAIN_PATIENCE_US + (0 if is_owned else session_us)
        found[tenure.place] = (tenure.start_us if is_owned else 0, patience_us)
    return found


def _places(places: Sequence[Place], unread: Mapping[Place, int]) -> str:
    shown = ", ".join(f"{topic}/{number}" for topic, number in places[:_PLACES_MAX])
    more = f" and {len(places) - _PLACES_MAX} more partitions" if len(places) > _PLACES_MAX else ""
    count = sum(unread.get(place, 0) for place in places)
    return f"{shown}{more}" + (f" ({count} offsets)" if count else "")


def _still(
    evidence: Evidence, stall: Stall, lane: Lane | None, left_out: tuple[Interval, ...], patience_us: int
) -> _Still:
    """Return for how long a stall that nothing ended was a standstill at which progress was required."""
    if lane is None:
        fault_us = max((int(line["t_us"]) + RECOVERY_US for line in evidence.journal), default=0)
        start_us = max(stall.start_us, fault_us)
        required_us = max(0, stall.end_us - start_us) - overlap_us(left_out, start_us, stall.end_us)
        return _Still(stall.start_us, stall.end_us, max(0, required_us), patience_us)
    last = [one for one in overlaps(lane, stall, left_out) if one.end_us == stall.end_us]
    if not last:
        return _Still(stall.start_us, stall.end_us, 0, patience_us)
    longest = max(last, key=lambda one: (one.over_us, one.within_us))
    return _Still(stall.start_us, stall.end_us, longest.within_us, max(patience_us, longest.allowed_us))


def _of_senders(
    evidence: Evidence,
    facts: Facts,
    by_lane: Mapping[tuple[Side, str], Lane],
    suspect: Mapping[tuple[str, str], Sequence[Interval]],
) -> Iterator[Check]:
    killed = worker_outages(evidence, KILLED)
    load_end_us = max((phase.end_us for phase in evidence.phases), default=0)
    clients = {client.key: client for client in evidence.clients}
    for sent in facts.load:
        client = clients.get(sent.client)
        # what a killed process had in flight has no result either
        if client is None or sent.unanswered_us is None or sent.unanswered_last_us is None or sent.worker in killed:
            continue
        if (sent.answered_us or 0) > sent.unanswered_last_us:
            continue  # it went on
        deadline_us = 1000 * deadline_ms_of(evidence, client, sent.side)
        since_us = max(sent.unanswered_us, sent.answered_us or 0)
        end_us = load_end_us + deadline_us  # the harness waited until the last time-out had passed
        side: Side = "commit" if sent.side == "commit" else "produce"
        lane = by_lane.get((side, client.key))
        stall = Stall(side, client.key, None, since_us, end_us)
        others = _others(facts, clients, client, sent, since_us)
        if lane is None and not others:
            continue
        still = _still(evidence, stall, lane, tuple(suspect.get((side, client.key), ())), PATIENCE_US)
        if not still.too_long or end_us - since_us <= deadline_us:
            continue
        noun = "commits" if side == "commit" else "records"
        served = f", while {others} had successes" if others else ""
        why = (
            f"{sent.unanswered} {noun} that {sent.worker} accepted got no result, neither success nor failure, though "
            f"their time-out of {deadline_us / 1e6:g} s had passed, and none succeeded after {since_us / 1e6:.1f} s, "
            f"for {still.required_us / 1e6:.1f} s in which progress was required ({still.allowed_us / 1e6:g} s are "
            f"allowed){served}"
        )
        advice = _READ.format(sent.worker, since_us / 1e6, "why did it stop?")
        yield _check(evidence, client, side, still, sent.unanswered, why, advice)


def _others(facts: Facts, clients: Mapping[str, Client], client: Client, sent: SentRows, since_us: int) -> str:
    """Return the names of other senders to the same topics with successes after the standstill began."""
    names = []
    for other in facts.load:
        rival = clients.get(other.client)
        if rival is None or other.worker == sent.worker or other.side != sent.side:
            continue
        topics = {*rival.topics.get("produce", ())} & {*client.topics.get("produce", ())}
        if (topics or sent.side == "commit") and (other.answered_us or 0) > since_us + PATIENCE_US:
            names.append(other.worker)
    return ", ".join(names[:_PLACES_MAX])
