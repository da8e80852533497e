"""A client's post among the faults of a run, and which of the faults can affect it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from aftershock.results.checks.obligations.leaders import Reign
from aftershock.results.checks.obligations.reach import ALONE, Harm, Seat, State, Tampering, Terrain, governed
from aftershock.results.checks.obligations.waits import (
    FETCH_BACKOFF_MS,
    ROUND_MS,
    ClientWaits,
    Term,
    heartbeat,
    quorum,
    total_us,
)

FOLLOWERS = (
    Term("the back-off of the followers' fetches", FETCH_BACKOFF_MS),
    Term("the followers' return to the ISR", ROUND_MS),
)


@dataclass(frozen=True)
class Post:
    """Process names and racks of a client, and how long the client may wait (time-outs, back-offs).

    ``reserve`` are those of the ``workers`` that run only after a fault let them join. A client of one worker that is
    stopped can make no progress; in a group of several the other members take over. ``apis`` are the Kafka APIs without
    which the client's operation can't go on. ``follows`` are the brokers from which a reader may fetch although they do
    not lead (KIP-392), those of its rack.
    """

    workers: tuple[str, ...]
    racks: tuple[str, ...]
    waits: ClientWaits
    reserve: frozenset[str] = frozenset()
    apis: frozenset[str] = frozenset()
    follows: frozenset[int] = frozenset()

    def serves(self, live: Iterable[Harm]) -> bool:
        """Return True if at least one worker runs while the faults ``live`` are in force."""
        away = (harm for harm in live if harm.impact == "members" and harm.kind != "join")
        stopped = frozenset[str]().union(*(harm.clients for harm in away))
        return bool({*self.workers} - self.reserve - stopped)


@dataclass(frozen=True)
class Scene:
    """Nodes of the cluster, broker settings, and the effects of faults.

    ``fenced_us`` are the times at which the controller was seen to have given up the brokers that a fault stopped, by
    fault: leaders that they were had a successor.
    """

    terrain: Terrain
    settings: Mapping[str, str]
    harms: tuple[Harm, ...]
    fenced_us: Mapping[str, int]

    @classmethod
    def of(
        cls,
        terrain: Terrain,
        settings: Mapping[str, str],
        harms: Iterable[Harm],
        histories: Iterable[tuple[Reign, ...]] = (),
    ) -> "Scene":
        """Mark the effects of faults that began while the ISR may not have been full as unknown."""
        settle_us = total_us((*quorum(settings), heartbeat(settings), *FOLLOWERS))
        marked: list[Harm] = []
        for harm in harms:
            narrow = any(
                harm.start_us < peer.end_us + settle_us
                and (
                    (peer.between_nodes and peer.impact in ("links", "unknown"))
                    or (peer.impact == "unknown" and (peer.everywhere or bool(peer.brokers)))
                )
                and not peer.between_clients
                for peer in marked
            )
            marked.append(replace(harm, impact="unknown") if narrow and harm.impact in ("links", *ALONE) else harm)
        changes = [pair for history in {*histories} for pair in pairwise(history)]
        fenced_us = {}
        for harm in marked:
            if harm.unrecorded or harm.impact not in ("nodes", "links"):
                continue
            lost = harm.brokers
            if harm.impact == "links":
                ruled = governed(State(terrain, frozenset(), harm.links), frozenset(terrain.racks))
                lost = frozenset(terrain.racks) - (ruled or frozenset(terrain.racks))
            taken_over = [
                after.by_us
                for before, after in changes
                if before.leader in lost and after.leader not in lost and harm.start_us <= after.by_us < harm.end_us
            ]
            if taken_over:
                fenced_us[harm.fault] = min(taken_over)
        return cls(terrain, settings, tuple(marked), fenced_us)


def touches(harm: Harm, post: Post, seats: Sequence[Seat], scene: Scene) -> bool:
    """Return True if the fault can affect the client's progress on the given partitions (``seats``)."""
    if harm.tampering:
        return _tampers(harm, harm.tampering, post, seats)
    if harm.everywhere or harm.clients.intersection(post.workers):
        return True
    if harm.impact == "connections" and harm.clients:
        return False
    if harm.between_nodes and (harm.impact != "moments" or any(seat.held_by(_ends(harm)) for seat in seats)):
        return True
    served = harm.served_links(post.racks)
    if any(seat.led_by(served, at_us) for seat in seats for at_us in moments_of(harm, seat)):
        return True
    if any(seat.topic in harm.topics for seat in seats):
        return True
    return any(seat.held_by(harm.brokers) for seat in seats) or bool(harm.brokers & scene.terrain.voters)


def moments_of(harm: Harm, seat: Seat) -> Iterator[int]:
    """Yield the moments of a fault at which the leader may be another: its start, its end, and elections between."""
    yield from (harm.start_us, harm.end_us - 1)
    for reign in seat.reigns:
        yield from (at_us for at_us in (reign.after_us, reign.by_us) if harm.start_us <= at_us < harm.end_us)


def _ends(harm: Harm) -> frozenset[int]:
    """Return the nodes that are dialled over the fault's links between nodes."""
    return frozenset(int(link.rpartition("-k")[2]) for link in harm.links if not link.startswith("client_"))


def _tampers(harm: Harm, tampering: Tampering, post: Post, seats: Sequence[Seat]) -> bool:
    if tampering.api is not None and tampering.api not in post.apis:
        return False
    if harm.clients and harm.clients.isdisjoint(post.workers):
        return False
    if not harm.topics or tampering.silent:
        return True  # a connection that stays silent carries all partitions of its broker
    named = (seat for seat in seats if seat.topic in harm.topics)
    return any(tampering.partition in (None, seat.number) for seat in named)


def last_us(harm: Harm) -> int:
    """Return the time until which a fault may still show: late answers come after it."""
    late_ms = harm.delay_ms + (harm.tampering.delay_ms if harm.tampering else 0)
    return harm.end_us + 1000 * late_ms
