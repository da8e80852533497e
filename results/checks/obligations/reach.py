"""Decision whether clients could make progress at a given moment, given faults and reachable nodes.

**Cluster.** Nodes, racks, voters, settings, and the replicas of each partition are read from ``run.json`` and
``timeline.json``. A run that doesn't record its voters has no obligation checks.

**Effects of faults** (``Harm``) are read from the timeline and the journal::

    intended ──▶ injected ─────────────▶ healing ──▶ healed
       | moving     | in force              | moving    | over

Where the evidence is ambiguous, every rule assumes that no progress was possible. The effect of a fault is unknown if
the fault failed, if the fault kind doesn't declare an effect, or if the fault began while the ISR might not be full;
then no progress is required of the partitions and clients that the fault may affect while it lasts. A fault that was
not undone lasts until the end of the run.

**Reachability** of nodes by clients, replicas and the quorum, through proxies (nodes of one rack connect directly)::

    client(a) ──client_a-k2──▶ k2 ◀──replication_c-k2── k3
                               k2 ───controller_b-k3──▶ k3

If one direction of a link is broken, no request succeeds over that link. If the evidence says who led a partition
(``leaders.py``), that broker must be available; otherwise progress counts as possible only if every available replica
could lead it. A replica is unavailable if its node is down, or is cut off in both directions from the majority of the
voters, because the controller fences the node and another replica leads. After a fault that cut one direction it is
unknown which controller is active, so no progress is required.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aftershock.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, key_partition
from aftershock.results.checks.obligations.leaders import Leaders, Reign, possible_leaders
from aftershock.results.checks.obligations.waits import session, total_us
from aftershock.results.evidence import absences
from aftershock.results.evidence.absences import Absence, unplanned_absences
from aftershock.results.evidence.evidence import Evidence

COORDINATION = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
"""Topics whose leaders coordinate groups and transactions."""
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
    """Partitions with the same replicas and leaders, so that either all of these partitions are available or none.

    If ``replicas`` is unrecorded (None), any ``replication`` brokers may hold the replicas. ``reigns`` say who led
    when; without them any available replica may lead. A partition that a protocol fault names has a seat of its own,
    with its ``number``.
    """

    topic: str
    replicas: frozenset[int] | None
    replication: int
    in_sync_min: int
    reigns: tuple[Reign, ...] = ()
    number: int | None = None

    def led_by(self, brokers: frozenset[int], at_us: int) -> bool:
        """Return True if one of the brokers may lead the partitions at a time."""
        leaders = possible_leaders(self.reigns, at_us)
        if leaders is not None:
            return not brokers.isdisjoint(leaders)
        return bool(brokers) and (self.replicas is None or not self.replicas.isdisjoint(brokers))

    def held_by(self, brokers: frozenset[int]) -> bool:
        """Return True if one of the brokers may hold a replica."""
        return bool(brokers) and (self.replicas is None or not self.replicas.isdisjoint(brokers))


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


def seats_of(
    evidence: Evidence, terrain: Terrain, topic: str, leaders: Leaders, named: Collection[int] = ()
) -> dict[Seat, tuple[int, ...]]:
    """Return a topic's partition numbers by seat; empty if the plan has no such topic.

    ``named`` are the partitions that protocol faults name.
    """
    planned = next((entry for entry in evidence.timeline.get("topics", ()) if entry["name"] == topic), None)
    if planned is None:
        return {}
    topics = evidence.run.get("topics", ())
    recorded: Mapping[str, Any] = next((entry for entry in topics if entry["name"] == topic), {})
    assigned = {int(number): replicas for number, replicas in (recorded.get("assignment") or {}).items()}
    name = "min.insync.replicas"  # Kafka's default is 1
    in_sync_min = int((planned.get("config") or {}).get(name, settings_of(evidence).get(name, 1)))
    seats: defaultdict[Seat, list[int]] = defaultdict(list)
    for number in range(planned["partitions"]):
        replicas = frozenset(map(int, assigned[number])) if number in assigned else None
        count = min(planned["replication"], len(terrain.brokers))
        reigns = leaders.get((topic, number), ())
        own = number if number in named else None
        count = count if replicas is None else len(replicas)
        seats[Seat(topic, replicas, count, in_sync_min, reigns, own)].append(number)
    return {seat: tuple(numbers) for seat, numbers in seats.items()}


OFFSETS_PARTITIONS = "offsets.topic.num.partitions"
TRANSACTIONS_PARTITIONS = "transaction.state.log.num.partitions"
PARTITIONS_DEFAULT = 50
"""Kafka's number of partitions of either topic."""
PARTITIONS_SETTINGS = {OFFSETS_TOPIC: OFFSETS_PARTITIONS, TRANSACTIONS_TOPIC: TRANSACTIONS_PARTITIONS}


