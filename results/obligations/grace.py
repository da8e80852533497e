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
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aftershock.results.obligations.harm import Harm
from aftershock.results.obligations.terrain import Terrain

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
