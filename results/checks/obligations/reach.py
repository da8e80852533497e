"""Possibility of progress: cluster, effects of faults, and who can reach whom at a given moment.

**Cluster.** Nodes, racks and voters, the settings in force and the replicas of each partition, all from evidence
(``run.json``, ``timeline.json``). A run that doesn't record its voters has no obligations: without knowing which nodes
must be reachable, no stall can be judged.

**Effects of faults** (``Harm``), from the timeline and the journal, the only thing that obligations know of faults::

    intended ──▶ injected ─────────────▶ healing ──▶ healed
       | moving     | in force              | moving    | over

Rules; in doubt, each decides in the client's favour. The effect of a fault that failed, or of a kind that doesn't
declare its effect, is unknown, so no progress is required of partitions and clients that it may touch. A fault that was
not undone lasts until the end. A fault that begins while the ISR may not be full (links between nodes were affected and
have not settled) is unknown too: it may hit the only replica that is still in sync.

**Reachability**: which nodes are left, and whether the client, the replicas and the quorum reach each other::

    client(a) ──client_a-k2──▶ k2 ◀──replication_c-k2── k3        who connects to whom, through which proxy
                               k2 ───controller_b-k3──▶ k3        (nodes of one rack connect directly)

Rules. A link that lost one direction carries no request. The evidence doesn't record which broker leads a partition, so
progress is possible only if it is possible under each leader that Kafka may choose: any replica that is left. A replica
is left unless its node is away, or is cut off in both directions from the majority of the voters: then it is fenced,
and another replica leads. After half a cut (one side hears the other, but not vice versa) it is unknown which
controller is active, so no progress is required.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from aftershock.results.evidence.evidence import Client, Evidence

COORDINATION = "__consumer_offsets"
# the internal topics of transactions and share groups need two of three replicas (harness/cluster/topology.py)
_TRANSACTIONS_IN_SYNC = 2


@dataclass(frozen=True)
class Terrain:
    """Rack of each node; which nodes are brokers, and which vote in the metadata quorum."""

    racks: Mapping[int, str]
    brokers: frozenset[int]
    voters: frozenset[int]


@dataclass(frozen=True)
class Seat:
    """Replicas of a partition: partitions with the same replicas are available at the same times.

    ``replicas`` is None if the run did not record them; then any ``replication`` brokers may hold them.
    """

    topic: str
    replicas: frozenset[int] | None
    replication: int
    in_sync_min: int


def terrain_of(evidence: Evidence) -> Terrain | None:
    """Return the cluster, or None if the run doesn't record its nodes and voters."""
    nodes, voters = evidence.run.get("brokers"), evidence.run.get("voters")
    if not nodes or not voters:
        return None
    racks = {int(node["id"]): str(node["rack"]) for node in nodes}
    isolated = bool((evidence.timeline.get("cluster") or {}).get("controllers"))
    voting = frozenset(int(voter) for voter in voters)
    return Terrain(racks, frozenset(racks) - (voting if isolated else frozenset()), voting)


def settings_of(evidence: Evidence) -> dict[str, str]:
    """Return broker settings by name: the profile's, overridden by the plan's."""
    profile, cluster = evidence.run.get("profile") or {}, evidence.timeline.get("cluster") or {}
    return {str(key): str(value) for key, value in {**profile, **(cluster.get("config") or {})}.items()}


def seats_of(evidence: Evidence, terrain: Terrain, topic: str) -> dict[Seat, tuple[int, ...]]:
    """Return the seats of a topic with their partitions; empty if the plan has no such topic."""
    planned = next((entry for entry in evidence.timeline.get("topics", ()) if entry["name"] == topic), None)
    if planned is None:
        return {}
    recorded: Mapping[str, Any] = next(
        (entry for entry in evidence.run.get("topics", ()) if entry["name"] == topic), {}
    )
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
    """Return the seat of groups, transactions and share groups: any three brokers, two of them in sync."""
    count = len(terrain.brokers)
    return Seat(COORDINATION, None, min(3, count), min(_TRANSACTIONS_IN_SYNC, count))


def topic_of(client: Client, side: str) -> str | None:
    """Return the topic of a client's side."""
    return {"produce": client.produces_to, "consume": client.consumes_from, "commit": client.commits_to}[side]


Stage = Literal["before", "moving", "in force", "over"]
ALONE = ("nodes", "one node")
"""Effects that end with the action if the fault has no ``for``: a restart. Other effects without ``for`` stay."""


@dataclass(frozen=True)
class Harm:
    """Effect of one fault. ``unrecorded``: number of changes whose moments are not in the journal.

    ``announced``: clients notice the fault at once, because their connections are closed. ``controller``: the active
    controller may have been among its brokers.
    """

    fault: str
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
        """Return the stage at a moment; a boundary belongs to the later stage."""
        if not self.start_us <= at_us < self.end_us:
            return "over" if at_us >= self.end_us else "before"
        return "in force" if self.injected_us <= at_us < self.healing_us else "moving"

    @property
    def between_nodes(self) -> bool:
        """True if the fault may have separated replicas or controllers."""
        return any(not link.startswith("client_") for link in self.links)

    @property
    def everywhere(self) -> bool:
        """True if the targets are unknown."""
        return not (self.brokers or self.links or self.topics or self.clients)


def harms_of(evidence: Evidence, until_us: int) -> list[Harm]:
    """Return the effect of each fault that began, in order; none in a rehearsal."""
    if evidence.run.get("rehearse"):
        return []
    harms = (_harm(evidence, step, until_us) for step in evidence.steps)
    return sorted((harm for harm in harms if harm), key=lambda harm: (harm.start_us, harm.fault))


