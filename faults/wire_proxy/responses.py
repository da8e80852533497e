"""Changed responses of a broker (errors, hints, versions), and error responses built by the wire proxy.

Functions that change a decoded response return a changed copy, or the given object if nothing changes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from typing import Any

from kio.static.protocol import Entity, RequestPayload

from aftershock.faults.wire_proxy.messages import build_entity, number_field, struct_of
from aftershock.faults.wire_proxy.rules import (
    API_KEYS,
    TOPIC_FIELDS,
    Rule,
    RuleSubject,
    number_of,
    partitions_in,
    topics_in,
)
from aftershock.workloads.kafka.wire.codec import response_type
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.schema import plain_fields, tagged_fields

ERROR_FIELDS = ("error_code", "partition_error_code")
_WHOLE_RESPONSE_ERRORS = frozenset({70, 71, 106})
"""Errors of fetch sessions, such as FETCH_SESSION_ID_NOT_FOUND: they apply to a whole Fetch, never to a partition."""


@dataclass(frozen=True)
class BrokerView:
    """Broker of a client's connection, and the address of the wire proxy at which the client reaches each broker."""

    broker: int
    addresses: Mapping[int, Address]


def altered_response(response: Any, rule: Rule, subject: RuleSubject, broker_view: BrokerView) -> Any:
    if rule.do == "answer_error":
        response_kind: type[Entity] = type(response)
        if rule.error not in _WHOLE_RESPONSE_ERRORS and _has_item_errors(response_kind):
            return _changed(response, subject, ERROR_FIELDS, lambda item: _with_error(item, rule.error))
        return replace(response, error_code=rule.error) if hasattr(response, "error_code") else response

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
    emptied = {"records": b""} if hasattr(item, "records") else {}
    return replace(item, **{name: code for name in ERROR_FIELDS if hasattr(item, name)}, **emptied)


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
                elif any(hasattr(item, name) for name in attributes):
                    new.append(change(item))
                else:
                    new.append(_changed(item, subject, attributes, change))
            if any(before is not after for before, after in zip(old, new, strict=True)):
                changes[field.name] = tuple(new)
    return replace(entity, **changes) if changes else entity


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
