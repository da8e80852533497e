"""Spans of time in which a client must make progress, and the grace (permitted pause) after each cluster change.

The grace is the time for which progress may stop after a change of the cluster, which is the sum of the time-outs and
back-offs of Kafka and of the client.

=======================  ===========================================================================================
change                   grace
=======================  ===========================================================================================
nodes stop               an election of the quorum (if the controller may be among them), the broker's session
links between nodes      the same, and 1.5 x ``replica.lag.time.max.ms``, as a leader checks its followers' lag every
fail or return           half of it (ReplicaManager)
nodes return             none, as the heal waits until the nodes are in every ISR; an isolated controller, whose heal
                         only starts the process, takes 10 s to boot, an election and the brokers' sessions
client links, leaders    none
an unknown fault ends    all of the above
=======================  ===========================================================================================

The grace also contains the client's own waits, which are its longest back-offs and a metadata request; after an
unannounced fault (connections stay open and silent) two requests that time out and a connection attempt; for a member
of a group a heartbeat and a rebalance. Default settings are those of Kafka 4.x and librdkafka 2.x.

The time after warm-up is divided into spans at each moment when a fault's state changes or a grace ends. Progress is
required in a span if progress is possible under any leader, and the grace after each change has ended. If nodes stop
and return at unrecorded times (a restart), the start of the grace is unknown, so the grace is added to the patience
(the longest permitted stall), once per change.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from aftershock.results.checks.obligations.reach import ALONE, Harm, Seat, State, Terrain, refusal

BOOT_MS = 10_000
ROUND_MS = 1_000  # a metadata request and its response on a busy host


# settings that make a client wait: for a request, a connection, between connections, between retries; each with its
# default in ms, and how often the client may wait so long
_JAVA = (
    ("request.timeout.ms", 30_000, 2),
    ("socket.connection.setup.timeout.max.ms", 30_000, 1),
    ("reconnect.backoff.max.ms", 1_000, 1.2),  # Kafka's jitter of 20 % comes on top of its limits
    ("retry.backoff.max.ms", 1_000, 1.2),
)
_LIBRDKAFKA = (
    ("socket.timeout.ms", 60_000, 2),
    ("socket.connection.setup.timeout.ms", 30_000, 1),
    ("reconnect.backoff.max.ms", 10_000, 1),
    ("retry.backoff.max.ms", 1_000, 1.2),
)
_NAMES = {"reference": _JAVA, "java": _JAVA}


@dataclass(frozen=True)
class Term:
    name: str
    ms: float


Grace = tuple[Term, ...]


@dataclass(frozen=True)
class Habits:
    """Longest waits of a client after a change of the cluster, after a fault that left connections open, in a group."""

    announced: Grace
    unannounced: Grace
    group: Grace = ()
    session: Grace = ()
    poll: Grace = ()


def habits(
    client: str, own: Mapping[str, object], settings: Mapping[str, str], *, grouped: bool, protocol: str | None = None
) -> Habits:
    """Return how long a client with its ``own`` settings may wait, on brokers with ``settings``.

    If the plan or the client's settings name the consumer protocol (KIP-848), brokers determine the session timeout and
    the heartbeat interval.
    """
    request, setup, reconnect, retry = _NAMES.get(client, _LIBRDKAFKA)
    # the settings of a user's own program have unknown names, so the longer defaults apply
    values = {} if client == "exec" else {key.replace("_", "."): value for key, value in own.items()}

    def term(name: str, default: float, times: float = 1) -> Term:
        return Term(name if times == 1 else f"{times:g} x {name}", times * _number(values.get(name), default))

    announced = (term(*reconnect), term(*retry), Term("a metadata request", ROUND_MS))
    unannounced = (term(*request), term(*setup))
    if not grouped:
        return Habits(announced, unannounced)
    delay = _number(settings.get("group.initial.rebalance.delay.ms"), 3_000)
    beat, session = term("heartbeat.interval.ms", 3_000), term("session.timeout.ms", 45_000)
    if (protocol or str(values.get("group.protocol")).lower()) == "consumer":
        beat, session = (
            Term(name, _number(settings.get(name), default))
            for name, default in (
                ("group.consumer.heartbeat.interval.ms", 5_000),
                ("group.consumer.session.timeout.ms", 45_000),
            )
        )
    group = (beat, Term("a rebalance", delay + 2 * ROUND_MS))
    return Habits(announced, unannounced, group, (session,), (term("max.poll.interval.ms", 300_000),))


def at_end(harm: Harm, client: Habits, terrain: Terrain, settings: Mapping[str, str], *, silent: bool = False) -> Grace:
    """Return the time for which progress may stop after a heal; if ``silent``, connections may hang unclosed."""
    unannounced = client.unannounced if silent or harm.impact == "unknown" else ()
    members = client.session if (harm.clients and harm.impact != "members") or harm.everywhere else ()
    cluster = settling(harm, settings)
    if harm.impact in ALONE and harm.brokers & terrain.voters - terrain.brokers:
        cluster = (
            Term("the start of a controller, because healing the fault doesn't wait for the controller", BOOT_MS),
            *_quorum(settings),
            *_session(settings),
        )
    return (*cluster, *client.announced, *unannounced, *client.group, *members)


def settling(harm: Harm, settings: Mapping[str, str]) -> Grace:
    """Return the time for which progress may stop after a heal, until followers are in sync and a controller active."""
    unknown = harm.impact == "unknown" and (bool(harm.brokers or harm.topics) or harm.everywhere)
    return (*_quorum(settings), *_session(settings), *_lag(settings)) if harm.between_nodes or unknown else ()


def total_us(grace: Grace) -> int:
    return round(1000 * sum(term.ms for term in grace))


def _quorum(settings: Mapping[str, str]) -> Grace:
    """Return the time of a controller election, in which voters notice the failure, then hold up to two elections."""
    fetch = _number(settings.get("controller.quorum.fetch.timeout.ms"), 2_000)
    vote = _number(settings.get("controller.quorum.election.timeout.ms"), 1_000)
    pause = _number(settings.get("controller.quorum.election.backoff.max.ms"), 1_000)
    return (Term("controller.quorum.fetch.timeout.ms", fetch), Term("two elections of the quorum", 2 * (vote + pause)))


def _session(settings: Mapping[str, str]) -> Grace:
    beat = _number(settings.get("broker.heartbeat.interval.ms"), 2_000)
    session = _number(settings.get("broker.session.timeout.ms"), 9_000)
    return (Term("broker.session.timeout.ms", session), Term("broker.heartbeat.interval.ms", beat))


def _lag(settings: Mapping[str, str]) -> Grace:
    lag = _number(settings.get("replica.lag.time.max.ms"), 30_000)
    return (Term("1.5 x replica.lag.time.max.ms", 1.5 * lag),)


def _number(value: object, default: float) -> float:
    try:
        return float(str(value)) if value is not None else default
    except ValueError:
        return default


PATIENCE_US = 5_000_000
"""Longest permitted time without progress while progress is required: a lost request, a busy host, a backlog."""
MOMENTS_US = 10_000_000
"""Further permitted time without progress while a fault delays links by at most a second: ten round trips."""


@dataclass(frozen=True)
class Span:
    """Span of time in which progress is ``required`` or not; ``patience_us`` is the longest permitted stall."""

    start_us: int
    end_us: int
    required: bool
    patience_us: int
    why: str


@dataclass(frozen=True)
class Post:
    """Process names and racks of a client, and how long the client may wait (time-outs, back-offs).

    ``reserve`` are those of the ``workers`` that run only after a fault let them join. A client of one worker that is
    stopped can make no progress; in a group of several the other members take over.
    """

    workers: tuple[str, ...]
    racks: tuple[str, ...]
    habits: Habits
    reserve: frozenset[str] = frozenset()

    def serves(self, live: Iterable[Harm]) -> bool:
        """Return True if at least one worker runs while the faults ``live`` are in force."""
        stopped = frozenset[str]().union(*(harm.clients for harm in live if harm.kind != "join"))
        return bool({*self.workers} - self.reserve - stopped)


@dataclass(frozen=True)
class Scene:
    """Nodes of the cluster, broker settings, and the effects of faults."""

    terrain: Terrain
    settings: Mapping[str, str]
    harms: tuple[Harm, ...]

    @classmethod
    def of(cls, terrain: Terrain, settings: Mapping[str, str], harms: Iterable[Harm]) -> "Scene":
        """Mark the effects of faults that began while the ISR may not have been full as unknown."""
        marked: list[Harm] = []
        for harm in harms:
            narrow = any(
                harm.start_us < peer.end_us + total_us(settling(peer, settings))
                and (peer.between_nodes or peer.everywhere or (peer.impact == "unknown" and bool(peer.brokers)))
                for peer in marked
            )
            marked.append(replace(harm, impact="unknown") if narrow and harm.impact in ("links", *ALONE) else harm)
        return cls(terrain, settings, tuple(marked))


def spans(post: Post, seats: Sequence[Seat], scene: Scene, from_us: int, to_us: int) -> tuple[Span, ...]:
    """Return a client's time spans; progress is required in a span if all its partitions (``seats``) allow progress."""
    relevant = [harm for harm in scene.harms if touches(harm, post, seats, scene.terrain)]
    changes: list[_Change] = []
    moments = {from_us, to_us}
    for harm in relevant:
        moments |= {harm.start_us, harm.injected_us, harm.healing_us, harm.end_us}
        if not harm.unrecorded:
            grace = _start_grace(harm, relevant, post, scene, harm.injected_us)
            changes.append(_Change(harm.injected_us, grace, f"{harm.fault} began"))
        silent = _silent(relevant, harm.end_us)
        grace = at_end(harm, post.habits, scene.terrain, scene.settings, silent=silent)
        changes.append(_Change(harm.end_us, grace, f"{harm.fault} ended"))
    moments |= {change.settled_us for change in changes}
    cuts = sorted(moment for moment in moments if from_us <= moment <= to_us)
    joined: list[Span] = []
    for start_us, end_us in pairwise(cuts):
        span = _span(post, seats, scene, relevant, changes, start_us, end_us)
        # adjacent spans that differ only in time are one span
        if joined and replace(joined[-1], start_us=start_us, end_us=end_us) == span:
            joined[-1] = replace(joined[-1], end_us=end_us)
        else:
            joined.append(span)
    return tuple(joined)


