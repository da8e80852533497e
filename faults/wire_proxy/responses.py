"""Changed responses of a broker (errors, hints, versions), and error responses built by the wire proxy.

Functions that change a decoded response return a changed copy, or the given object if nothing changes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from functools import cache, partial
from typing import Any

from kio.static.protocol import Entity, RequestPayload

from aftershock.faults.wire_proxy.messages import build_entity, number_field, struct_of
from aftershock.faults.wire_proxy.rules import (
    API_KEYS,
    NUMBER_FIELDS,
    TOPIC_FIELDS,
    Rule,
    RuleSubject,
    ScriptedAnswer,
    number_of,
    partitions_in,
    topics_in,
)
from aftershock.workloads.kafka.wire.codec import response_type
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.schema import plain_fields, tagged_fields

ERROR_FIELDS = ("error_code", "partition_error_code")
_REPLICA_NOT_AVAILABLE = 9
_KEYS = (*TOPIC_FIELDS, *NUMBER_FIELDS)
WHOLE_RESPONSE_ERRORS = frozenset({70, 71, 106})
"""Errors of fetch sessions, such as FETCH_SESSION_ID_NOT_FOUND: they apply to a whole Fetch, never to a partition."""
_OFFSET_FETCH_PARTITION_ERRORS = frozenset({3, 29, 88, 100})
"""UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED, UNSTABLE_OFFSET_COMMIT, UNKNOWN_TOPIC_ID: all other errors of
OffsetFetch are about the group, and come without partitions since version 2
(``OffsetFetchRequest.getErrorResponse``)."""


@dataclass(frozen=True)
class BrokerView:
    """Broker of a client's connection, and the address of the wire proxy at which the client reaches each broker."""

    broker: int
    addresses: Mapping[int, Address]


def answered_response(response: Any, answer: ScriptedAnswer, subject: RuleSubject) -> Any:
    """Put an answer's error, and its throttle time, into a broker's response.

    An ``applied`` error hides the broker's own answer; an error about reading stands beside it.
    """
    if answer.error:
        response_kind: type[Entity] = type(response)
        if response.__api_key__ == _OFFSET_FETCH:
            response = _with_offset_fetch_error(response, answer.error, subject)
        elif answer.error not in WHOLE_RESPONSE_ERRORS and _has_item_errors(response_kind):
            change = _refused_item if answer.applied else _with_error
            response = _changed(response, subject, ERROR_FIELDS, partial(change, code=answer.error))
        elif answer.applied:
            response = _refused_item(response, answer.error)
        elif hasattr(response, "error_code"):
            response = replace(response, error_code=answer.error)
    return throttled_response(response, answer.throttle_ms)


def throttled_response(response: Any, throttle_ms: int) -> Any:
    """Set the time for which a response asks its client to send nothing, if the response has a field for it."""
    if not throttle_ms or not hasattr(response, "throttle_time"):
        return response
    return replace(response, throttle_time=timedelta(milliseconds=throttle_ms))


def throttle_ms_in(response: Any) -> int:
    return round(getattr(response, "throttle_time", timedelta(0)) / timedelta(milliseconds=1))


