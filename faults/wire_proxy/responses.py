"""Responses of a broker, changed (errors, hints, versions), and error responses built without a broker.

Each changing function returns a changed copy of a decoded response, or the same object if there was nothing to change.
A built response names each topic and partition that the request named, with the error, and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kio.static.protocol import Entity, RequestPayload

from aftershock.faults.wire_proxy.messages import (
    API_KEYS,
    TOPIC_FIELDS,
    RuleSubject,
    build_entity,
    names_topic,
    number_field,
    number_of,
    partitions_in,
    struct_of,
    topics_in,
)
from aftershock.faults.wire_proxy.rules import Hint, Rule
from aftershock.workloads.kafka.wire.codec import response_type
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.schema import plain_fields, tagged_fields

Change = Callable[[Any], Any]
ERROR_FIELDS = ("error_code", "partition_error_code")
_WHOLE_RESPONSE_ERRORS = frozenset({70, 71, 106})
"""Errors of fetch sessions, such as FETCH_SESSION_ID_NOT_FOUND, apply to a whole Fetch, never to a partition."""


@dataclass(frozen=True)
class BrokerView:
    """The broker of a connection, and the addresses at which the connection's client reaches all brokers."""

    broker: int
    addresses: Mapping[int, Address]


def altered_response(response: Any, rule: Rule, subject: RuleSubject, broker_view: BrokerView) -> Any:
    """Apply the rule to a response."""
    match rule.do:
        case "answer_error":
            return with_error(response, rule.error, subject)
        case "cap_versions":
            return _with_versions(response, {API_KEYS[api]: cap for api, cap in rule.versions.items()})
        case _:
            for hint in rule.hints:
                response = _with_hint(response, hint, rule, subject, broker_view)
            return response


def with_error(response: Any, code: int, subject: RuleSubject) -> Any:
    """Set the error on each outermost item with an error field, or else on the whole response."""
    kind: type[Entity] = type(response)
    if code not in _WHOLE_RESPONSE_ERRORS and _has_item_errors(kind):
        return _each(response, subject, ERROR_FIELDS, lambda item: _with_item_error(item, code))
    return replace(response, error_code=code) if hasattr(response, "error_code") else response


def _with_item_error(item: Any, code: int) -> Any:
    emptied = {"records": b""} if hasattr(item, "records") else {}
    return replace(item, **{name: code for name in ERROR_FIELDS if hasattr(item, name)}, **emptied)


@cache
def _has_item_errors(kind: type[Entity]) -> bool:
    structs = [field.kind for field in plain_fields(kind) if field.is_array and not isinstance(field.kind, str)]
    return any(
        _has_item_errors(struct) or any(field.name in ERROR_FIELDS for field in plain_fields(struct))
        for struct in structs
        if not isinstance(struct, str)
    )


def _with_versions(response: Any, caps: Mapping[int, int | None]) -> Any:
    """Cap the offered versions; an API whose lowest version is above its cap isn't offered."""
    offered = []
    for entry in response.api_keys:
        cap = caps.get(entry.api_key, entry.max_version)
        if cap is not None and cap >= entry.min_version:
            offered.append(entry if cap >= entry.max_version else replace(entry, max_version=cap))
    return response if tuple(offered) == response.api_keys else replace(response, api_keys=tuple(offered))


def _with_hint(response: Any, hint: Hint, rule: Rule, subject: RuleSubject, broker_view: BrokerView) -> Any:
    strip = rule.do == "strip_hints"
    match hint:
        case "session_id":
            session_id = getattr(response, "session_id", 0)
            return replace(response, session_id=0 if strip else rule.session_id) if session_id else response
        case "node_endpoints":
            endpoints = getattr(response, "node_endpoints", ())
            false = () if strip else _with_endpoint(endpoints, broker_view.addresses.get(rule.broker))
            return response if false == endpoints else replace(response, node_endpoints=false)
        case "current_leader":
            broker = None if strip else rule.broker
            return _each(response, subject, ("current_leader",), lambda item: _with_leader(item, broker))
        case "preferred_replica":
            broker = -1 if strip else rule.broker
            replica = -1 if broker == broker_view.broker else broker
            return _each(response, subject, ("preferred_read_replica",), lambda item: _with_replica(item, replica))