def touches(harm: Harm, post: Post, seats: Sequence[Seat], terrain: Terrain) -> bool:
    """Return True if the fault can affect the client's progress on the given partitions (``seats``)."""
    if harm.everywhere or harm.between_nodes or harm.clients.intersection(post.workers):
        return True
    if any(link.startswith(f"client_{rack}-") for link in harm.links for rack in post.racks):
        return True
    if any(seat.topic in harm.topics for seat in seats):
        return True
    on_replicas = any(seat.replicas is None or seat.replicas & harm.brokers for seat in seats)
    return bool(harm.brokers) and (on_replicas or bool(harm.brokers & terrain.voters))


@dataclass(frozen=True)
class _Change:
    at_us: int
    grace: Grace
    event: str

    @property
    def settled_us(self) -> int:
        return self.at_us + total_us(self.grace)


def _start_grace(harm: Harm, relevant: Sequence[Harm], post: Post, scene: Scene, at_us: int) -> Grace:
    """Return the time for which progress may stop after the injection of a fault."""
    client, settings, cluster = post.habits, scene.settings, Grace()
    if harm.impact == "members":
        noticed = {"leave": (), "join": (), "evict": client.poll}.get(harm.kind, client.session)
        return (*noticed, *client.announced, *client.group)
    if harm.impact in ALONE:
        governing = harm.controller and bool(harm.brokers & scene.terrain.voters)
        cluster = (*(_quorum(settings) if governing else ()), *_session(settings))
    elif harm.between_nodes:
        cluster = (*_quorum(settings), *_session(settings), *_lag(settings))
    unannounced = client.unannounced if not harm.announced or _silent(relevant, at_us) else ()
    return (*cluster, *client.announced, *unannounced, *client.group)