def altered_response(response: Any, rule: Rule, subject: RuleSubject, broker_view: BrokerView) -> Any:
    if rule.do == "hide_error":
        return _without_error(
            _changed(response, subject, ERROR_FIELDS, partial(_without_error, code=rule.error)), rule.error
        )

    if rule.do == "cap_versions":  # an API whose lowest version is above its cap isn't offered
        caps = {API_KEYS[api]: cap for api, cap in rule.versions.items()}
        offered = []
        for entry in response.api_keys:
            cap = caps.get(entry.api_key, entry.max_version)
            if cap is not None and cap >= entry.min_version:
                offered.append(entry if cap >= entry.max_version else replace(entry, max_version=cap))
        if tuple(offered) != response.api_keys:
            response = replace(response, api_keys=tuple(offered))
        return _with_features(response, rule.features) if rule.features else response

    if rule.do == "falsify_epochs":
        if response.__api_key__ == _OFFSET_FOR_LEADER_EPOCH:  # its epochs are facts of the log
            return response
        return _changed(response, subject, _EPOCH_FIELDS, partial(_with_epoch, highest=rule.epochs))

    strip = rule.do == "strip_hints"
    for hint in rule.hints:
        match hint:
            case "session_id":
                if getattr(response, "session_id", 0):
                    response = replace(response, session_id=0 if strip else rule.session_id)
            case "node_endpoints":
                endpoints = getattr(response, "node_endpoints", ())
                address = broker_view.addresses.get(rule.broker)
                if endpoints and strip:
                    response = replace(response, node_endpoints=())
                elif endpoints and address is not None:
                    false = tuple(replace(endpoint, host=address.host, port=address.port) for endpoint in endpoints)
                    response = response if false == endpoints else replace(response, node_endpoints=false)
            case "current_leader":
                leader = None if strip else rule.broker
                response = _changed(response, subject, (hint,), partial(_with_leader, broker=leader))
            case "preferred_replica":
                replica = -1 if strip or rule.broker == broker_view.broker else rule.broker
                response = _changed(
                    response, subject, ("preferred_read_replica",), partial(_with_replica, broker=replica)
                )
    return response


def _with_features(response: Any, caps: Mapping[str, int]) -> Any:
    """Lower the finalized levels of features in an ApiVersions response, as after a downgrade (KIP-584).

    A level of 0 means that the feature is not finalized. The features get the next epoch, because clients ignore
    features of an epoch that they know (``ApiVersions.update`` of Kafka's client). A broker's own epoch is the offset
    of its metadata, which is higher soon: after the heal, clients see the true level.
    """
    lowered = []
    for feature in getattr(response, "finalized_features", ()):
        level = min(feature.max_version_level, caps.get(feature.name, feature.max_version_level))
        if level:
            least = min(feature.min_version_level, level)
            lowered.append(replace(feature, max_version_level=level, min_version_level=least))
    if tuple(lowered) == getattr(response, "finalized_features", ()):
        return response
    epoch = response.finalized_features_epoch + 1
    return replace(response, finalized_features=tuple(lowered), finalized_features_epoch=epoch)


def error_codes_in(message: Any) -> Iterator[int]:
    """Yield the error codes in a response, at any depth, except 0."""
    if isinstance(message, tuple):
        for item in message:
            yield from error_codes_in(item)
    elif is_dataclass(message):
        for field in fields(message):
            inner = getattr(message, field.name)
            if field.name in ERROR_FIELDS and inner:
                yield int(inner)
            else:
                yield from error_codes_in(inner)


def _with_error(item: Any, code: int) -> Any:
    changes: dict[str, Any] = {"records": b""} if hasattr(item, "records") else {}
    if hasattr(item, "isr_nodes") and code != _REPLICA_NOT_AVAILABLE:
        changes["leader_id"] = -1  # beside other errors of a partition, Metadata names no leader (``MetadataCache``)
    return replace(item, **{name: code for name in ERROR_FIELDS if hasattr(item, name)}, **changes)


def _with_offset_fetch_error(response: Any, code: int, subject: RuleSubject) -> Any:
    """Put an error into OffsetFetch, where most errors are about a group and leave no partition in its answer."""

    def refused(group: Any) -> Any:
        # versions 0 and 1 have errors of partitions only
        if code in _OFFSET_FETCH_PARTITION_ERRORS or subject.topic is not None or not hasattr(group, "error_code"):
            return _changed(group, subject, ERROR_FIELDS, partial(_with_error, code=code))
        return replace(group, topics=(), error_code=code)

    if hasattr(response, "groups"):  # since version 8
        return replace(response, groups=tuple(map(refused, response.groups)))
    return refused(response)


def _refused_item(item: Any, code: int) -> Any:
    """Build the item, or the response, anew with an error, and with nothing that the broker answered."""
    kept = {name: getattr(item, name) for name in (*_KEYS, "throttle_time") if hasattr(item, name)}
    return build_entity(type(item), kept | dict.fromkeys(ERROR_FIELDS, code))