def _with_endpoint(endpoints: tuple[Any, ...], address: Address | None) -> tuple[Any, ...]:
    if address is None:
        return endpoints
    return tuple(replace(endpoint, host=address.host, port=address.port) for endpoint in endpoints)


def _with_leader(item: Any, broker: int | None) -> Any:
    """Name another leader in the same epoch, or none (None); a response without the hint stays as it is."""
    kind: type[Entity] = type(item)
    none = next(field.default for field in tagged_fields(kind) if field.name == "current_leader")
    if item.current_leader == none:
        return item
    false: Any = none if broker is None else replace(item.current_leader, leader_id=broker)
    return item if false == item.current_leader else replace(item, current_leader=false)


def _with_replica(item: Any, broker: int) -> Any:
    """Name a preferred replica, without records, as a broker does (``ReplicaManager.readFromLog`` of Kafka 4.3)."""
    if item.error_code or item.preferred_read_replica == broker:
        return item
    emptied = {"records": b""} if broker >= 0 else {}
    return replace(item, preferred_read_replica=broker, **emptied)


def _each(entity: Any, subject: RuleSubject, attributes: tuple[str, ...], change: Change) -> Any:
    """Change the outermost items that have one of the attributes and match the rule's topic and partition."""
    kind: type[Entity] = type(entity)
    changes = {}
    for field in plain_fields(kind):
        if field.is_array and not isinstance(field.kind, str):
            old = getattr(entity, field.name) or ()
            new = tuple(_changed(item, subject, attributes, change) for item in old)
            if any(before is not after for before, after in zip(old, new, strict=True)):
                changes[field.name] = new
    return replace(entity, **changes) if changes else entity


def _changed(item: Any, subject: RuleSubject, attributes: tuple[str, ...], change: Change) -> Any:
    if (names_topic(item) and not subject.is_topic(item)) or not subject.is_partition(item):
        return item
    if any(hasattr(item, name) for name in attributes):
        return change(item)
    return _each(item, subject, attributes, change)


READ_ONLY = frozenset(
    API_KEYS[name]
    for name in (
        "Fetch",
        "ListOffsets",
        "Metadata",
        "OffsetFetch",
        "FindCoordinator",
        "ApiVersions",
        "OffsetForLeaderEpoch",
        "DescribeCluster",
        "DescribeTopicPartitions",
        "DescribeGroups",
        "DescribeConfigs",
        "ConsumerGroupDescribe",
    )
)
"""APIs that change nothing at a broker: its own response with an error is more faithful than a built one."""


def refusal(request: Any, code: int) -> Any:
    """Build the response with the error for everything that the request names, or for the whole if it names nothing."""
    request_kind: type[RequestPayload] = type(request)
    kind = response_type(request_kind)
    topics = tuple(topic for _, topic in topics_in(request))
    items: dict[str, Any] = {}
    for field in plain_fields(kind):
        struct = struct_of(field)
        if struct and topics and any(subfield.name in TOPIC_FIELDS for subfield in plain_fields(struct)):
            items[field.name] = tuple(_topic(struct, topic, code) for topic in topics)
    return build_entity(kind, items or dict.fromkeys(ERROR_FIELDS, code))


def _topic(kind: type[Entity], topic: Any, code: int) -> Any:
    names = TOPIC_FIELDS if isinstance(topic, str) else [name for name in TOPIC_FIELDS if hasattr(topic, name)]
    values: dict[str, Any] = {name: topic if isinstance(topic, str) else getattr(topic, name) for name in names}
    for field in plain_fields(kind):
        struct = struct_of(field)
        if struct and number_field(struct):
            numbers = [number_of(partition) for partition in partitions_in(topic)]
            values[field.name] = _partitions(struct, numbers, code)
    return build_entity(kind, {**values, **dict.fromkeys(ERROR_FIELDS, code)})


def _partitions(kind: type[Entity], numbers: Sequence[int | None], code: int) -> tuple[Any, ...]:
    errors = dict.fromkeys(ERROR_FIELDS, code)
    return tuple(build_entity(kind, {str(number_field(kind)): number, **errors}) for number in numbers)
