"""What obligations are computed over: nodes, racks and voters, the settings in force, and who holds which partition.

Rules: all of it is evidence (``run.json``, ``timeline.json``). A run that does not tell its voters is owed nothing:
where nobody knows who must be reachable, no stall is anybody's fault.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aftershock.results.evidence import Client, Evidence

COORDINATION = "__consumer_offsets"
_TRANSACTIONS_IN_SYNC = 2  # the internal topics of transactions and share groups want two of three (harness/spec.py)


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
