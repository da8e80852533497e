"""Decision whether clients could make progress at a given moment, given faults and reachable nodes.

**Cluster.** Nodes, racks, voters, settings, and the replicas of each partition are read from ``run.json`` and
``timeline.json``. A run that doesn't record its voters has no obligation checks.

**Effects of faults** (``Harm``) are read from the timeline and the journal::

    intended ──▶ injected ─────────────▶ healing ──▶ healed
       | moving     | in force              | moving    | over

Where the evidence is ambiguous, every rule assumes that no progress was possible. The effect of a fault is unknown if
the fault failed, if the fault kind doesn't declare an effect, or if the fault began while the ISR might not be full;
then no progress is required of the partitions and clients that the fault may affect. A fault that was not undone lasts
until the end of the run.

**Reachability** of nodes by clients, replicas and the quorum, through proxies (nodes of one rack connect directly)::

    client(a) ──client_a-k2──▶ k2 ◀──replication_c-k2── k3
                               k2 ───controller_b-k3──▶ k3

If one direction of a link is broken, no request succeeds over that link. The evidence doesn't record which broker leads
a partition, so progress counts as possible only if every available replica could lead it. A replica is unavailable if
its node is down, or is cut off in both directions from the majority of the voters, because the controller fences the
node and another replica leads. After a fault that cut one direction it is unknown which controller is active, so no
progress is required.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aftershock.results.evidence.evidence import Evidence

COORDINATION = "__consumer_offsets"
# the internal topics of transactions and share groups need two of three replicas (harness/cluster/topology.py)
_TRANSACTIONS_IN_SYNC = 2


@dataclass(frozen=True)
class Terrain:
    """Racks of the cluster's nodes, the brokers, and the voters of the metadata quorum."""

    racks: Mapping[int, str]
    brokers: frozenset[int]
    voters: frozenset[int]


@dataclass(frozen=True)
class Seat:
    """Partitions with the same replicas, so that either all of these partitions are available or none.

    If ``replicas`` is unrecorded (None), any ``replication`` brokers may hold the replicas.
    """

    topic: str
    replicas: frozenset[int] | None
    replication: int
    in_sync_min: int


def terrain_of(evidence: Evidence) -> Terrain | None:
    """Return the cluster's nodes and voters, or None if the run doesn't record them."""
    nodes, voters = evidence.run.get("brokers"), evidence.run.get("voters")
    if not nodes or not voters:
        return None
    racks = {int(node["id"]): str(node["rack"]) for node in nodes}
    isolated = bool((evidence.timeline.get("cluster") or {}).get("controllers"))
    voting = frozenset(int(voter) for voter in voters)
    return Terrain(racks, frozenset(racks) - (voting if isolated else frozenset()), voting)


def settings_of(evidence: Evidence) -> dict[str, str]:
    """Return broker settings by name; settings of the plan override those of the cluster profile."""
    profile, cluster = evidence.run.get("profile") or {}, evidence.timeline.get("cluster") or {}
    return {str(key): str(value) for key, value in {**profile, **(cluster.get("config") or {})}.items()}


def seats_of(evidence: Evidence, terrain: Terrain, topic: str) -> dict[Seat, tuple[int, ...]]:
    """Return a topic's partition numbers, grouped by replicas; empty if the plan has no such topic."""
    planned = next((entry for entry in evidence.timeline.get("topics", ()) if entry["name"] == topic), None)
    if planned is None:
        return {}
    topics = evidence.run.get("topics", ())
    recorded: Mapping[str, Any] = next((entry for entry in topics if entry["name"] == topic), {})
    assigned = {int(number): replicas for number, replicas in (recorded.get("assignment") or {}).items()}
    name = "min.insync.replicas"  # Kafka's default is 1
    in_sync_min = int((planned.get("config") or {}).get(name, settings_of(evidence).get(name, 1)))
    seats: dict[Seat, tuple[int, ...]] = {}
    for number in range(planned["partitions"]):
        replicas = frozenset(map(int, assigned[number])) if number in assigned else None
        count = min(planned["replication"], len(terrain.brokers))
        seat = Seat(topic, replicas, count if replicas is None else len(replicas), in_sync_min)
        seats[seat] = (*seats.get(seat, ()), number)
    return seats


def coordination(terrain: Terrain) -> Seat:
    """Return the replicas of Kafka's internal topics (groups, transactions), any three brokers with two in sync."""
    count = len(terrain.brokers)
    return Seat(COORDINATION, None, min(3, count), min(_TRANSACTIONS_IN_SYNC, count))


Stage = Literal["before", "moving", "in force", "over"]
ALONE = ("nodes", "one node")
"""Effects of a fault without ``for`` (such as a restart) that end with the fault's action; other effects stay."""


@dataclass(frozen=True)
class Harm:
    """Effect of a fault on the cluster; ``unrecorded`` counts changes of nodes or leaders at unknown times.

    ``announced`` is True if the fault closes its clients' connections, so that clients notice the fault at once.
    ``controller`` is True if the active controller may have been among the fault's brokers.
    """

    fault: str
    kind: str
    impact: str
    announced: bool
    start_us: int
    injected_us: int
    healing_us: int
    end_us: int
    brokers: frozenset[int] = frozenset()
    links: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    controller: bool = True
    unrecorded: int = 0

    def stage(self, at_us: int) -> Stage:
        """Return the fault's stage at a given time; a boundary between two stages belongs to the later stage."""
        if not self.start_us <= at_us < self.end_us:
            return "over" if at_us >= self.end_us else "before"
        return "in force" if self.injected_us <= at_us < self.healing_us else "moving"

    @property
    def between_nodes(self) -> bool:
        """True if the fault affects links between nodes, and so may have separated replicas or controllers."""
        return any(not link.startswith("client_") for link in self.links)

    @property
    def everywhere(self) -> bool:
        return not (self.brokers or self.links or self.topics or self.clients)


