"""Whether progress is possible: who is left, and whether the client, the replicas and the quorum reach each other.

::

    client(a) ──client_a-k2──▶ k2 ◀──replication_c-k2── k3        who dials whom, through which proxy
                               k2 ───controller_b-k3──▶ k3        (nodes of one rack dial each other directly)

Rules. A link that lost one direction carries no request. Nobody knows from the evidence who leads, so progress is
possible only if it is under every leader that Kafka may choose: any replica that is left. A replica is left unless its
node is away, or has lost every way to the majority of the voters and they theirs to it: it is fenced then, and another
leads. Half a cut (somebody hears, but isn't heard) leaves open who is in office: nothing is owed then.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from aftershock.results.obligations.terrain import Seat, Terrain


@dataclass(frozen=True)
class State:
    """What is gone at a moment: nodes, and links by the names of their proxies."""

    terrain: Terrain
    away: frozenset[int]
    lost: frozenset[str]

    def carries(self, channel: str, source: int, target: int) -> bool:
        """Whether a node's requests reach another one."""
        home = self.terrain.racks[source]
        return home == self.terrain.racks[target] or f"{channel}_{home}-k{target}" not in self.lost

    def served(self, rack: str, broker: int) -> bool:
        """Whether clients of a rack reach a broker."""
        return f"client_{rack}-k{broker}" not in self.lost


def refusal(seat: Seat, rack: str, state: State) -> str | None:
    """Why the partition may make no progress for a client of ``rack``, or None where it can, whoever leads it."""
    up = frozenset(state.terrain.racks) - state.away
    governed = _governed(state, up)
    if governed is None:
        return "no majority of the voters is sure to agree on a controller"
    brokers = governed & state.terrain.brokers
    if stale := sorted(each for each in (up & state.terrain.brokers) - governed if state.served(rack, each)):
        return f"node {stale[0]} has lost the controller, and clients still reach it"
    return _left(seat, brokers, state) or _served(seat, brokers, rack, state)


def _governed(state: State, up: frozenset[int]) -> frozenset[int] | None:
    """The nodes that a majority of voters is in full contact with, all others being cut off from them; else None."""
    for island in _islands(state, up):
        if 2 * len(island & state.terrain.voters) > len(state.terrain.voters):
            whole = all(_heard(state, node, other) for node in island for other in island)
            return island if whole else None
    return None


def _islands(state: State, up: frozenset[int]) -> list[frozenset[int]]:
    """Nodes that are in touch over the controllers' listeners, if only one way, directly or through others."""
    left, islands = set(up), []
    while left:
        island, edge = set[int](), {left.pop()}
        while edge:
            island |= edge
            edge = {other for other in left for node in edge if _in_touch(state, node, other)}
            left -= edge
        islands.append(frozenset(island))
    return islands


def _in_touch(state: State, one: int, other: int) -> bool:
    ways = ((one, other), (other, one))
    return any(to in state.terrain.voters and state.carries("controller", of, to) for of, to in ways)


def _heard(state: State, node: int, other: int) -> bool:
    """Only voters are dialled on the controllers' listeners."""
    return node == other or other not in state.terrain.voters or state.carries("controller", node, other)


def _left(seat: Seat, brokers: frozenset[int], state: State) -> str | None:
    """Too few replicas for ``min.insync.replicas``, under some leader."""
    if seat.replicas is None:
        count = seat.replication - len(state.terrain.brokers - brokers)
        among: Iterable[int] = brokers
    else:
        count = len(seat.replicas & brokers)
        among = seat.replicas & brokers
    needed = max(1, seat.in_sync_min)
    if count < needed:
        return f"{seat.topic} may have {max(0, count)} of the {needed} in-sync replicas it needs"
    for leader in sorted(among):
        deaf = sum(not state.carries("replication", other, leader) for other in among if other != leader)
        if count - deaf < needed:
            return (
                f"{seat.topic} led by node {leader} may have {count - deaf} of the {needed} in-sync replicas it needs"
            )
    return None


def _served(seat: Seat, brokers: frozenset[int], rack: str, state: State) -> str | None:
    leaders = brokers if seat.replicas is None else seat.replicas & brokers
    cut = sorted(broker for broker in leaders if not state.served(rack, broker))
    return f"clients of rack {rack} don't reach node {cut[0]}, which may lead {seat.topic}" if cut else None