def _silent(relevant: Sequence[Harm], at_us: int) -> bool:
    """Return True if a fault in force leaves connections open, so that metadata requests may get no response."""
    return any(not harm.announced and harm.stage(at_us) not in ("before", "over") for harm in relevant)


def _span(
    post: Post,
    seats: Sequence[Seat],
    scene: Scene,
    relevant: Sequence[Harm],
    changes: Sequence[_Change],
    start_us: int,
    end_us: int,
) -> Span:
    live = [harm for harm in relevant if harm.stage(start_us) not in ("before", "over")]
    why = _excuse(post, seats, scene, live, changes, start_us)
    if why:
        return Span(start_us, end_us, required=False, patience_us=0, why=why)
    patience_us = PATIENCE_US + (MOMENTS_US if any(harm.impact == "moments" for harm in live) else 0)
    for harm in (harm for harm in live if harm.unrecorded):
        patience_us += harm.unrecorded * total_us(_start_grace(harm, live, post, scene, start_us))
    during = f" despite {', '.join(harm.fault for harm in live)}" if live else ""
    why = f"the client can reach every possible partition leader{during}"
    return Span(start_us, end_us, required=True, patience_us=patience_us, why=why)


def _excuse(
    post: Post, seats: Sequence[Seat], scene: Scene, live: Sequence[Harm], changes: Sequence[_Change], at_us: int
) -> str | None:
    """Return why a client is not required to make progress at a given time; None if progress is required."""
    for harm in live:
        if harm.stage(at_us) == "moving":
            return f"{harm.fault} is being injected or healed"
        if harm.impact == "members" and not post.serves(live):
            return f"{harm.fault} keeps every process of the client from working"
        if harm.impact == "unknown" or (harm.impact == "moments" and harm.between_nodes):
            return f"the effect of {harm.fault} is not known"
    for state in _states(live, scene.terrain):
        for seat, rack in product(seats, post.racks):
            if why := refusal(seat, rack, state):
                return f"{why} ({', '.join(harm.fault for harm in live)})" if live else why
    running = [change for change in changes if change.at_us <= at_us < change.settled_us]
    if not running:
        return None
    last = max(running, key=lambda change: change.settled_us)
    terms = " + ".join(f"{term.ms / 1e3:g} s {term.name}" for term in last.grace)
    return f"{last.event}: a grace of {total_us(last.grace) / 1e6:g} s = {terms}"


def _states(live: Sequence[Harm], terrain: Terrain) -> Iterator[State]:
    """Yield each possible state of the cluster; a node that stops and returns at unrecorded times may be up or down."""
    away = frozenset(
        broker for harm in live if harm.impact == "nodes" and not harm.unrecorded for broker in harm.brokers
    )
    lost = frozenset(link for harm in live if harm.impact == "links" for link in harm.links)
    choices = []
    for harm in live:
        if harm.unrecorded:
            one_node = [frozenset({broker}) for broker in sorted(harm.brokers)]
            down = one_node if harm.impact == "one node" else [harm.brokers] if harm.impact == "nodes" else []
            choices.append([frozenset[int](), *down])
    for missing in product(*choices):
        yield State(terrain, away.union(*missing), lost)