def harms_of(evidence: Evidence, until_us: int) -> list[Harm]:
    """Return the effect of each fault that began, by time; empty in a rehearsal, in which no fault is injected."""
    steps = () if evidence.run.get("rehearse") else evidence.steps
    harms = (_harm(evidence, step, until_us) for step in steps)
    return sorted((harm for harm in harms if harm), key=lambda harm: (harm.start_us, harm.fault))


def _harm(evidence: Evidence, step: Mapping[str, Any], until_us: int) -> Harm | None:
    lines = [line for line in evidence.journal if line["fault"] == step["id"]]
    at_us = {line["state"]: line["t_us"] for line in reversed(lines)}
    if "intended" not in at_us:
        return None
    targets: Mapping[str, Any] = next((line["targets"] for line in reversed(lines) if line.get("targets")), {})
    declared = "injected" in at_us and "failed" not in at_us
    impact = str(step.get("takes", "unknown")) if declared else "unknown"
    alone = step.get("for_ms") is None
    # the heal is proven, unless the last line gives a reason why an emergency heal was not verified
    undone = lines[-1]["state"] == "healed" and (alone or not lines[-1].get("why"))
    stays = not undone or (alone and impact not in (*ALONE, "leaders", "members"))
    start_us, end_us = at_us["intended"], until_us if stays else lines[-1]["t_us"]
    whole = stays or alone
    # changes within one stage: nodes that stop and return, leaders that move
    unrecorded = {"nodes": 2, "leaders": 1}.get(impact, 0) if alone else 0
    if impact == "one node":
        unrecorded = 2 * len({*targets.get("brokers", ())})
    return Harm(
        fault=step["id"],
        kind=str(step.get("kind")),
        impact="unknown" if stays else impact,
        announced=bool(step.get("told", False)),
        start_us=start_us,
        injected_us=start_us if whole else at_us.get("injected", start_us),
        healing_us=end_us if whole else at_us.get("healing", end_us),
        end_us=end_us,
        brokers=frozenset(targets.get("brokers", ())),
        links=frozenset(targets.get("links", ())),
        topics=frozenset(targets.get("topics", ())),
        clients=frozenset(targets.get("clients", ())),
        controller=(targets.get("roles") or {}).get("controller") is not False,
        unrecorded=unrecorded,
    )


@dataclass(frozen=True)
class State:
    """Nodes and links (by proxy name) that are unavailable at a given time."""

    terrain: Terrain
    away: frozenset[int]
    lost: frozenset[str]

    def carries(self, channel: str, source: int, target: int) -> bool:
        home = self.terrain.racks[source]
        return home == self.terrain.racks[target] or f"{channel}_{home}-k{target}" not in self.lost

    def served(self, rack: str, broker: int) -> bool:
        return f"client_{rack}-k{broker}" not in self.lost


def refusal(seat: Seat, rack: str, state: State) -> str | None:
    """Return why a client in ``rack`` may make no progress on a partition; None if progress is possible."""
    up = frozenset(state.terrain.racks) - state.away
    governed = _governed(state, up)
    if governed is None:
        return "no majority of the quorum's voters is certain to elect an active controller"
    brokers = governed & state.terrain.brokers
    if stale := sorted(node for node in (up & state.terrain.brokers) - governed if state.served(rack, node)):
        return f"broker {stale[0]} has lost its connection to the controller, and clients still reach this broker"

    # each possible leader needs enough replicas in sync
    if seat.replicas is None:
        leaders, count = brokers, seat.replication - len(state.terrain.brokers - brokers)
    else:
        leaders, count = seat.replicas & brokers, len(seat.replicas & brokers)
    needed = max(1, seat.in_sync_min)
    if count < needed:
        return f"the topic {seat.topic} may have {max(0, count)} of the {needed} in-sync replicas it needs"
    for leader in sorted(leaders):
        deaf = sum(not state.carries("replication", peer, leader) for peer in leaders if peer != leader)
        if count - deaf < needed:
            return (
                f"if node {leader} leads a partition of {seat.topic}, it may have {count - deaf} of the {needed} "
                "in-sync replicas it needs"
            )

    cut = sorted(broker for broker in leaders if not state.served(rack, broker))
    return (
        f"clients of rack {rack} can't reach node {cut[0]}, which may lead a partition of {seat.topic}" if cut else None
    )


def _governed(state: State, up: frozenset[int]) -> frozenset[int] | None:
    """Return the nodes that a majority of voters certainly controls; None if no majority is certain.

    Only voters accept connections on the controller listeners. An island is a set of nodes connected in at least one
    direction, directly or through other nodes.
    """
    voters, remaining = state.terrain.voters, set(up)

    def reaches(node: int, peer: int) -> bool:
        return peer in voters and state.carries("controller", node, peer)

    while remaining:
        island, edge = set[int](), {remaining.pop()}
        while edge:
            island |= edge
            edge = {peer for peer in remaining for node in edge if reaches(node, peer) or reaches(peer, node)}
            remaining -= edge
        if 2 * len(island & voters) > len(voters):
            pairs = ((node, peer) for node in island for peer in island & voters if node != peer)
            return frozenset(island) if all(reaches(node, peer) for node, peer in pairs) else None
    return None