def coordinators(
    evidence: Evidence, terrain: Terrain, leaders: Leaders, topic: str, keys: Collection[str] | None
) -> list[Seat]:
    """Return the seats of the coordinators of ``keys``, or (None) of every key: any three brokers with two in sync.

    A coordinator is the leader of the partition of ``topic`` to which the key belongs: a group of
    ``__consumer_offsets``, a transactional id of ``__transaction_state``.
    """
    count = len(terrain.brokers)
    settings = settings_of(evidence)
    partitions = int(settings.get(PARTITIONS_SETTINGS[topic]) or PARTITIONS_DEFAULT)
    numbers = range(partitions) if keys is None else sorted({key_partition(key, partitions) for key in keys})
    reigns = {leaders.get((topic, number), ()) for number in numbers}
    # without a known leader of one partition any broker may coordinate
    return [
        Seat(topic, None, min(3, count), min(_TRANSACTIONS_IN_SYNC, count), known)
        for known in (reigns if () not in reigns else {()})
    ]


Stage = Literal["before", "moving", "in force", "over"]
ALONE = ("nodes", "one node")
"""Effects of a fault without ``for`` (such as a restart) that end with the fault's action; other effects stay."""


Silence = Literal["none", "until heal", "beyond heal"]
"""How long requests to a fault's targets stay unanswered: not at all, because connections are closed; until the heal,
which answers them (a frozen node) or closes their connections (a cut link); or also after it (a host that vanished)."""


@dataclass(frozen=True)
class Tampering:
    """What a rule of the wire proxy does to requests, from the fault's ``roles.rule`` in the journal.

    ``attempts`` is how many attempts of a request the rule may hit one after the other; None if it hits each. Of a
    script, ``delay_ms`` is the longest of its delays, and ``script_ms`` the sum; without one ``script_ms`` is None.
    """

    do: str
    api: str | None
    partition: int | None
    attempts: int | None
    delay_ms: int = 0
    silent: bool = False
    fatal: bool = False
    script_ms: int | None = None


# Error codes after which a client may end for good: authorisation, versions, a fenced or unknown producer or member.
FATAL_ERRORS = frozenset((17, 29, 30, 31, 33, 34, 35, 45, 47, 48, 49, 53, 54, 58, 59, 82, 90))
UNLIKELY = 1e-6
"""Probability of a run of hits of a rule with a ``probability`` that obligations no longer reckon with: a run of a
million attempts would show one."""
TAMPERING = {
    "delay_request": "late",
    "delay_response": "late",
    "drop_request": "lost",
    "drop_response": "lost",
    "hold_request": "lost",
    "close_mid_frame": "lost",
    "lose_bootstrap": "lost",
    "answer_error": "error",
    "throttle_response": "late",
    "duplicate_request": "none",
    "falsify_epochs": "error",  # a client may ignore metadata with an earlier epoch than it knows
    "strip_hints": "error",  # a client asks for metadata instead
}
"""What a client notices of each action of the wire proxy; the effects of other actions are unknown."""


def tampering_of(rule: Mapping[str, Any]) -> Tampering | None:
    """Return what a rule does to requests; None if that is unknown."""
    do = TAMPERING.get(str(rule.get("do")))
    if do is None:
        return None
    chances, attempts = str(rule.get("chances") or ""), None
    if rule.get("answers"):
        return _of_script(rule, rule["answers"])
    if rule.get("do") == "lose_bootstrap":
        # a client that starts, or that has lost all brokers, tries the addresses one after the other
        attempts = len(rule["brokers"])
    elif rule.get("nth") is not None:
        attempts = 1
    elif "0" in chances:
        share, attempts, left = chances.count("1") / len(chances), 0, 1.0
        while left > UNLIKELY:
            left, attempts = left * share, attempts + 1
    elif do == "none" or rule.get("do") in ("strip_hints", "hold_request") or rule.get("epoch") in ("absent", "frozen"):
        attempts = 1  # a producer's repeated request is not held
    return Tampering(
        do=do,
        api=rule.get("api"),
        partition=rule.get("partition"),
        attempts=attempts,
        delay_ms=int(rule.get("delay_ms") or rule.get("throttle_ms") or 0),
        silent=do == "lost" and rule.get("do") != "close_mid_frame" and rule.get("connection") == "silent",
        fatal=do == "error" and rule.get("error") in FATAL_ERRORS,
    )


