"""What obligations are computed over: nodes, racks and voters, the settings in force, and who holds which partition.

Rules: all of it is evidence (``run.json``, ``timeline.json``). A run that does not tell its voters is owed nothing:
where nobody knows who must be reachable, no stall is anybody's fault.

What each fault took away and when, by the timeline and the journal: the only thing obligations know of faults.

::

    intended ──▶ injected ─────────────▶ healing ──▶ healed
       | moving     | in force              | moving    | over

Rules, each for the client's benefit. Of a fault that failed, or of a kind that does not say what it takes, nothing is
known: nothing is owed of what it touches. What was not undone lasts until the end. A fault that strikes while the ISR
is not sure to be full (links between nodes were hit, and have not settled) is unknown too: the one replica left in
sync may be the one it takes.

Whether progress is possible: who is left, and whether the client, the replicas and the quorum reach each other.

::

    client(a) ──client_a-k2──▶ k2 ◀──replication_c-k2── k3        who dials whom, through which proxy
                               k2 ───controller_b-k3──▶ k3        (nodes of one rack dial each other directly)

Rules. A link that lost one direction carries no request. Nobody knows from the evidence who leads, so progress is
possible only if it is under every leader that Kafka may choose: any replica that is left. A replica is left unless its
node is away, or has lost every way to the majority of the voters and they theirs to it: it is fenced then, and another
leads. Half a cut (somebody hears, but isn't heard) leaves open who is in office: nothing is owed then.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from aftershock.results.evidence.evidence import Client, Evidence

COORDINATION = "__consumer_offsets"
_TRANSACTIONS_IN_SYNC = (
    2  # the internal topics of transactions and share groups want two of three (harness/cluster/topology.py)
)


@dataclass(frozen=True)
class Terrain:
    """Every node's rack; which nodes are brokers, and which vote in the metadata quorum."""

    racks: Mapping[int, str]
    brokers: frozenset[int]
    voters: frozenset[int]


@dataclass(frozen=True)
class Seat:
    """A partition as far as its fate goes: those with equal seats stand and fall together.

    ``replicas`` None: nobody recorded them, so any ``replication`` brokers may be meant.
    """

    topic: str
    replicas: frozenset[int] | None
    replication: int
    in_sync_min: int


def terrain_of(evidence: Evidence) -> Terrain | None:
    """None where the run does not tell its nodes and voters."""
    nodes, voters = evidence.run.get("brokers"), evidence.run.get("voters")
    if not nodes or not voters:
        return None
    racks = {int(node["id"]): str(node["rack"]) for node in nodes}
    isolated = bool((evidence.timeline.get("cluster") or {}).get("controllers"))
    voting = frozenset(int(voter) for voter in voters)
    return Terrain(racks, frozenset(racks) - (voting if isolated else frozenset()), voting)


def settings_of(evidence: Evidence) -> dict[str, str]:
    """Broker settings by name: the profile's, and over them the plan's own."""
    cluster = evidence.timeline.get("cluster") or {}
    return {str(key): str(value) for key, value in {**_profile(evidence), **(cluster.get("config") or {})}.items()}


def _profile(evidence: Evidence) -> Mapping[str, Any]:
    return evidence.run.get("profile") or {}


def seats_of(evidence: Evidence, terrain: Terrain, topic: str) -> dict[Seat, tuple[int, ...]]:
    """The seats of a topic with their partitions; none where the plan has no such topic."""
    planned = next((one for one in evidence.timeline.get("topics", ()) if one["name"] == topic), None)
    if planned is None:
        return {}
    told: Mapping[str, Any] = next((one for one in evidence.run.get("topics", ()) if one["name"] == topic), {})
    assigned = {int(number): replicas for number, replicas in (told.get("assignment") or {}).items()}
    at_least = _in_sync_min(planned.get("config") or {}, settings_of(evidence))
    seats: dict[Seat, tuple[int, ...]] = {}
    for number in range(planned["partitions"]):
        replicas = frozenset(map(int, assigned[number])) if number in assigned else None
        count = min(planned["replication"], len(terrain.brokers))
        seat = Seat(topic, replicas, count if replicas is None else len(replicas), at_least)
        seats[seat] = (*seats.get(seat, ()), number)
    return seats


def coordination(terrain: Terrain) -> Seat:
    """Where groups, transactions and share groups are kept: three brokers of any, two of them in sync."""
    count = len(terrain.brokers)
    return Seat(COORDINATION, None, min(3, count), min(_TRANSACTIONS_IN_SYNC, count))


def topic_of(client: Client, side: str) -> str | None:
    """What a client's side works on."""
    return {"produce": client.produces_to, "consume": client.consumes_from, "commit": client.commits_to}[side]


