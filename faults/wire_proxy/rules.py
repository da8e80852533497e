"""Rules of the wire proxy, each with the requests that it applies to, and the action on request or response.

The field ``do`` of a rule names the action on each request to which the rule applies.

* ``delay_request`` forwards the request after ``delay_ms``; later requests of the connection wait behind the request.
* ``drop_request`` discards the request; then the connection is ``closed``, or stays ``silent``.
* ``duplicate_request`` sends the request to the broker twice, and discards one response: the client gets the ``answer``
  first or second.
* ``answer_error`` answers with ``error``, without the broker if the request would change state at the broker and
  the error is not ``applied``; or answers by the script ``answers``, of which each request takes the next one
  (``ScriptedAnswer``), until the script is used up.
* ``hide_error`` replaces ``error`` in the broker's response by 0, which means success.
* ``delay_response`` delays the response by ``delay_ms``; with ``serial``, counted from the previous response.
* ``drop_response`` discards the broker's response; then the connection is ``closed``, or stays ``silent``.
* ``close_mid_frame`` forwards the first ``after_bytes`` of the request or response (``message``), or half of it, and
  closes the connection.
* ``throttle_response`` puts ``throttle_ms`` into the field ``throttle_time_ms`` of the response.
* ``falsify_epochs`` lowers the leader epoch of partition i in the responses to ``epochs[i]`` (-1: no epoch); it removes
  the current leader epoch from requests, because brokers would fence clients that repeat a false one.
* ``lose_bootstrap`` is about connections to bootstrap addresses, of ``brokers`` to clients of ``rack``: these are
  ``closed``, or stay ``silent``, or lead to ``broker``. It has no other conditions.
* ``strip_hints`` removes ``hints`` from the response.
* ``falsify_hints`` puts ``broker``, or a ``session_id`` that was never granted, into ``hints`` of the response.
* ``cap_versions`` removes API versions above ``versions`` from an ApiVersions response, and APIs that have None there;
  it lowers the finalized levels of Kafka's features to ``features``.

``api``, ``topic``, ``partition`` and ``clients`` restrict the requests of a rule; a rule without these selects all
requests. Matching requests are counted from the moment the rule is in force; with ``per_client``, those of each client
id by themselves. ``nth`` selects the request of this number, and with ``answers`` also the later ones; ``chances``, a
repeated string of digits 0 and 1, selects each request whose digit is 1. A request with the
client id ``probe_id(name)`` is a probe, to which the rule applies regardless of ``topic``, ``nth`` and ``chances``.

Of the Kafka library kio this module imports only the table of APIs, because ``plan check`` reads rules, too, and kio's
classes take longer to import than a plan takes to check.

* The counter ``matched`` counts requests that match the rule's API, client, topic and partition.
* The counter ``hit`` counts matching requests to which the rule was applied.
* The counter ``untouched`` counts matching requests that passed unchanged because they could not be decoded.
* The counter ``exposed``, of rules that hold requests, counts those that arrived late (``holds.py``).
* The counters ``scripts`` and ``finished``, of rules with ``answers``, count the scripts that requests have begun (one,
  or one per client), and those that are used up.
* The counter ``probed`` counts requests under the rule's probe id, to which the rule was applied.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args
from uuid import UUID

from kio.schema.index import api_key_map

RuleAction = Literal[
    "delay_request",
    "drop_request",
    "duplicate_request",
    "hold_request",
    "answer_error",
    "hide_error",
    "delay_response",
    "drop_response",
    "close_mid_frame",
    "throttle_response",
    "falsify_epochs",
    "lose_bootstrap",
    "strip_hints",
    "falsify_hints",
    "cap_versions",
]
Hint = Literal["current_leader", "node_endpoints", "session_id", "preferred_replica"]
Ending = Literal["closed", "silent"]
Message = Literal["request", "response"]
Answered = Literal["first", "second"]
RuleOutcome = Literal["commit", "abort"]
EpochLie = Literal["absent", "frozen", "earlier"]

API_KEYS: dict[str, int] = {
    "".join(word.capitalize() for word in name.split("_")): key for key, name in api_key_map.items()
}
API_NAMES: dict[int, str] = {key: name for name, key in API_KEYS.items()}
_PROBED = """
    ApiVersions ConsumerGroupHeartbeat Fetch FindCoordinator Heartbeat InitProducerId JoinGroup ListOffsets Metadata
    OffsetCommit OffsetFetch OffsetForLeaderEpoch Produce SyncGroup TxnOffsetCommit