def _of_script(rule: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> Tampering:
    """Return what a script does to requests: each answer once, whatever happens to the requests after it."""
    lost = [answer for answer in answers if answer.get("lost")]
    failed = [answer for answer in answers if answer.get("lost") or answer.get("error")]
    waits_ms = [int(answer.get("after_ms") or 0) + int(answer.get("throttle_ms") or 0) for answer in answers]
    return Tampering(
        do="lost" if lost else "error" if failed else "late",
        api=rule.get("api"),
        partition=rule.get("partition"),
        attempts=len(failed),
        delay_ms=max(waits_ms),
        silent=any(answer.get("connection") == "silent" for answer in lost),
        fatal=any(answer.get("error") in FATAL_ERRORS for answer in answers),
        script_ms=sum(waits_ms),
    )


@dataclass(frozen=True)
class Harm:
    """Effect of a fault on the cluster; ``unrecorded`` counts changes of nodes or leaders at unknown times.

    ``silence`` says how long requests to the fault's targets stay unanswered. ``delay_ms`` is by how much a round trip
    over the fault's links is longer. ``controller`` is True if the active controller may have been among the fault's
    brokers. ``tampering`` is what a protocol fault does to requests. ``restarts`` is True if the heal restarts
    the brokers. ``takes_addresses`` is True if the addresses of nodes that stop disappear with them.
    """

    fault: str
    kind: str
    impact: str
    silence: Silence
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
    delay_ms: int = 0
    tampering: Tampering | None = None
    restarts: bool = False
    takes_addresses: bool = False
    between_clients: bool = False
    """True for a rule of the wire proxy, which stands between clients and brokers and sees nothing else."""

    def stage(self, at_us: int) -> Stage:
        """Return the fault's stage at a given time; a boundary between two stages belongs to the later stage."""
        if not self.start_us <= at_us < self.end_us:
            return "over" if at_us >= self.end_us else "before"
        return "in force" if self.injected_us <= at_us < self.healing_us else "moving"

    @property
    def between_nodes(self) -> bool:
        """True if the fault affects links between nodes, and so may have separated replicas or controllers."""
        return any(not link.startswith("client_") for link in self.links)

    def served_links(self, racks: Sequence[str]) -> frozenset[int]:
        """Return the brokers whose links from clients of ``racks`` the fault affects."""
        prefixes = tuple(f"client_{rack}-k" for rack in racks)
        return frozenset(int(link.rpartition("-k")[2]) for link in self.links if link.startswith(prefixes))

    @property
    def announced(self) -> bool:
        """True if clients notice the fault at once, by closed connections or errors."""
        return self.silence == "none"

    @property
    def everywhere(self) -> bool:
        return not (self.brokers or self.links or self.topics or self.clients)


def harms_of(evidence: Evidence, until_us: int) -> list[Harm]:
    """Return the effect of each fault that began, by time; empty in a rehearsal, in which no fault is injected."""
    steps = () if evidence.run.get("rehearse") else evidence.steps
    harms = [harm for step in steps if (harm := _harm(evidence, step, until_us))]
    harms += (_of_absence(absence, settings_of(evidence), until_us) for absence in unplanned_absences(evidence))
    return sorted(harms, key=lambda harm: (harm.start_us, harm.fault))


def _of_absence(absence: Absence, settings: Mapping[str, str], until_us: int) -> Harm:
    """Return the effect of a broker that left by itself: how it left is unknown, and it may have been away before."""
    start_us = absence.left_us - total_us(session(settings)) - absences.SEEN_US
    end_us = until_us if absence.back_us is None else absence.back_us
    name, kind, impact = f"the absence of broker {absence.broker}", "absence", "unknown"
    whole = (max(0, start_us), max(0, start_us), end_us, end_us)
    return Harm(name, kind, impact, "beyond heal", *whole, brokers=frozenset([absence.broker]))


def _harm(evidence: Evidence, step: Mapping[str, Any], until_us: int) -> Harm | None:
    lines = [line for line in evidence.journal if line["fault"] == step["id"]]
    at_us = {line["state"]: line["t_us"] for line in reversed(lines)}
    if "intended" not in at_us:
        return None
    targets: Mapping[str, Any] = next((line["targets"] for line in reversed(lines) if line.get("targets")), {})
    declared = "injected" in at_us and "failed" not in at_us
    roles: Mapping[str, Any] = targets.get("roles") or {}
    impact, tampering = str(step.get("takes", "unknown")) if declared else "unknown", None
    if declared and roles.get("rule"):
        # older timelines declare no impact of protocol faults; the journal has their rules
        tampering = tampering_of(roles["rule"])
        impact = "requests" if tampering else "unknown"
    alone = step.get("for_ms") is None
    # the heal is proven, unless the last line gives a reason why an emergency heal was not verified
    undone = lines[-1]["state"] == "healed" and (alone or not lines[-1].get("why"))
    stays = not undone or (alone and impact not in (*ALONE, "leaders", "members", "connections"))
    if tampering and tampering.fatal:
        stays = True  # a client that ended does not come back
    start_us, end_us = at_us["intended"], until_us if stays else lines[-1]["t_us"]
    whole = stays or alone
    # changes within one stage: nodes that stop and return, leaders that move
    unrecorded = {"nodes": 2, "one node": 2, "leaders": 1}.get(impact, 0) if alone else 0
    cluster = evidence.timeline.get("cluster") or {}
    if "silence" in step:
        silence: Silence = step["silence"] or "none"
    else:  # older timelines
        vanished = step.get("kind") == "kill" and (step.get("parameters") or {}).get("host") == "silent"
        silence = "beyond heal" if vanished else "none" if step.get("told") else "until heal"
    return Harm(
        fault=step["id"],
        kind=str(step.get("kind")),
        impact="unknown" if stays else impact,
        silence=silence,
        # a cluster with hosts of their own keeps the address of a node that stops
        takes_addresses=silence == "none" and impact in ALONE and not cluster.get("hosts"),
        start_us=start_us,
        injected_us=start_us if whole else at_us.get("injected", start_us),
        healing_us=end_us if whole else at_us.get("healing", end_us),
        end_us=end_us,
        brokers=frozenset(targets.get("brokers", ())),
        links=frozenset(targets.get("links", ())),
        topics=frozenset(targets.get("topics", ())),
        clients=frozenset(targets.get("clients", ())),
        controller=roles.get("controller") is not False,
        unrecorded=unrecorded,
        delay_ms=int(step.get("delay_ms", LEGACY_DELAY_MS)) if impact == "moments" else 0,
        restarts=any((line.get("undo") or {}).get("verb") in RESTARTING for line in lines),
        tampering=tampering,
        between_clients=bool(roles.get("rule")),
    )


RESTARTING = ("reopen_log_dir", "restore_disk")
"""Undo verbs, in the journal, of heals that stop and start a node."""
LEGACY_DELAY_MS = 1_000
"""Longest delay of a round trip by a fault with impact ``moments``, in timelines without ``delay_ms``."""


@dataclass(frozen=True)
class State:
    """Nodes and links (by proxy name) that are unavailable at a given time."""

    terrain: Terrain
    away: frozenset[int]
    lost: frozenset[str]
    supposed: frozenset[int] = frozenset()
    """Nodes of ``away`` that stop and return at unrecorded times, so that their leaderships end at unknown times."""

    def carries(self, channel: str, source: int, target: int) -> bool:
        home = self.terrain.racks[source]
        return home == self.terrain.racks[target] or f"{channel}_{home}-k{target}" not in self.lost

    def served(self, rack: str, broker: int) -> bool:
        return f"client_{rack}-k{broker}" not in self.lost


def refusal(seat: Seat, rack: str, state: State, at_us: int) -> str | None:
    """Return why a client in ``rack`` may make no progress on a partition at a time; None if progress is possible."""
    up = frozenset(state.terrain.racks) - state.away
    ruled = governed(state, up)
    if ruled is None:
        return "no majority of the quorum's voters is certain to elect an active controller"
    brokers = ruled & state.terrain.brokers
    if stale := sorted(node for node in (up & state.terrain.brokers) - ruled if state.served(rack, node)):
        return f"broker {stale[0]} has lost its connection to the controller, and clients still reach this broker"

    # each possible leader needs enough replicas in sync
    if seat.replicas is None:
        leaders, count = brokers, seat.replication - len(state.terrain.brokers - brokers)
    else:
        leaders, count = seat.replicas & brokers, len(seat.replicas & brokers)
    known = possible_leaders(seat.reigns, at_us)
    if known is not None and state.supposed.isdisjoint(known):
        if not known or not known <= brokers:
            lost = sorted(known - brokers)
            return f"node {lost[0]} leads a partition of {seat.topic}" if lost else f"{seat.topic} has no leader"
        leaders = known
    needed = max(1, seat.in_sync_min)
    if count < needed:
        return f"the topic {seat.topic} may have {max(0, count)} of the {needed} in-sync replicas it needs"
    peers = brokers if seat.replicas is None else seat.replicas & brokers
    for leader in sorted(leaders):
        deaf = sum(not state.carries("replication", peer, leader) for peer in peers if peer != leader)
        if count - deaf < needed:
            return (
                f"if node {leader} leads a partition of {seat.topic}, it may have {count - deaf} of the {needed} "
                "in-sync replicas it needs"
            )

    cut = sorted(broker for broker in leaders if not state.served(rack, broker))
    return (
        f"clients of rack {rack} can't reach node {cut[0]}, which may lead a partition of {seat.topic}" if cut else None
    )


def governed(state: State, up: frozenset[int]) -> frozenset[int] | None:
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