def _in_sync_min(topic: Mapping[str, Any], settings: Mapping[str, str]) -> int:
    name = "min.insync.replicas"  # Kafka's default is 1
    return int(topic.get(name, settings.get(name, 1)))


Stage = Literal["before", "moving", "in force", "over"]
ALONE = ("nodes", "one node")
"""What a fault without ``for`` takes only until it is done: a restart. All else without ``for`` stays."""


@dataclass(frozen=True)
class Harm:
    """One fault's effect. ``unseen``: how many changes there were at moments that nobody wrote down.

    ``controller``: whether the active controller may have been among its brokers.
    """

    fault: str
    takes: str
    told: bool
    start_us: int
    injected_us: int
    healing_us: int
    end_us: int
    brokers: frozenset[int] = frozenset()
    links: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    controller: bool = True
    unseen: int = 0

    def stage(self, at_us: int) -> Stage:
        """Where it is at a moment; its ends belong to what follows them."""
        if not self.start_us <= at_us < self.end_us:
            return "over" if at_us >= self.end_us else "before"
        return "in force" if self.injected_us <= at_us < self.healing_us else "moving"

    @property
    def between_nodes(self) -> bool:
        """Whether it may have kept replicas or controllers from each other."""
        return any(not link.startswith("client_") for link in self.links)

    @property
    def everywhere(self) -> bool:
        """Whether nobody knows whom it hit."""
        return not (self.brokers or self.links or self.topics or self.clients)


def harms_of(evidence: Evidence, until_us: int) -> list[Harm]:
    """Every fault that began, in order; none in a rehearsal."""
    if evidence.run.get("rehearse"):
        return []
    found = (_harm(evidence, step, until_us) for step in evidence.steps)
    return sorted((harm for harm in found if harm), key=lambda harm: (harm.start_us, harm.fault))


def sure(harms: Iterable[Harm], settled_us: Callable[[Harm], int]) -> list[Harm]:
    """The same, with those unknown that struck where the ISR may have been narrow. ``settled_us``: until when it is."""
    known: list[Harm] = []
    for harm in harms:
        narrowed = any(_narrows(other) and harm.start_us < settled_us(other) for other in known)
        known.append(replace(harm, takes="unknown") if narrowed and harm.takes in ("links", *ALONE) else harm)
    return known


def _narrows(harm: Harm) -> bool:
    return harm.between_nodes or harm.everywhere or (harm.takes == "unknown" and bool(harm.brokers))


def _harm(evidence: Evidence, step: Mapping[str, Any], until_us: int) -> Harm | None:
    lines = [line for line in evidence.journal if line["fault"] == step["id"]]
    at_us = {line["state"]: line["t_us"] for line in reversed(lines)}
    if "intended" not in at_us:
        return None
    known, undone = "injected" in at_us and "failed" not in at_us, _undone(lines[-1], step)
    takes = str(step.get("takes", "unknown")) if known else "unknown"
    alone = step.get("for_ms") is None
    stays = not undone or (alone and takes not in (*ALONE, "leaders"))
    start_us, end_us = at_us["intended"], until_us if stays else lines[-1]["t_us"]
    whole = stays or alone
    return Harm(
        fault=step["id"],
        takes="unknown" if stays else takes,
        told=bool(step.get("told", False)),
        start_us=start_us,
        injected_us=start_us if whole else at_us.get("injected", start_us),
        healing_us=end_us if whole else at_us.get("healing", end_us),
        end_us=end_us,
        unseen=_unseen(takes, lines, alone=alone),
        **_targets(lines),
    )


def _unseen(takes: str, lines: Iterable[Mapping[str, Any]], *, alone: bool) -> int:
    """What changes within one stage of the journal: a node that goes and comes back, leaders that move."""
    if takes == "one node":
        return 2 * len(_targets(lines)["brokers"])
    return {"nodes": 2, "leaders": 1}.get(takes, 0) if alone else 0


def _undone(last: Mapping[str, Any], step: Mapping[str, Any]) -> bool:
    """A fault with ``for`` whose last line gives a reason was undone in a hurry, and nobody looked."""
    return last["state"] == "healed" and (step.get("for_ms") is None or not last.get("why"))


def _targets(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    told: Mapping[str, Any] = next((line["targets"] for line in reversed(list(lines)) if line.get("targets")), {})
    sets: dict[str, Any] = {name: frozenset(told.get(name, ())) for name in ("brokers", "links", "topics", "clients")}
    return sets | {"controller": (told.get("roles") or {}).get("controller") is not False}


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
