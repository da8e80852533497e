"""How long all may stand still after a change: the sum of what Kafka and the client wait for by their settings.

=======================  ===========================================================================================
change                   grace
=======================  ===========================================================================================
nodes go                 an election of the quorum (if the controller may be among them), the broker's session
links between nodes go   the same, and 1.5 x ``replica.lag.time.max.ms``: a leader looks at its followers' lag at
or come back             every half of it (ReplicaManager)
nodes come back          none: the heal has seen them in every ISR; an isolated controller, whose heal is its start
                         alone, takes 10 s to boot and may find an election and its brokers' sessions to wait for
client links, leaders    none
an unknown fault ends    all of it
=======================  ===========================================================================================

To each comes the client's own: its longest back-offs and a metadata request; if it was not told (connections stay open
and silent) two requests that time out, one to the node and one for metadata, and a connection attempt as well; for a
member of a group a heartbeat and a rebalance. Defaults are Kafka's (4.x) and librdkafka's (2.x).

When a client is owed progress: the time after warm-up in spans, each owed or not, and why.

Rules. Time is cut wherever a fault changes stage or a grace runs out, so that within a span nothing changes. Progress
is owed in a span where it is possible, whoever leads, and where every grace has run out. Where nodes come and go
unseen (a restart) no grace can be counted from a change: it is added to the patience, once for each.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

from aftershock.results.checks.obligations.reach import ALONE, Harm, Seat, State, Terrain, refusal, sure

BOOT_MS = 10_000
ROUND_MS = 1_000  # a metadata request, its answer, and a host that is busy


class _Words(NamedTuple):
    """A client's names of its settings, each with its default and how often it may be waited for."""

    request: tuple[str, int, float]
    setup: tuple[str, int, float]
    reconnect: tuple[str, int, float]
    retry: tuple[str, int, float]


_JAVA = _Words(
    ("request.timeout.ms", 30_000, 2),
    ("socket.connection.setup.timeout.max.ms", 30_000, 1),
    ("reconnect.backoff.max.ms", 1_000, 1.2),  # Kafka's jitter of 20 % comes on top of its limits
    ("retry.backoff.max.ms", 1_000, 1.2),
)
_LIBRDKAFKA = _Words(
    ("socket.timeout.ms", 60_000, 2),
    ("socket.connection.setup.timeout.ms", 30_000, 1),
    ("reconnect.backoff.max.ms", 10_000, 1),
    ("retry.backoff.max.ms", 1_000, 1.2),
)
_DIALECTS = {"reference": _JAVA, "java": _JAVA}


@dataclass(frozen=True)
class Term:
    """One summand: what is waited for, and how long."""

    name: str
    ms: float


Grace = tuple[Term, ...]


@dataclass(frozen=True)
class Habits:
    """A client's own part: when it is told, what comes on top when it isn't, and what a group takes."""

    told: Grace
    untold: Grace
    group: Grace = ()
    session: Grace = ()


def habits(client: str, said: Mapping[str, object], settings: Mapping[str, str], *, grouped: bool) -> Habits:
    """Of a client of this implementation with these settings, on brokers with those."""
    words = _DIALECTS.get(client, _LIBRDKAFKA)
    # the settings of a program of the user's own are in words of its own: the longer defaults hold
    mine = {} if client == "exec" else {key.replace("_", "."): value for key, value in said.items()}

    def term(name: str, default: float, times: float = 1) -> Term:
        return Term(name if times == 1 else f"{times:g} x {name}", times * _number(mine.get(name), default))

    told = (term(*words.reconnect), term(*words.retry), Term("a metadata request", ROUND_MS))
    untold = (term(*words.request), term(*words.setup))
    if not grouped:
        return Habits(told, untold)
    delay = _number(settings.get("group.initial.rebalance.delay.ms"), 3_000)
    group = (term("heartbeat.interval.ms", 3_000), Term("a rebalance", delay + 2 * ROUND_MS))
    return Habits(told, untold, group, (term("session.timeout.ms", 45_000),))