"""
PROBED = frozenset(_PROBED.split())
"""APIs that have a harmless request (``messages.py``)."""
PROBE = "aftershock-probe:"
DELAY_MS_MAX = 600_000


def probe_id(rule: str) -> str:
    """Return the client id of the requests (probes) to which only the rule of this name applies."""
    return f"{PROBE}{rule}"


TOPIC_FIELDS = ("name", "topic", "topic_id")
NUMBER_FIELDS = ("index", "partition_index", "partition")


class RuleSubject(NamedTuple):
    """Topic and partition of the requests to which a rule applies; None stands for all topics or partitions."""

    topic: str | None
    topic_id: UUID | None
    partition: int | None

    def matches(self, item: Any) -> bool:
        """Return False if a topic's or partition's item of a Kafka message is about another topic or partition."""
        topics = {item} if isinstance(item, str) else {getattr(item, name) for name in TOPIC_FIELDS if _has(item, name)}
        if self.topic is not None and topics and topics.isdisjoint({self.topic, self.topic_id} - {None}):
            return False
        number = number_of(item)
        return self.partition is None or number is None or number == self.partition


ANY = RuleSubject(None, None, None)


_EPOCH_APIS = (
    "Produce",
    "Fetch",
    "Metadata",
    "DescribeTopicPartitions",
    "ListOffsets",
    "OffsetFetch",
    "OffsetForLeaderEpoch",
)


def topics_in(message: Any) -> Iterator[Any]:
    """Yield a Kafka message's items for topics, which are structs, or plain names in the messages of some APIs."""
    for value in _lists_of(message):
        for item in value:
            if isinstance(item, str) or any(_has(item, name) for name in TOPIC_FIELDS):
                yield item
            elif is_dataclass(item):  # topics of a group
                yield from topics_in(item)


def partitions_in(topic: Any) -> Iterator[Any]:
    """Yield the items for partitions in a topic's item, which are structs, or plain numbers in some APIs."""
    for value in _lists_of(topic):
        yield from (item for item in value if number_of(item) is not None)


def is_about(request: Any, subject: RuleSubject) -> bool:
    """Return True if a request is, or may be, about a rule's topic and partition.

    A Fetch request of a fetch session may be about any partition, because it names only changed partitions (KIP-227).
    """
    if subject.topic is None or (
        request.__api_key__ == API_KEYS["Fetch"] and getattr(request, "session_epoch", -1) > 0
    ):
        return True
    return names(request, subject)


def names(message: Any, subject: RuleSubject) -> bool:
    """Return True if a request or response names a rule's topic and partition, or the topic without partitions."""
    if _is_about_all(message):
        return True
    for topic in filter(subject.matches, topics_in(message)):
        partitions = [] if isinstance(topic, str) else list(partitions_in(topic))
        if not partitions or any(map(subject.matches, partitions)):
            return True
    return False


def _is_about_all(message: Any) -> bool:
    """Return True if a request has null in place of a list of topics, which stands for all of them."""
    if not is_dataclass(message):
        return False
    everything = any(field.name == "topics" and getattr(message, field.name) is None for field in fields(message))
    return everything or any(
        _is_about_all(item) for value in _lists_of(message) for item in value if _has(item, "group_id")
    )


def number_of(item: Any) -> int | None:
    if isinstance(item, int):
        return item
    return next((getattr(item, name) for name in NUMBER_FIELDS if _has(item, name)), None)


def _lists_of(message: Any) -> Iterator[tuple[Any, ...]]:
    yield from (value for field in fields(message) if isinstance(value := getattr(message, field.name), tuple))


def _has(item: Any, name: str) -> bool:
    return is_dataclass(item) and hasattr(type(item), name)  # kio's classes have slots


