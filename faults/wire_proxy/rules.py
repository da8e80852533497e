"""Rules of the wire proxy: the requests they apply to, and what they do to requests or responses.

=====================  ===========================================================================================
``do``                 effect on a request that the rule applies to
=====================  ===========================================================================================
``delay_request``      forwarded ``delay_ms`` later; what follows on its connection waits behind it
``drop_request``       never reaches the broker; then its connection is ``closed``, or ``silent`` from there on
``duplicate_request``  reaches the broker twice, and the second response is discarded
``answer_error``       answered with ``error``: without the broker, if it would change something there
``delay_response``     its response is ``delay_ms`` late; ``serial``: that long after the response before it
``drop_response``      served, and its response is discarded; then as for ``drop_request``
``close_mid_frame``    half of it, or of its response (``message``), is forwarded; then the connection is closed
``strip_hints``        ``hints`` are removed from its response
``falsify_hints``      ``hints`` of its response name ``broker``, or a ``session_id`` that was never granted
``cap_versions``       its response (ApiVersions) offers no version above ``versions``; None: the API isn't offered
=====================  ===========================================================================================

``api``, ``topic``, ``partition`` and ``clients`` restrict the requests; None or empty: all. Of the matching requests,
``nth`` selects one, counted from the moment the rule is in force; ``chances`` selects those whose bit is set, and
repeats from its start. The bits are drawn by the creator of the rule; the proxy makes no random choices. The rule
always applies to a request under the client id ``probe_id(name)``, regardless of the topics that it names, so that the
rule can be probed. Probes are not counted among the other requests.

=============  ============================================================================
counter        requests
=============  ============================================================================
``matched``    that match the rule's API, client, topic and partition
``hit``        of these, those to which the rule was applied
``untouched``  of these, those that passed unchanged because they could not be decoded
``probed``     under the rule's probe id, to which the rule was applied
=============  ============================================================================
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args

from aftershock.faults.wire_proxy.messages import ANY, API_KEYS, RequestHead, RuleSubject, is_about

RuleAction = Literal[
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
_CHOICES = {"do": RuleAction, "connection": Ending, "message": Message}


def probe_id(rule: str) -> str:
    """Return the client id of the requests to which only this rule applies."""
    return f"{PROBE}{rule}"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule, as plain JSON values. ``topic_id``: Kafka's text form, for versions with topic ids."""

    name: str
    do: RuleAction
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
        """API key of ``api``."""
        return None if self.api is None else API_KEYS[self.api]

    def names(self, client_id: str | None) -> bool:
        """Return True for a client id in ``clients``, or one that extends such an id by ``-<suffix>``."""
        if not self.clients:
            return True
        return client_id is not None and any(
            client_id == name or client_id.startswith(f"{name}-") for name in self.clients
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults; ``rule_from`` is the reverse."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name] and value != {}}


def rule_from(document: Mapping[str, Any]) -> Rule:
    """Read the output of ``Rule.as_json``; ValueError with the reason if it is invalid."""
    values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in document.items()}
    try:
        return Rule(**values)
    except TypeError as error:
        raise ValueError(f"invalid rule: {error}") from error


def _refusal(rule: Rule) -> str:
    for name, choice in _CHOICES.items():
        if getattr(rule, name) not in get_args(choice):
            return f"has {name}={getattr(rule, name)!r}"
    unknown: list[str] = [hint for hint in rule.hints if hint not in get_args(Hint)]
    unknown += [api for api in (rule.api, *rule.versions) if api is not None and api not in API_KEYS]
    if unknown:
        return f"names {unknown[0]!r}, which is unknown"
    if not 0 <= rule.delay_ms <= DELAY_MS_MAX:
        return f"has a delay of {rule.delay_ms} ms; it must be 0 to {DELAY_MS_MAX}"
    if rule.chances.strip("01"):
        return "has chances other than zeros and ones"
    return ""


COUNTERS = ("matched", "hit", "untouched", "probed")


class ActiveRule:
    """A rule in force, with its counters."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.named = RuleSubject(rule.topic, rule.topic_id, rule.partition)
        self._key = rule.key
        self._probe_id = probe_id(rule.name)

    def may_meet(self, head: RequestHead) -> bool:
        """Return True if the rule may apply to a request with this header."""
        if self._key is not None and head.key != self._key:
            return False
        if head.client_id is not None and head.client_id.startswith(PROBE):
            return head.client_id == self._probe_id
        return self.rule.names(head.client_id)

    def is_probe(self, head: RequestHead) -> bool:
        """Return True for a probe of this rule."""
        return head.client_id == self._probe_id

    def chooses(self) -> bool:
        """Return True if the rule applies to the request that was just counted as ``matched``."""
        number, chances = self.counts["matched"], self.rule.chances
        if self.rule.nth is not None:
            return number == self.rule.nth
        return not chances or chances[(number - 1) % len(chances)] == "1"


class Hit(NamedTuple):
    """A rule that applies to a request."""

    live: ActiveRule
    is_probe: bool

    @property
    def rule(self) -> Rule:
        """The rule itself."""
        return self.live.rule

    @property
    def named(self) -> RuleSubject:
        """Topic and partition to change in the response; any for a probe, which names none that exist."""
        return ANY if self.is_probe else self.live.named

    def done(self) -> None:
        """Count the request as hit or probed."""
        self.live.counts["probed" if self.is_probe else "hit"] += 1

    def untouched(self) -> None:
        """Count the request as one that could not be changed."""
        self.live.counts["untouched"] += 1


class ActiveRules:
    """The rules in force, in the order of their addition."""

    def __init__(self) -> None:
        self._live: dict[str, ActiveRule] = {}

    def add(self, rule: Rule) -> None:
        """Put a rule in force. Raises ValueError if its name is in use."""
        if rule.name in self._live:
            raise ValueError(f"there is a rule {rule.name!r} already")
        self._live[rule.name] = ActiveRule(rule)

    def remove(self, name: str) -> Rule | None:
        """Remove and return a rule; None if no rule has this name."""
        live = self._live.pop(name, None)
        return live.rule if live else None

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counters of each rule, by its name."""
        return {name: dict(live.counts) for name, live in self._live.items()}

    def candidates(self, head: RequestHead) -> tuple[ActiveRule, ...]:
        """Return the rules that may apply to a request with this header."""
        if not self._live:
            return ()
        return tuple(live for live in self._live.values() if live.may_meet(head))

    def hits(self, candidates: Sequence[ActiveRule], head: RequestHead, request: Any) -> tuple[Hit, ...]:
        """Count the request, and return the rules that apply to it.

        ``request``: its body; None if no rule needs it, or if it can't be decoded.
        """
        hits = []
        for live in candidates:
            if live.is_probe(head):
                hits.append(Hit(live, is_probe=True))
            elif live.named.topic is not None and request is None:
                live.counts["untouched"] += 1
            elif request is None or is_about(request, live.named):
                live.counts["matched"] += 1
                if live.chooses():
                    hits.append(Hit(live, is_probe=False))
        return tuple(hits)
