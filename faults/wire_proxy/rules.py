"""Rules of the wire proxy, each with the requests that it applies to, and the action on request or response.

The field ``do`` of a rule names the action on each request to which the rule applies.

* ``delay_request`` forwards the request after ``delay_ms``; later requests of the connection wait behind the request.
* ``drop_request`` discards the request; then the connection is ``closed``, or stays ``silent``.
* ``duplicate_request`` sends the request to the broker twice, and discards the second response.
* ``answer_error`` answers with ``error``, without the broker if the request would change state at the broker.
* ``hide_error`` replaces ``error`` in the broker's response by 0, which means success.
* ``delay_response`` delays the response by ``delay_ms``; with ``serial``, counted from the previous response.
* ``drop_response`` discards the broker's response; then the connection is ``closed``, or stays ``silent``.
* ``close_mid_frame`` forwards half of the request or response (``message``), and closes the connection.
* ``strip_hints`` removes ``hints`` from the response.
* ``falsify_hints`` puts ``broker``, or a ``session_id`` that was never granted, into ``hints`` of the response.
* ``cap_versions`` removes API versions above ``versions`` from an ApiVersions response, and APIs that have None there.

``api``, ``topic``, ``partition`` and ``clients`` restrict the requests of a rule; a rule without these selects all
requests. Matching requests are counted from the moment the rule is in force. ``nth`` selects the request of this
number; ``chances``, a repeated string of digits 0 and 1, selects each request whose digit is 1. A request with the
client id ``probe_id(name)`` is a probe, to which the rule applies regardless of ``topic``, ``nth`` and ``chances``.

* The counter ``matched`` counts requests that match the rule's API, client, topic and partition.
* The counter ``hit`` counts matching requests to which the rule was applied.
* The counter ``untouched`` counts matching requests that passed unchanged because they could not be decoded.
* The counter ``probed`` counts requests under the rule's probe id, to which the rule was applied.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args
from uuid import UUID

from aftershock.faults.wire_proxy.messages import ANY, API_KEYS, RequestHead, RuleSubject, is_about

RuleAction = Literal[
    "delay_request",
    "drop_request",
    "duplicate_request",
    "answer_error",
    "hide_error",
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


def probe_id(rule: str) -> str:
    """Return the client id of the requests (probes) to which only the rule of this name applies."""
    return f"{PROBE}{rule}"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule of the wire proxy as plain values; API versions with topic ids (KIP-516) need ``topic_id``."""

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
        """Raise ValueError if a field of the rule has an invalid value."""
        problems = [
            f"{name} is {getattr(self, name)!r}; use {', '.join(get_args(choice))}"
            for name, choice in {"do": RuleAction, "connection": Ending, "message": Message}.items()
            if getattr(self, name) not in get_args(choice)
        ]
        problems += [f"unknown hint {hint!r}" for hint in self.hints if hint not in get_args(Hint)]
        apis = [api for api in (self.api, *self.versions) if api is not None]
        problems += [f"unknown API {api!r}" for api in apis if api not in API_KEYS]
        if not 0 <= self.delay_ms <= DELAY_MS_MAX:
            problems.append(f"the rule's delay_ms is {self.delay_ms}; use 0 to {DELAY_MS_MAX}")
        if self.chances.strip("01"):
            problems.append(
                f"the rule's `chances` are {self.chances!r}; use only the digits 1 (apply the rule) and 0 (skip it)"
            )
        if problems:
            raise ValueError(f"rule {self.name!r}: {'; '.join(problems)}")

    @cached_property
    def subject(self) -> RuleSubject:
        topic_id = None if self.topic_id is None else UUID(bytes=base64.urlsafe_b64decode(self.topic_id + "=="))
        return RuleSubject(self.topic, topic_id, self.partition)

    def names(self, client_id: str | None) -> bool:
        """Return True if ``clients`` has the client id, or a name of which the client id is ``<name>-<text>``."""
        if not self.clients:
            return True
        return client_id is not None and any(
            client_id == name or client_id.startswith(f"{name}-") for name in self.clients
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a rule that differ from their defaults, in the form that ``rule_from`` reads."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name] and value != {}}


def rule_from(document: Mapping[str, Any]) -> Rule:
    """Read a rule from the output of ``Rule.as_json``; raise ValueError with the reason if the rule is invalid."""
    values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in document.items()}
    try:
        return Rule(**values)
    except TypeError as error:
        raise ValueError(f"invalid rule: {error}") from error


class ActiveRule(NamedTuple):
    """A rule of the wire proxy in force, with the counters of its requests."""

    rule: Rule
    counts: Counter[str]


class Hit(NamedTuple):
    """A rule that applies to a request; ``is_probe`` is True if the request is a probe sent by the harness."""

    rule: Rule
    counts: Counter[str]
    is_probe: bool

    @property
    def subject(self) -> RuleSubject:
        """Topic and partition whose items in the response are changed; in a probe's response, all items are changed."""
        return ANY if self.is_probe else self.rule.subject

    def count_request(self) -> None:
        self.counts["probed" if self.is_probe else "hit"] += 1


class ActiveRules:
    """Rules of the wire proxy in force, in the order in which they were added."""

    def __init__(self) -> None:
        self._rules: dict[str, ActiveRule] = {}

    def add(self, rule: Rule) -> None:
        """Put a rule in force; raise ValueError if another rule has its name."""
        if rule.name in self._rules:
            raise ValueError(f"a rule {rule.name!r} is already in force; remove it first, or use another name")
        self._rules[rule.name] = ActiveRule(rule, Counter(matched=0, hit=0, untouched=0, probed=0))

    def remove(self, name: str) -> Rule | None:
        """Remove a rule and return it; None if no rule has this name."""
        active = self._rules.pop(name, None)
        return active.rule if active else None

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counters of each rule in force, by the rule's name."""
        return {name: dict(counts) for name, (_, counts) in self._rules.items()}

    def candidates(self, head: RequestHead) -> tuple[ActiveRule, ...]:
        """Return the rules that may apply to a request, judged by the request's header."""
        if not self._rules:
            return ()
        client_id = head.client_id
        is_probe = client_id is not None and client_id.startswith(PROBE)
        return tuple(
            active
            for name, active in self._rules.items()
            if (active.rule.api is None or API_KEYS[active.rule.api] == head.key)
            and (client_id == probe_id(name) if is_probe else active.rule.names(client_id))
        )

    def hits(self, candidates: Iterable[ActiveRule], head: RequestHead, request: Any) -> tuple[Hit, ...]:
        """Return the rules that apply to a request, and count the request in the counters of the candidate rules.

        ``request`` is the request's body, None if no rule needs the body, or if the body can't be decoded.
        """
        hits = []
        for rule, counts in candidates:
            if head.client_id == probe_id(rule.name):
                hits.append(Hit(rule, counts, is_probe=True))
            elif rule.topic is not None and request is None:
                counts["untouched"] += 1
            elif request is None or is_about(request, rule.subject):
                counts["matched"] += 1
                bit = rule.chances[(counts["matched"] - 1) % len(rule.chances)] if rule.chances else "1"
                if counts["matched"] == rule.nth or (rule.nth is None and bit == "1"):
                    hits.append(Hit(rule, counts, is_probe=False))
        return tuple(hits)
