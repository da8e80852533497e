"""Graces (permitted pauses) after each change of the cluster.

A grace is given only for what a fault can do (``waits.py`` has the waits of the client):

=======================  ===========================================================================================
change                   grace
=======================  ===========================================================================================
nodes stop               the session of the broker, and before it an election of the quorum, if the controller may be
                         among them; then what the client needs to find the new leader. If their addresses disappear
                         with them, also an attempt to connect: one that began just before is not answered
nodes return             what the client needs to find and reach them, if they may lead again; an isolated controller,
                         whose heal only starts the process, takes 10 s to boot, an election and the brokers' sessions
links between nodes      as for nodes that stop; if a follower is cut off and the controller still hears it, also
fail                     1.5 x ``replica.lag.time.max.ms``
links between nodes      an election of the quorum, a heartbeat, and the back-off of the followers' fetches
return
a preferred read         1.5 x ``replica.lag.time.max.ms``, in which the leader still prefers it, its lease, and what
replica falls behind     the client needs to reach the leader; at most until the replica can fetch again
client links return      what the client needs to reach the brokers again
leaders move             what the client needs to find and reach the new leader
requests fail            none; if each attempt fails, afterwards a back-off
traffic is late          none
connections are closed   what the client needs to connect again
a quota ends             the window over which Kafka averages the rate
an unknown fault ends    all of the above, at most 30 s
=======================  ===========================================================================================

A request time-out comes on top only of a silent fault (a frozen node, a link that drops traffic without closing its
connections), and after the heal only if the heal neither answers the requests nor closes the connections.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aftershock.results.checks.obligations.reach import ALONE, COORDINATION, Harm, Seat, State, governed
from aftershock.results.checks.obligations.scene import FOLLOWERS, Post, Scene, last_us, moments_of
from aftershock.results.checks.obligations.waits import (
    BOOT_MS,
    QUOTA_WINDOW_MS,
    ClientWaits,
    Grace,
    Term,
    heartbeat,
    lag,
    quorum,
    session,
    total_us,
)

UNKNOWN_MS = 30_000
"""Longest grace after a fault of unknown effect. It is the default request time-out of Kafka's own clients, within
which a lost request is noticed; a fault that can do more has to declare it."""


@dataclass(frozen=True)
class Change:
    at_us: int
    grace: Grace
    event: str
    most_us: int | None = None

    @property
    def settled_us(self) -> int:
        until_us = self.at_us + total_us(self.grace)
        return until_us if self.most_us is None else min(until_us, self.most_us)


def changes_of_faults(post: Post, seats: Sequence[Seat], scene: Scene, relevant: Sequence[Harm]) -> Iterator[Change]:
    for harm in relevant:
        if not harm.unrecorded:
            cluster, own = start_grace(harm, post, seats, scene)
            silent = [harm] if own and harm.impact in ("links", *ALONE) else []
            event, began_us = f"{harm.fault} began", harm.injected_us
            fenced_us = scene.fenced_us.get(harm.fault)
            if cluster and fenced_us is not None:
                # the controller was seen to have fenced the brokers, and with that removed them from each ISR
                yield Change(began_us, cluster, event, most_us=fenced_us)
                cluster, began_us = (), min(fenced_us, began_us + total_us(cluster))
            yield from _with_silence(Change(began_us, own, event), cluster, silent, post)
            if own and harm.takes_addresses:
                # an attempt to connect that began while the address disappeared is neither answered nor refused
                yield Change(harm.injected_us, (post.waits.attempt or post.waits.request, *own), event)
            behind = _falling_behind(harm, post.follows, scene)
            if any(seat.held_by(behind) and not (seat.reigns and seat.led_by(behind, began_us)) for seat in seats):
                kept = (*lag(scene.settings), post.waits.lease, *post.waits.moved())
                yield Change(harm.injected_us, kept, event, most_us=harm.end_us)
                yield Change(harm.end_us, (*FOLLOWERS, *post.waits.moved()), f"{harm.fault} ended")
        yield Change(harm.end_us, _end_grace(harm, post, seats, scene), f"{harm.fault} ended")


def _with_silence(change: Change, cluster: Grace, silent: Sequence[Harm], post: Post) -> Iterator[Change]:
    """Yield a change of the client's leader, preceded by the request time-out that silent faults cost the client.

    A heal that answers the requests, or closes their connections, ends the wait for them.
    """
    silent = [harm for harm in silent if harm.silence != "none"]
    if silent:
        ends_us = None if any(harm.silence == "beyond heal" for harm in silent) else max(harm.end_us for harm in silent)
        waited = Change(change.at_us, (*cluster, post.waits.request), change.event, most_us=ends_us)
        yield waited
        yield Change(max(change.at_us, waited.settled_us), change.grace, change.event)
    else:
        yield Change(change.at_us, (*cluster, *change.grace), change.event)


def changes_of_leaders(post: Post, seats: Sequence[Seat], scene: Scene) -> Iterator[Change]:
    """Yield the change of the client's leader or coordinator at each recorded election."""
    seen = set()
    for seat in seats:
        for before, reign in pairwise(seat.reigns):
            key = (seat.topic in COORDINATION, before, reign)
            if key in seen or reign.leader is None or before.leader == reign.leader:
                continue
            seen.add(key)
            grace = _reached(post, scene, frozenset({reign.leader}), reign.by_us)
            silent = [
                harm
                for harm in scene.harms
                if harm.silence != "none"
                and harm.start_us <= reign.by_us < last_us(harm)
                and before.leader in harm.brokers | harm.served_links(post.racks)
            ]
            own = (*grace, *(post.waits.coordinator if seat.topic in COORDINATION else ()))
            event = f"node {reign.leader} became leader of {seat.topic}"
            yield from _with_silence(Change(reign.by_us, own, event), (), silent, post)


