"""Waits of clients and of Kafka after a change of the cluster, as sums of named time-outs and back-offs.

A wait is counted only for what a fault can do to a request:

======================  ============================================================================================
what happened           the client may wait
======================  ============================================================================================
an answer is late       as long as the answer is late
an error                a back-off and a metadata request
a closed connection     the same, and a reconnect. Back-offs between attempts to connect at most double, so they are
                        no longer than twice the time for which the broker could not be reached
no answer, no close     the same, and one request time-out: when it ends, clients close the connection and give up all
                        requests on it, so there is no second one
======================  ============================================================================================

Kafka itself waits for the session of a lost broker, and for an election of the quorum if it may have lost the active
controller. Default settings are those of Kafka 4.x and librdkafka 2.x.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from aftershock.names import LIBRARIES, ON_LIBRDKAFKA

ROUND_MS = 1_000  # a metadata request and its response on a busy host
RECONNECT_MS = 200  # the first attempt to connect: reconnect.backoff.ms of 50 ms (Java) or 100 ms, with jitter
FETCH_BACKOFF_MS = 1_000  # replica.fetch.backoff.ms, after which a follower connects again
BOOT_MS = 10_000
QUOTA_WINDOW_MS = 11_000
"""Kafka's ``quota.window.num`` (11) samples of ``quota.window.size.seconds`` (1 s), over which it averages a rate."""


@dataclass(frozen=True)
class Term:
    """One wait of a sum, with the setting or the cause that it comes from.

    ``own`` is True for a setting of the client that a plan may lower.
    """

    name: str
    ms: float
    own: bool = False


Grace: TypeAlias = tuple[Term, ...]


def total_us(grace: Grace) -> int:
    return round(1000 * sum(term.ms for term in grace))


# settings that make a client wait: for an answer, between connections, between retries; each with its default in ms,
# and by how much the wait may exceed the setting (Kafka's jitter of 20 % comes on top of its limits)
_JAVA = (
    ("request.timeout.ms", 30_000, 1),
    ("reconnect.backoff.max.ms", 1_000, 1.2),
    ("retry.backoff.max.ms", 1_000, 1.2),
)
_LIBRDKAFKA = (
    ("socket.timeout.ms", 60_000, 1),
    ("reconnect.backoff.max.ms", 10_000, 1),
    ("retry.backoff.max.ms", 1_000, 1.2),
)
_NAMES = {"reference": _JAVA, "java": _JAVA}
# libraries with names or defaults of their own: the longest wait for an answer, and the session of a member in ms
_OWN_DEFAULTS = {
    "aiokafka": (("request.timeout.ms", 40_000, 1), 10_000),
    "franz-go": (("ProduceRequestTimeout + RequestTimeoutOverhead", 20_000, 1), 45_000),
    "kafka-go": (("MaxWait + ReadTimeout", 20_000, 1), 30_000),
    "kafkajs": (("request.timeout.ms", 30_000, 1), 30_000),
    "sarama": (("Net.ReadTimeout", 30_000, 1), 10_000),
}
LEASE_MS = 300_000
"""Kafka's default ``metadata.max.age.ms``, after which a consumer asks the leader again; librdkafka always does so."""
_AGES_MS = {"sarama": 600_000}
_FIXED = ("franz-go", "kafka-go", "sarama")
"""Programs whose waits a plan can't change, but for the session."""


