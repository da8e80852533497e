"""A rule: which requests it meets, and what becomes of them or of their answers. Plain values, as JSON has them.

=====================  ===========================================================================================
``do``                 what becomes of a request that the rule meets
=====================  ===========================================================================================
``delay_request``      it goes on ``delay_ms`` later; what follows on its connection waits behind it
``drop_request``       it never reaches the broker; then its connection is ``closed``, or ``silent`` from there on
``duplicate_request``  it reaches the broker twice, and the second answer reaches nobody
``answer_error``       it is answered with ``error``: without the broker, if it would change something there
``delay_response``     its answer goes on ``delay_ms`` later; ``serial``: that long after the one before it
``drop_response``      it is served, and its answer reaches nobody; then as for ``drop_request``
``close_mid_frame``    half of it, or of its answer (``message``), goes on; then the connection is closed
``strip_hints``        ``hints`` are taken out of its answer
``falsify_hints``      ``hints`` of its answer name ``broker``, or a session ``session_id`` that nobody was given
``cap_versions``       its answer (ApiVersions) offers no version above ``versions``; None: the API isn't offered
=====================  ===========================================================================================

``api``, ``topic``, ``partition`` and ``clients`` narrow down the requests; None or empty: all. Of these, ``nth`` picks
one, counted from the moment the rule is in force; ``chances`` picks those whose bit is set, again and again from its
start: drawn by who made the rule, nothing is random here. A request under the client id ``probe_id(name)`` meets
whatever it names: that is how a rule is probed. It isn't counted among the others.

The rules in force, which requests they meet, and how often they did.

=============  ============================================================================
counter        counts requests
=============  ============================================================================
``matched``    that a rule is about: by API, client, topic and partition
``hit``        of these, those that were done what the rule says
``untouched``  of these, those that should have been, and could not: their bytes are strange
``probed``     under the rule's probe id, that were done what the rule says
=============  ============================================================================
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args

from aftershock.faults.wire_proxy.messages import ANY, API_KEYS, Head, Named, about

Deed = Literal[
    "delay_request",
    "drop_request",
    "duplicate_request",
    "answer_error",
    "delay_response",
    "drop_response",
    "close_mid_frame",
    "strip_hints",
    "falsify_hints",
    "cap_versions",
]
Hint = Literal["current_leader", "node_endpoints", "session_id", "preferred_replica"]
Ending = Literal["closed", "silent"]
Message = Literal["request", "response"]

PROBE = "aftershock-probe:"
DELAY_MS_MAX = 600_000
_CHOICES = {"do": Deed, "connection": Ending, "message": Message}


def probe_id(rule: str) -> str:
    """The client id under which requests meet this rule alone."""
    return f"{PROBE}{rule}"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """See above. ``topic_id`` is Kafka's text of it, for the versions that name topics by their ids."""

    name: str
    do: Deed
    api: str | None = None
    topic: str | None = None
    topic_id: str | None = None
    partition: int | None = None
    clients: tuple[str, ...] = ()
    nth: int | None = None
    chances: str = ""
    delay_ms: int = 0
    serial: bool = False
    connection: Ending = "closed"
    message: Message = "response"
    error: int = 0
    hints: tuple[Hint, ...] = ()
    broker: int = -1
    session_id: int = 0
    versions: Mapping[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if reason := _refusal(self):
            raise ValueError(f"the rule {self.name!r} {reason}")

    @property
    def key(self) -> int | None:
        """The API key of ``api``."""
        return None if self.api is None else API_KEYS[self.api]

    def names(self, client_id: str | None) -> bool:
        """Whether requests of this client are meant: one of ``clients``, or one that adds ``-<something>`` to it."""
        if not self.clients:
            return True
        return client_id is not None and any(
            client_id == name or client_id.startswith(f"{name}-") for name in self.clients
        )

    def as_json(self) -> dict[str, Any]:
        """What differs from the defaults; ``rule_from`` reads it back."""
        usual = {each.name: each.default for each in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != usual[name] and value != {}}


def rule_from(document: Mapping[str, Any]) -> Rule:
    """The reverse of ``Rule.as_json``. ValueError, with what is wrong, for what is no rule."""
    said: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in document.items()}
    try:
        return Rule(**said)
    except TypeError as error:
        raise ValueError(f"this is no rule: {error}") from error