def _reached(post: Post, scene: Scene, brokers: frozenset[int], at_us: int) -> Grace:
    """Return how long the client takes to reach brokers that may have been away until shortly before a time."""
    graces = [post.waits.moved()]
    for harm in scene.harms:
        lost = harm.brokers if harm.impact in (*ALONE, "unknown") else frozenset()
        if harm.impact in ("links", "unknown"):
            lost |= harm.served_links(post.racks)
        if lost & brokers and harm.end_us <= at_us:
            grace = post.waits.moved(harm.end_us - harm.start_us, silent=_is_silent(harm))
            # the last back-off began before the end of the outage, and is over that much later
            if at_us - harm.end_us <= total_us(grace):
                graces.append(grace)
    return max(graces, key=total_us)


def start_grace(harm: Harm, post: Post, seats: Sequence[Seat], scene: Scene) -> tuple[Grace, Grace]:
    """Return the time for which Kafka, and then the client, may stand still after the injection of a fault."""
    waits, settings, at_us = post.waits, scene.settings, harm.injected_us
    if harm.impact == "members":
        return (), (*noticed(harm, waits), *waits.moved(), *waits.group)
    if harm.impact == "connections":
        return (), waits.moved()
    if harm.impact == "leaders":
        moving = [seat for seat in seats if seat.topic in harm.topics and not seat.reigns]
        return (), waits.moved() if moving else ()
    if harm.impact in ALONE:
        governing = harm.controller and bool(harm.brokers & scene.terrain.voters)
        hit = any(seat.held_by(harm.brokers) for seat in seats)
        cluster = (*(quorum(settings) if governing else ()), *session(settings)) if hit or governing else ()
        return cluster, _own_grace(post, seats, harm.brokers, at_us)
    if harm.impact != "links":
        return (), ()
    cluster = ()
    if harm.between_nodes:
        cluster = (*quorum(settings), *session(settings), *(lag(settings) if _unfenced(harm, scene) else ()))
    return cluster, _own_grace(post, seats, harm.served_links(post.racks), at_us)


def _is_silent(harm: Harm) -> bool:
    """Return True if no attempt to connect to the fault's targets is refused while it lasts."""
    return harm.silence != "none" and harm.impact != "unknown"


def noticed(harm: Harm, waits: ClientWaits) -> Grace:
    """Return the time after which a group notices that a member is away."""
    return {"leave": (), "join": (), "evict": waits.poll}.get(harm.kind, waits.session)


def _own_grace(post: Post, seats: Sequence[Seat], lost: frozenset[int], at_us: int) -> Grace:
    """Return what the client needs to leave brokers that served it; nothing if none of its leaders is among them."""
    hit = [seat for seat in seats if seat.led_by(lost, at_us)]
    if not hit:
        return ()
    coordinator = post.waits.coordinator if any(seat.topic in COORDINATION for seat in hit) else ()
    return (*post.waits.moved(), *coordinator)