@dataclass(frozen=True, kw_only=True)
class ScriptedAnswer:
    """One answer of a script; without any field, the broker's own answer.

    ``error`` is answered without the broker if the request would change state at the broker, unless it is ``applied``:
    then the broker serves the request, and its answer is hidden. The answer leaves ``after_ms`` later than it would. A
    ``lost`` request, or response, leaves the connection ``closed`` or ``silent``. ``throttle_ms`` is the time for which
    the client is asked to send nothing.
    """

    error: int = 0
    applied: bool = False
    after_ms: int = 0
    lost: Message | None = None
    connection: Ending = "closed"
    throttle_ms: int = 0

    @property
    def is_plain(self) -> bool:
        """True if it is the broker's own answer."""
        return not (self.error or self.after_ms or self.lost or self.throttle_ms)

    def refuses(self, *, read_only: bool) -> bool:
        """Return True if the broker does not get the request, which is ``read_only`` or changes its state."""
        return bool(self.error) and not self.applied and not read_only

    def as_text(self, errors: Mapping[int, str]) -> str:
        """Return the answer in words, with the names of ``errors`` by their code."""
        words = [f"{self.lost} lost, connection {self.connection}"] if self.lost else []
        words += [errors.get(self.error, str(self.error)) + (" after the broker's success" if self.applied else "")] * (
            self.error != 0
        )
        words += [f"throttle time {self.throttle_ms} ms"] * (self.throttle_ms != 0)
        words += [f"{self.after_ms} ms late"] * (self.after_ms != 0)
        return ", ".join(words) or "the broker's own"


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
    answer: Answered = "first"
    sent: int = 0
    outcome: RuleOutcome | None = None
    error: int = 0
    applied: bool = False
    answers: tuple[ScriptedAnswer, ...] = ()
    per_client: bool = False
    throttle_ms: int = 0
    after_bytes: int | None = None
    epoch: EpochLie | None = None
    epochs: tuple[int, ...] = ()
    hints: tuple[Hint, ...] = ()
    broker: int = -1
    brokers: tuple[int, ...] = ()
    rack: str | None = None
    session_id: int = 0
    versions: Mapping[str, int | None] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError if a field of the rule has an invalid value."""
        problems = [
            f"{name} is {getattr(self, name)!r}; use {', '.join(get_args(choice))}"
            for name, choice in {"do": RuleAction, "connection": Ending, "message": Message, "answer": Answered}.items()
            if getattr(self, name) not in get_args(choice)
        ]
        if self.outcome is not None and self.outcome not in get_args(RuleOutcome):
            problems.append(f"outcome is {self.outcome!r}; use {', '.join(get_args(RuleOutcome))}")
        problems += [f"unknown hint {hint!r}" for hint in self.hints if hint not in get_args(Hint)]
        apis = [api for api in (self.api, *self.versions) if api is not None]
        problems += [f"unknown API {api!r}" for api in apis if api not in API_KEYS]
        for name, ms in (("delay_ms", self.delay_ms), *(("after_ms", answer.after_ms) for answer in self.answers)):
            if not 0 <= ms <= DELAY_MS_MAX:
                problems.append(f"the rule's {name} is {ms}; use 0 to {DELAY_MS_MAX}")
        for answer in self.answers:
            if answer.lost is not None and (answer.lost not in get_args(Message) or answer.error):
                problems.append(f"a scripted answer is lost ({answer.lost!r}) with error {answer.error}; use either")
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

    @cached_property
    def keys(self) -> frozenset[int] | None:
        """Keys of the APIs whose requests the rule may apply to; None for all."""
        if self.do == "lose_bootstrap":
            return frozenset()
        if self.do == "falsify_epochs":
            return frozenset(API_KEYS[api] for api in _EPOCH_APIS)
        return None if self.api is None else frozenset({API_KEYS[self.api]})

    @property
    def plain_answer(self) -> ScriptedAnswer | None:
        """Answer of a rule without script that answers each request alike; None for other rules."""
        if self.do == "throttle_response":
            return ScriptedAnswer(throttle_ms=self.throttle_ms)
        return ScriptedAnswer(error=self.error, applied=self.applied) if self.do == "answer_error" else None

    def names(self, client_id: str | None) -> bool:
        """Return True if ``clients`` has the client id, or a name of which the client id is ``<name>-<text>``."""
        if not self.clients:
            return True
        return client_id is not None and any(
            client_id == name or client_id.startswith(f"{name}-") for name in self.clients
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a rule that differ from their defaults, in the form that ``rule_from`` reads."""
        document = _without_defaults(self, asdict(self))
        if self.answers:
            document["answers"] = [_without_defaults(answer, asdict(answer)) for answer in self.answers]
        return document


def _without_defaults(of: Any, values: dict[str, Any]) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(of)}
    return {name: value for name, value in values.items() if value != defaults[name] and value != {}}


def rule_from(document: Mapping[str, Any]) -> Rule:
    """Read a rule from the output of ``Rule.as_json``; raise ValueError with the reason if the rule is invalid."""
    values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in document.items()}
    try:
        if "answers" in values:
            values["answers"] = tuple(ScriptedAnswer(**answer) for answer in values["answers"])
        return Rule(**values)
    except TypeError as error:
        raise ValueError(f"invalid rule: {error}") from error