def mark_unknown(harms: Iterable[Harm], settled_us: Callable[[Harm], int]) -> list[Harm]:
    """Mark faults as unknown that began while the ISR may not have been full.

    ``settled_us``: when the ISR is full again.
    """
    known: list[Harm] = []
    for harm in harms:
        narrowed = any(_narrows(other) and harm.start_us < settled_us(other) for other in known)
        known.append(replace(harm, impact="unknown") if narrowed and harm.impact in ("links", *ALONE) else harm)
    return known


def _narrows(harm: Harm) -> bool:
    return harm.between_nodes or harm.everywhere or (harm.impact == "unknown" and bool(harm.brokers))


def _harm(evidence: Evidence, step: Mapping[str, Any], until_us: int) -> Harm | None:
    lines = [line for line in evidence.journal if line["fault"] == step["id"]]
    at_us = {line["state"]: line["t_us"] for line in reversed(lines)}
    if "intended" not in at_us:
        return None
    known, undone = "injected" in at_us and "failed" not in at_us, _undone(lines[-1], step)
    impact = str(step.get("takes", "unknown")) if known else "unknown"
    alone = step.get("for_ms") is None
    stays = not undone or (alone and impact not in (*ALONE, "leaders"))
    start_us, end_us = at_us["intended"], until_us if stays else lines[-1]["t_us"]
    whole = stays or alone
    return Harm(
        fault=step["id"],
        impact="unknown" if stays else impact,
        announced=bool(step.get("told", False)),
        start_us=start_us,
        injected_us=start_us if whole else at_us.get("injected", start_us),
        healing_us=end_us if whole else at_us.get("healing", end_us),
        end_us=end_us,
        unrecorded=_unrecorded(impact, lines, alone=alone),
        **_targets(lines),
    )


def _unrecorded(impact: str, lines: Iterable[Mapping[str, Any]], *, alone: bool) -> int:
    """Return how many changes happened unrecorded within one stage: nodes that stop and return, leaders that move."""
    if impact == "one node":
        return 2 * len(_targets(lines)["brokers"])
    return {"nodes": 2, "leaders": 1}.get(impact, 0) if alone else 0


def _undone(last: Mapping[str, Any], step: Mapping[str, Any]) -> bool:
    """Return whether the heal is proven: a reason in the last line means that an emergency heal was not verified."""
    return last["state"] == "healed" and (step.get("for_ms") is None or not last.get("why"))


def _targets(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    targets: Mapping[str, Any] = next((line["targets"] for line in reversed(list(lines)) if line.get("targets")), {})
    sets: dict[str, Any] = {
        name: frozenset(targets.get(name, ())) for name in ("brokers", "links", "topics", "clients")
    }
    return sets | {"controller": (targets.get("roles") or {}).get("controller") is not False}


@dataclass(frozen=True)
class State:
    """Nodes and links (by proxy name) that are unavailable at a moment."""

    terrain: Terrain
    away: frozenset[int]
    lost: frozenset[str]

    def carries(self, channel: str, source: int, target: int) -> bool:
        """Return whether requests of one node reach another."""
        home = self.terrain.racks[source]
        return home == self.terrain.racks[target] or f"{channel}_{home}-k{target}" not in self.lost

    def served(self, rack: str, broker: int) -> bool:
        """Return whether clients of a rack reach a broker."""
        return f"client_{rack}-k{broker}" not in self.lost


def refusal(seat: Seat, rack: str, state: State) -> str | None:
    """Return why a client of ``rack`` may make no progress on the partition; None if it can under any leader."""
    up = frozenset(state.terrain.racks) - state.away
    governed = _governed(state, up)
    if governed is None:
        return "no majority of the voters is certain to agree on a controller"
    brokers = governed & state.terrain.brokers
    if stale := sorted(node for node in (up & state.terrain.brokers) - governed if state.served(rack, node)):
        return f"node {stale[0]} has lost the controller, and clients still reach it"
    return _too_few_in_sync(seat, brokers, state) or _unreachable_leader(seat, brokers, rack, state)


def _governed(state: State, up: frozenset[int]) -> frozenset[int] | None:
    """Return the nodes connected with a majority of voters, if all other nodes are cut off from them; else None."""
    for island in _islands(state, up):
        if 2 * len(island & state.terrain.voters) > len(state.terrain.voters):
            whole = all(_heard(state, node, other) for node in island for other in island)
            return island if whole else None
    return None


def _islands(state: State, up: frozenset[int]) -> list[frozenset[int]]:
    """Group nodes that are connected over the controller listeners, one way suffices, directly or through others."""
    left, islands = set(up), []
    while left:
        island, edge = set[int](), {left.pop()}
        while edge:
            island |= edge
            edge = {other for other in left for node in edge if _in_touch(state, node, other)}
            left -= edge
        islands.append(frozenset(island))
    return islands


def _in_touch(state: State, node: int, other: int) -> bool:
    directions = ((node, other), (other, node))
    return any(to in state.terrain.voters and state.carries("controller", source, to) for source, to in directions)


def _heard(state: State, node: int, other: int) -> bool:
    """Return whether ``node`` reaches ``other``; only voters accept connections on the controller listeners."""
    return node == other or other not in state.terrain.voters or state.carries("controller", node, other)


def _too_few_in_sync(seat: Seat, brokers: frozenset[int], state: State) -> str | None:
    """Return a reason if some leader has too few replicas for ``min.insync.replicas``."""
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


def _unreachable_leader(seat: Seat, brokers: frozenset[int], rack: str, state: State) -> str | None:
    leaders = brokers if seat.replicas is None else seat.replicas & brokers
    cut = sorted(broker for broker in leaders if not state.served(rack, broker))
    return f"clients of rack {rack} don't reach node {cut[0]}, which may lead {seat.topic}" if cut else None