@dataclass(frozen=True)
class ClientWaits:
    """Longest waits of a client: for an answer (``request``), for the next attempt to connect, for the next retry.

    An ``attempt`` to connect to a silent broker lasts as long, None if that is unknown.

    A reader that fetches from a follower keeps to it until its ``lease`` ends, also if the follower falls behind
    (KIP-392).

    A member of a group also waits for a heartbeat and a rebalance (``group``) if members come or go, and for a new
    coordinator to load the group (``coordinator``) if that moves. The group notices a member that died after its
    ``session``, and a member that does not poll after ``poll``. A producer of transactions waits for a new
    ``coordinator`` to load them.
    """

    request: Term
    reconnect: Term
    retry: Term
    lease: Term
    attempt: Term | None = None
    coordinator: Grace = ()
    group: Grace = ()
    session: Grace = ()
    poll: Grace = ()

    def moved(self, outage_us: int = 0, *, silent: bool = False) -> Grace:
        """Return how long a client takes to find the broker that serves it, and to connect to it.

        ``outage_us`` is the time for which that broker could not be reached before. The back-off is twice as long after
        each failed attempt; if the broker was ``silent``, few attempts failed, because each lasted long.
        """
        limit_ms = RECONNECT_MS + 2 * outage_us / 1000
        if silent and self.attempt is not None:
            attempts = min(outage_us // max(1, round(1000 * self.attempt.ms)), _DOUBLINGS_MAX)
            limit_ms = min(limit_ms, RECONNECT_MS * 2.0 ** (1 + attempts))
        reconnect = self.reconnect
        if limit_ms < reconnect.ms:
            reconnect = Term("to connect again", limit_ms)
        return (reconnect, self.retry, Term("a metadata request", ROUND_MS))


_DOUBLINGS_MAX = 20
_ATTEMPT_MS = 10_000
"""Shortest default time-out of an attempt to connect: socket.connection.setup.timeout.ms of Java, and librdkafka's
api.version.request.timeout.ms."""


def client_waits(
    client: str,
    own: Mapping[str, object],
    settings: Mapping[str, str],
    *,
    grouped: bool,
    transacts: bool = False,
    protocol: str | None = None,
) -> ClientWaits:
    """Return how long a client with its ``own`` settings may wait, on brokers with ``settings``.

    A program (``exec``, or around a library) may declare its settings under Kafka's or librdkafka's names in the plan;
    otherwise the library's defaults apply, or the longer ones if they are not known. If the plan or the client's
    settings name the consumer protocol (KIP-848), brokers determine the session timeout and the heartbeat interval.
    """
    values = {key.replace("_", "."): value for key, value in own.items()}
    defaults = _NAMES.get(client, _LIBRDKAFKA)
    foreign = client in ("exec", *LIBRARIES) and client not in ON_LIBRDKAFKA
    if foreign and "request.timeout.ms" in values and "socket.timeout.ms" not in values:
        defaults = (_JAVA[0], *_LIBRDKAFKA[1:])
    session_ms = 45_000
    if client in _OWN_DEFAULTS:
        answer, session_ms = _OWN_DEFAULTS[client]
        defaults = (answer, *_LIBRDKAFKA[1:])

    def term(name: str, default: float, times: float = 1) -> Term:
        text = name if times == 1 else f"{times:g} x {name}"
        return Term(text, times * number(values.get(name), default), own=client not in _FIXED)

    request, reconnect, retry = (term(*setting) for setting in defaults)
    attempt = None
    if not foreign:
        attempt = Term("an attempt to connect", min(request.ms, _ATTEMPT_MS))
    age = "metadata.max.age.ms"
    kept = client in ("confluent", *ON_LIBRDKAFKA)
    lease = Term("a preferred replica's lease", LEASE_MS) if kept else term(age, _AGES_MS.get(client, LEASE_MS))
    what = "group" if grouped else "transactions"
    loading = (Term("to find the coordinator", ROUND_MS), Term(f"the coordinator's loading of the {what}", ROUND_MS))
    if not grouped:
        return ClientWaits(request, reconnect, retry, lease, attempt, loading if transacts else ())
    delay = number(settings.get("group.initial.rebalance.delay.ms"), 3_000)
    beat = replace(term("heartbeat.interval.ms", 3_000), own=False)
    session = replace(term("session.timeout.ms", session_ms), own=True)
    if (protocol or str(values.get("group.protocol")).lower()) == "consumer":
        beat, session = (
            Term(name, number(settings.get(name), default))
            for name, default in (
                ("group.consumer.heartbeat.interval.ms", 5_000),
                ("group.consumer.session.timeout.ms", 45_000),
            )
        )
    group = (beat, Term("a rebalance", delay + 2 * ROUND_MS))
    poll = term("max.poll.interval.ms", 300_000)
    return ClientWaits(request, reconnect, retry, lease, attempt, loading, group, (session,), (poll,))


def quorum(settings: Mapping[str, str]) -> Grace:
    """Return the time of a controller election, in which voters notice the failure, then hold up to two elections."""
    fetch = number(settings.get("controller.quorum.fetch.timeout.ms"), 2_000)
    vote = number(settings.get("controller.quorum.election.timeout.ms"), 1_000)
    pause = number(settings.get("controller.quorum.election.backoff.max.ms"), 1_000)
    return (Term("controller.quorum.fetch.timeout.ms", fetch), Term("two elections of the quorum", 2 * (vote + pause)))


def session(settings: Mapping[str, str]) -> Grace:
    """Return the time after which the controller fences a lost broker, and removes it from every ISR."""
    return (
        Term("broker.session.timeout.ms", number(settings.get("broker.session.timeout.ms"), 9_000)),
        heartbeat(settings),
    )


def heartbeat(settings: Mapping[str, str]) -> Term:
    name = "broker.heartbeat.interval.ms"
    return Term(name, number(settings.get(name), 2_000))


def lag(settings: Mapping[str, str]) -> Grace:
    """Return the time after which a leader removes a follower that does not fetch (ReplicaManager looks each half)."""
    return (Term("1.5 x replica.lag.time.max.ms", 1.5 * number(settings.get("replica.lag.time.max.ms"), 30_000)),)


def delay_limit_ms(settings: Mapping[str, str]) -> float:
    """Return the longest delay of a round trip between nodes that moves no leader and shrinks no ISR.

    It is half of the shortest time after which a node gives up another: a voter the controller, the controller a
    broker, a leader a follower. The other half is for what the nodes do between two requests.
    """
    fetch, lost = quorum(settings)[0].ms, session(settings)
    return min(fetch, lost[0].ms - lost[1].ms, lag(settings)[0].ms / 1.5) / 2


def number(value: object, default: float) -> float:
    try:
        return float(str(value)) if value is not None else default
    except ValueError:
        return default