def at_start(
    harm: Harm, client: Habits, terrain: Terrain, settings: Mapping[str, str], *, silent: bool = False
) -> Grace:
    """After it took hold. ``silent``: another fault is there of which nobody is told."""
    cluster: Grace = ()
    if harm.takes in ("nodes", "one node"):
        governing = harm.controller and bool(harm.brokers & terrain.voters)
        cluster = (*(_quorum(settings) if governing else ()), *_session(settings))
    elif harm.between_nodes:
        cluster = (*_quorum(settings), *_session(settings), *_lag(settings))
    return (*cluster, *client.told, *(client.untold if silent or not harm.told else ()), *client.group)


def at_end(harm: Harm, client: Habits, terrain: Terrain, settings: Mapping[str, str], *, silent: bool = False) -> Grace:
    """After it was healed; ``silent`` as above."""
    untold = client.untold if silent or harm.takes == "unknown" else ()
    members = client.session if harm.clients or harm.everywhere else ()
    cluster = settling(harm, settings)
    if harm.takes in ("nodes", "one node") and harm.brokers & terrain.voters - terrain.brokers:
        cluster = (
            Term("a controller's start, which nobody waits for", BOOT_MS),
            *_quorum(settings),
            *_session(settings),
        )
    return (*cluster, *client.told, *untold, *client.group, *members)


def settling(harm: Harm, settings: Mapping[str, str]) -> Grace:
    """How long after its heal the cluster itself may need: until followers are in sync, and one controller rules."""
    unknown = harm.takes == "unknown" and (bool(harm.brokers or harm.topics) or harm.everywhere)
    return (*_quorum(settings), *_session(settings), *_lag(settings)) if harm.between_nodes or unknown else ()


def total_us(grace: Grace) -> int:
    """The sum."""
    return round(1000 * sum(term.ms for term in grace))


def told(grace: Grace) -> str:
    """``6.5 s = 3 s broker.session.timeout.ms + ...``."""
    return f"{total_us(grace) / 1e6:g} s = " + " + ".join(f"{term.ms / 1e3:g} s {term.name}" for term in grace)


def _quorum(settings: Mapping[str, str]) -> Grace:
    """The followers notice, and then an election, which may have to be held twice."""
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
"""How long a client that is owed progress may go without: a lost request, a busy host, a backlog."""
MOMENTS_US = 10_000_000
"""What links that are late by a second at most may add: ten round trips."""


@dataclass(frozen=True)
class Span:
    """``owed``: whether progress was; ``patience_us``: the longest silence that is no stall."""

    start_us: int
    end_us: int
    owed: bool
    patience_us: int
    why: str


@dataclass(frozen=True)
class Post:
    """Where a client stands, as what, and how it bears faults. ``worker``: its process by name."""

    worker: str
    rack: str
    habits: Habits


@dataclass(frozen=True)
class Scene:
    """The cluster, its settings and what befell it."""

    terrain: Terrain
    settings: Mapping[str, str]
    harms: tuple[Harm, ...]

    @classmethod
    def of(cls, terrain: Terrain, settings: Mapping[str, str], harms: Iterable[Harm]) -> "Scene":
        """With those harms unknown that can't be told apart from others."""
        known = sure(harms, lambda harm: harm.end_us + total_us(settling(harm, settings)))
        return cls(terrain, settings, tuple(known))


def spans(post: Post, seats: Sequence[Seat], scene: Scene, from_us: int, to_us: int) -> tuple[Span, ...]:
    """The spans of a client and some partitions, all of which must be able to make progress."""
    met = [harm for harm in scene.harms if touches(harm, post, seats, scene.terrain)]
    changes = [change for harm in met for change in _changes(harm, met, post, scene)]
    moments = {from_us, to_us}
    for harm in met:
        moments |= {harm.start_us, harm.injected_us, harm.healing_us, harm.end_us}
    moments |= {change.settled_us for change in changes}
    cuts = sorted(moment for moment in moments if from_us <= moment <= to_us)
    found = (_span(post, seats, scene, met, changes, start, end) for start, end in pairwise(cuts))
    return tuple(_joined(found))


def touches(harm: Harm, post: Post, seats: Sequence[Seat], terrain: Terrain) -> bool:
    """Whether it can make a difference to the client at these partitions."""
    if harm.everywhere or harm.between_nodes or post.worker in harm.clients:
        return True
    if any(link.startswith(f"client_{post.rack}-") for link in harm.links):
        return True
    if any(seat.topic in harm.topics for seat in seats):
        return True
    here = any(seat.replicas is None or seat.replicas & harm.brokers for seat in seats)
    return bool(harm.brokers) and (here or bool(harm.brokers & terrain.voters))


