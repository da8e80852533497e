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
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from aftershock.faults.wire_proxy.apis import API_KEYS

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