def _without_error(item: Any, code: int) -> Any:
    hidden = dict.fromkeys((name for name in ERROR_FIELDS if getattr(item, name, 0) == code), 0)
    return replace(item, **hidden) if hidden else item


@cache
def _has_item_errors(kind: type[Entity]) -> bool:
    structs = [struct for field in plain_fields(kind) if (struct := struct_of(field))]
    return any(
        _has_item_errors(struct) or any(field.name in ERROR_FIELDS for field in plain_fields(struct))
        for struct in structs
    )


_OFFSET_FOR_LEADER_EPOCH = API_KEYS["OffsetForLeaderEpoch"]
_OFFSET_FETCH = API_KEYS["OffsetFetch"]
_EPOCH_FIELDS = ("leader_epoch", "committed_leader_epoch", "current_leader")


def _with_epoch(item: Any, highest: Sequence[int]) -> Any:
    """Lower the leader epoch of a partition to the highest that clients may see."""
    number = number_of(item)
    if number is None or number >= len(highest):
        return item
    epochs = {name: getattr(item, name) for name in _EPOCH_FIELDS if hasattr(item, name)}
    if hint := epochs.pop("current_leader", None):
        lowered = hint if hint.leader_epoch <= highest[number] else replace(hint, leader_epoch=highest[number])
        item = item if lowered is hint else replace(item, current_leader=lowered)
    lower = {name: highest[number] for name, epoch in epochs.items() if epoch > highest[number]}
    return replace(item, **lower) if lower else item


def without_epoch(request: Any, subject: RuleSubject) -> Any:
    """Remove the leader epoch that a client believes to be the current one, by which brokers would fence it."""

    def unfenced(item: Any) -> Any:
        return item if item.current_leader_epoch < 0 else replace(item, current_leader_epoch=-1)

    return _changed(request, subject, ("current_leader_epoch",), unfenced)


def epochs_in(response: Any) -> dict[int, int]:
    """Return the leader epoch of each partition in a response about one topic, if it has leader epochs."""
    partitions = [part for topic in getattr(response, "topics", ()) for part in getattr(topic, "partitions", ())]
    numbered = [(number_of(part), part) for part in partitions if hasattr(part, "leader_epoch")]
    return {number: int(part.leader_epoch) for number, part in numbered if number is not None}


def _with_leader(item: Any, broker: int | None) -> Any:
    """Replace the leader in a partition's leader hint by ``broker``, or remove the hint without ``broker``."""
    kind: type[Entity] = type(item)
    no_leader: Any = next(field.default for field in tagged_fields(kind) if field.name == "current_leader")
    if item.current_leader == no_leader:
        return item
    false = no_leader if broker is None else replace(item.current_leader, leader_id=broker)
    return item if false == item.current_leader else replace(item, current_leader=false)


def _with_replica(item: Any, broker: int) -> Any:
    """Name a preferred replica for a fetched partition, and remove the records (``ReplicaManager.readFromLog``)."""
    if item.error_code or item.preferred_read_replica == broker:
        return item
    emptied = {"records": b""} if broker >= 0 else {}
    return replace(item, preferred_read_replica=broker, **emptied)