@dataclass(frozen=True)
class _Change:
    at_us: int
    grace: Grace
    what: str

    @property
    def settled_us(self) -> int:
        return self.at_us + total_us(self.grace)


def _changes(harm: Harm, met: Sequence[Harm], post: Post, scene: Scene) -> Iterator[_Change]:
    if not harm.unseen:
        yield _Change(harm.injected_us, _first(harm, met, post, scene, harm.injected_us), f"{harm.fault} began")
    grace = at_end(harm, post.habits, scene.terrain, scene.settings, silent=_silent(met, harm.end_us))
    yield _Change(harm.end_us, grace, f"{harm.fault} ended")


def _first(harm: Harm, met: Sequence[Harm], post: Post, scene: Scene, at_us: int) -> Grace:
    return at_start(harm, post.habits, scene.terrain, scene.settings, silent=_silent(met, at_us))


def _silent(met: Sequence[Harm], at_us: int) -> bool:
    """Whether a fault is there of which nobody is told: then any metadata request may go to a node that is silent."""
    return any(not harm.told and harm.stage(at_us) not in ("before", "over") for harm in met)


def _span(
    post: Post,
    seats: Sequence[Seat],
    scene: Scene,
    met: Sequence[Harm],
    changes: Sequence[_Change],
    start_us: int,
    end_us: int,
) -> Span:
    live = [harm for harm in met if harm.stage(start_us) != "over" and harm.stage(start_us) != "before"]
    why = _obscured(live, start_us) or _impossible(post, seats, live, scene) or _unsettled(changes, start_us)
    if why:
        return Span(start_us, end_us, owed=False, patience_us=0, why=why)
    unseen = [harm for harm in live if harm.unseen]
    patience_us = PATIENCE_US + (MOMENTS_US if any(harm.takes == "moments" for harm in live) else 0)
    for harm in unseen:
        patience_us += harm.unseen * total_us(_first(harm, live, post, scene, start_us))
    during = f", whatever {', '.join(harm.fault for harm in live)} does" if live else ""
    return Span(
        start_us, end_us, owed=True, patience_us=patience_us, why=f"every leader there may be is reached{during}"
    )


def _obscured(live: Sequence[Harm], at_us: int) -> str | None:
    """A fault of which nobody knows what it does, at this moment or ever."""
    for harm in live:
        if harm.stage(at_us) == "moving":
            return f"{harm.fault} is being injected or healed"
        if harm.takes == "unknown" or (harm.takes == "moments" and harm.between_nodes):
            return f"what {harm.fault} leaves working is not known"
    return None


def _impossible(post: Post, seats: Sequence[Seat], live: Sequence[Harm], scene: Scene) -> str | None:
    for state in _states(live, scene.terrain):
        for seat in seats:
            if why := refusal(seat, post.rack, state):
                return f"{why} ({', '.join(harm.fault for harm in live)})" if live else why
    return None


def _states(live: Sequence[Harm], terrain: Terrain) -> Iterator[State]:
    """All that may be gone now: of nodes that go and come back unseen, any or none."""
    away = frozenset(broker for harm in live if harm.takes == "nodes" and not harm.unseen for broker in harm.brokers)
    lost = frozenset(link for harm in live if harm.takes == "links" for link in harm.links)
    for gone in product(*(_perhaps(harm) for harm in live if harm.unseen)):
        yield State(terrain, away.union(*gone), lost)


def _perhaps(harm: Harm) -> list[frozenset[int]]:
    alone = [frozenset({broker}) for broker in sorted(harm.brokers)] if harm.takes == "one node" else [harm.brokers]
    return [frozenset(), *(alone if harm.takes in ALONE else ())]


def _unsettled(changes: Sequence[_Change], at_us: int) -> str | None:
    """The last grace that still runs."""
    running = [change for change in changes if change.at_us <= at_us < change.settled_us]
    if not running:
        return None
    last = max(running, key=lambda change: change.settled_us)
    return f"{last.what}: a grace of {told(last.grace)}"


def _joined(found: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for span in found:
        last = joined[-1] if joined else None
        same = last and (last.owed, last.patience_us, last.why) == (span.owed, span.patience_us, span.why)
        if last and same:
            joined[-1] = replace(last, end_us=span.end_us)
        else:
            joined.append(span)
    return joined