def _falling_behind(harm: Harm, followers: frozenset[int], scene: Scene) -> frozenset[int]:
    """Return those brokers that can't fetch from another one over the links of a fault."""
    state, brokers = State(scene.terrain, frozenset(), harm.links), scene.terrain.brokers
    return frozenset(
        follower
        for follower in followers
        if harm.impact == "links"
        and any(not state.carries("replication", follower, peer) for peer in brokers - {follower})
    )


def _unfenced(harm: Harm, scene: Scene) -> bool:
    """Return True if a broker that the controller still hears can't fetch from another one.

    Of a broker that it does not hear the controller itself removes each replica from the ISR.
    """
    state = State(scene.terrain, frozenset(), harm.links)
    ruled = governed(state, frozenset(scene.terrain.racks))
    brokers = (ruled or frozenset()) & scene.terrain.brokers
    return any(not state.carries("replication", peer, leader) for leader in brokers for peer in brokers - {leader})


def _end_grace(harm: Harm, post: Post, seats: Sequence[Seat], scene: Scene) -> Grace:
    """Return the time for which progress may stop after the heal of a fault."""
    waits, settings = post.waits, scene.settings
    moved = waits.moved(harm.end_us - harm.start_us, silent=_is_silent(harm))
    request = (waits.request,) if harm.silence == "beyond heal" else ()
    grace: Grace = ()
    if harm.kind == "churn":
        # a member that was killed while the group rebalanced gets partitions, and keeps them until its session ends
        grace = (*waits.session, *waits.moved(), *waits.group)
    elif harm.impact == "members":
        # the heal ends when the member is back, and with that the rebalance, unless nobody else was there to serve
        served = post.serves([peer for peer in scene.harms if peer.stage(harm.end_us - 1) not in ("before", "over")])
        grace = () if served and harm.kind != "join" else (*waits.moved(), *waits.group)
    elif harm.impact == "connections":
        grace = waits.moved()
    elif harm.impact == "quota":
        grace = (Term("the window of the quota", QUOTA_WINDOW_MS), *waits.moved())
    elif harm.impact == "requests" and harm.tampering:
        # healing the rule closes its silent connections
        grace = waits.moved() if harm.tampering.attempts is None and harm.tampering.do != "late" else ()
    elif harm.impact == "leaders":
        moving = [seat for seat in seats if seat.topic in harm.topics and not seat.reigns]
        coordinating = any(seat.topic in COORDINATION for seat in moving)
        grace = (*waits.moved(), *(waits.coordinator if coordinating else ())) if moving else ()
    elif harm.impact == "unknown":
        members = waits.session if harm.clients or harm.everywhere else ()
        in_cluster = harm.brokers or harm.everywhere or harm.between_nodes or harm.topics
        cluster = (*quorum(settings), *session(settings), *lag(settings)) if in_cluster else ()
        grace = (*cluster, *request, *moved, *waits.coordinator, *waits.group, *members)
        if total_us(grace) > 1000 * UNKNOWN_MS:
            grace = (Term("the longest grace after a fault of unknown effect", UNKNOWN_MS),)
    elif harm.impact in ("links", *ALONE):
        grace = _grace_of_return(harm, post, seats, scene, (*request, *moved))
    return grace


def _grace_of_return(harm: Harm, post: Post, seats: Sequence[Seat], scene: Scene, reached: Grace) -> Grace:
    """Return the time for which progress may stop after nodes or links are back.

    After a recorded election, the grace is that of the new leader. ``reached`` is what the client needs to reach them.
    """
    lost = harm.brokers if harm.impact in ALONE else harm.served_links(post.racks)
    back = [seat for seat in seats if seat.led_by(lost, harm.end_us)]
    if harm.silence == "beyond heal":
        back += [seat for seat in seats if any(seat.led_by(lost, at_us) for at_us in moments_of(harm, seat))]
    coordinator = post.waits.coordinator if any(seat.topic in COORDINATION for seat in back) else ()
    own = (*reached, *coordinator) if back else ()
    cluster: Grace = ()
    if harm.between_nodes:
        cluster = FOLLOWERS[:1]
        if not all(seat.reigns for seat in seats):
            # a partition may have been left without a leader, which is then elected
            cluster = (*quorum(scene.settings), heartbeat(scene.settings), *cluster)
            own = own or post.waits.moved()
    if harm.impact in ALONE and harm.brokers & scene.terrain.voters - scene.terrain.brokers:
        boot = Term("the start of a controller, because healing the fault doesn't wait for the controller", BOOT_MS)
        cluster = (boot, *quorum(scene.settings), *session(scene.settings))
        own = own or post.waits.moved()
    return (*cluster, *own)