def _changed(entity: Entity, subject: RuleSubject, attributes: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """Change those items of a response that have one of the attributes and are about the rule's partition."""
    changes = {}
    for field in plain_fields(type(entity)):
        if struct_of(field):
            old = getattr(entity, field.name) or ()
            new = []
            for item in old:
                if not subject.matches(item):
                    new.append(item)
                elif any(hasattr(item, name) for name in attributes) and not _contains_subject(item, subject):
                    new.append(change(item))
                else:
                    new.append(_changed(item, subject, attributes, change))
            if any(before is not after for before, after in zip(old, new, strict=True)):
                changes[field.name] = tuple(new)
    return replace(entity, **changes) if changes else entity


def _contains_subject(item: Any, subject: RuleSubject) -> bool:
    """Return True if the rule is about some of the items within an item, such as a partition of a topic's."""
    about_topic = any(hasattr(item, name) for name in TOPIC_FIELDS)
    wider = number_of(item) is None and (
        subject.partition is not None or (subject.topic is not None and not about_topic)
    )
    kind: type[Entity] = type(item)
    return wider and _has_item_errors(kind)


_READ_ONLY = """
    ApiVersions ConsumerGroupDescribe DescribeCluster DescribeConfigs DescribeGroups DescribeTopicPartitions Fetch
    FindCoordinator ListOffsets Metadata OffsetFetch OffsetForLeaderEpoch
"""
READ_ONLY = frozenset(API_KEYS[name] for name in _READ_ONLY.split())
"""APIs that change nothing at a broker, so that an error can be put into the broker's own response."""


def refusal(request: Any, code: int) -> Any:
    """Build a response with the error for each topic and partition of a request, or for the whole request."""
    request_kind: type[RequestPayload] = type(request)
    kind = response_type(request_kind)
    errors = dict.fromkeys(ERROR_FIELDS, code)
    items: dict[str, Any] = {}
    for field in plain_fields(kind):
        struct = struct_of(field)
        if struct and any(subfield.name in TOPIC_FIELDS for subfield in plain_fields(struct)):
            topics = tuple(_refused_topic(struct, topic, errors) for topic in topics_in(request))
            items |= {field.name: topics} if topics else {}
    return build_entity(kind, items or errors)


_DIVISIBLE = frozenset(API_KEYS[name] for name in ("Produce", "OffsetCommit", "TxnOffsetCommit"))
"""APIs that change a partition whatever happens to the other partitions of the request."""


def divided_request(request: Any, subject: RuleSubject) -> tuple[Any | None, Any | None]:
    """Return the part of a request that a rule is not about, and the part that it is about; None for no part."""
    if subject.topic is None or request.__api_key__ not in _DIVISIBLE:
        return None, request
    kind: type[Entity] = type(request)
    topics = next(
        field.name
        for field in plain_fields(kind)
        if (struct := struct_of(field)) and any(inner.name in TOPIC_FIELDS for inner in plain_fields(struct))
    )
    parts: tuple[list[Any], list[Any]] = ([], [])
    for topic in getattr(request, topics):
        inner = _partitions_field(type(topic))
        is_named = subject.matches(topic)
        rest, named = list[Any](), list[Any]()
        for partition in getattr(topic, inner):
            (named if is_named and subject.matches(partition) else rest).append(partition)
        for part, partitions in zip(parts, (rest, named), strict=True):
            if partitions:
                part.append(replace(topic, **{inner: tuple(partitions)}))
    rest_request, named_request = (replace(request, **{topics: tuple(part)}) if part else None for part in parts)
    return rest_request, named_request


def joined_response(response: Any, refused: Any) -> Any:
    """Add the items of another response of the same API and version, which are about other partitions."""
    kind: type[Entity] = type(response)
    topics = next(field.name for field in plain_fields(kind) if struct_of(field))
    joined = list(getattr(response, topics))
    for topic in getattr(refused, topics):
        inner = _partitions_field(type(topic))
        keys = [name for name in TOPIC_FIELDS if hasattr(topic, name)]
        same = [i for i, item in enumerate(joined) if all(getattr(item, key) == getattr(topic, key) for key in keys)]
        if same:
            old = joined[same[0]]
            joined[same[0]] = replace(old, **{inner: (*getattr(old, inner), *getattr(topic, inner))})
        else:
            joined.append(topic)
    return replace(response, **{topics: tuple(joined)})


def _partitions_field(kind: type[Entity]) -> str:
    return next(field.name for field in plain_fields(kind) if (struct := struct_of(field)) and number_field(struct))


def _refused_topic(kind: type[Entity], topic: Any, errors: dict[str, Any]) -> Any:
    if isinstance(topic, str):
        values: dict[str, Any] = dict.fromkeys(TOPIC_FIELDS, topic)
    else:
        values = {name: getattr(topic, name) for name in TOPIC_FIELDS if hasattr(topic, name)}
    for field in plain_fields(kind):
        if (struct := struct_of(field)) and (number := number_field(struct)):
            values[field.name] = tuple(
                build_entity(struct, {number: number_of(partition), **errors}) for partition in partitions_in(topic)
            )
    return build_entity(kind, values | errors)