def _refusal(rule: Rule) -> str:
    for name, choice in _CHOICES.items():
        if getattr(rule, name) not in get_args(choice):
            return f"has {name}={getattr(rule, name)!r}"
    unknown: list[str] = [hint for hint in rule.hints if hint not in get_args(Hint)]
    unknown += [api for api in (rule.api, *rule.versions) if api is not None and api not in API_KEYS]
    if unknown:
        return f"names {unknown[0]!r}, which nobody knows"
    if not 0 <= rule.delay_ms <= DELAY_MS_MAX:
        return f"has a delay of {rule.delay_ms} ms"
    if rule.chances.strip("01"):
        return "has chances that are no zeros and ones"
    return ""


COUNTERS = ("matched", "hit", "untouched", "probed")


class Live:
    """One rule in force."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.named = Named(rule.topic, rule.topic_id, rule.partition)
        self._key = rule.key
        self._probe_id = probe_id(rule.name)

    def may_meet(self, head: Head) -> bool:
        """As far as the head of a request tells."""
        if self._key is not None and head.key != self._key:
            return False
        if head.client_id is not None and head.client_id.startswith(PROBE):
            return head.client_id == self._probe_id
        return self.rule.names(head.client_id)

    def is_probe(self, head: Head) -> bool:
        """Whether somebody asks only to see the rule at work."""
        return head.client_id == self._probe_id

    def chooses(self) -> bool:
        """Whether the request that was just counted as ``matched`` is one of those to be hit."""
        number, chances = self.counts["matched"], self.rule.chances
        if self.rule.nth is not None:
            return number == self.rule.nth
        return not chances or chances[(number - 1) % len(chances)] == "1"


class Hit(NamedTuple):
    """A rule that a request has met and that has chosen it."""

    live: Live
    is_probe: bool

    @property
    def rule(self) -> Rule:
        """The rule."""
        return self.live.rule

    @property
    def named(self) -> Named:
        """What it is about in the answer; a probe names what nobody has, and is met all the same."""
        return ANY if self.is_probe else self.live.named

    def done(self) -> None:
        """Count it as done."""
        self.live.counts["probed" if self.is_probe else "hit"] += 1

    def untouched(self) -> None:
        """Count it as one that could not be done."""
        self.live.counts["untouched"] += 1


class Book:
    """The rules in force, in the order in which they came."""

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}

    def add(self, rule: Rule) -> None:
        """Put a rule in force. ValueError if there is one of that name."""
        if rule.name in self._live:
            raise ValueError(f"there is a rule {rule.name!r} already")
        self._live[rule.name] = Live(rule)

    def remove(self, name: str) -> Rule | None:
        """Take a rule away; None if there is none of that name."""
        live = self._live.pop(name, None)
        return live.rule if live else None

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """What each rule has counted, by its name."""
        return {name: dict(live.counts) for name, live in self._live.items()}

    def candidates(self, head: Head) -> tuple[Live, ...]:
        """The rules that may meet a request, as far as its head tells."""
        if not self._live:
            return ()
        return tuple(live for live in self._live.values() if live.may_meet(head))

    def hits(self, candidates: Sequence[Live], head: Head, request: Any) -> tuple[Hit, ...]:
        """Count the request, and give the rules that have chosen it.

        ``request``: its body; None where no rule needs it, or it can't be read.
        """
        found = []
        for live in candidates:
            if live.is_probe(head):
                found.append(Hit(live, is_probe=True))
            elif live.named.topic is not None and request is None:
                live.counts["untouched"] += 1
            elif request is None or about(request, live.named):
                live.counts["matched"] += 1
                if live.chooses():
                    found.append(Hit(live, is_probe=False))
        return tuple(found)
