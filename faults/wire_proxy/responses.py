"""Answers of a broker, changed: another error, no hints or false ones, fewer versions.

Each function gives a changed copy of a decoded response, or the very same object where there was nothing to change.

An answer that no broker gave: the response to a request, made up, with an error in it.

It names what the request named, each topic and each partition of it, and holds nothing else (``making.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kio.static.protocol import Entity, RequestPayload

from aftershock.faults.wire_proxy.messages import (
    API_KEYS,
    TOPIC_FIELDS,
    Named,
    made,
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
_OF_THE_WHOLE = frozenset({70, 71, 106})
"""FETCH_SESSION_ID_NOT_FOUND and its like are said of a whole Fetch, never of one partition of it."""


@dataclass(frozen=True)
class Place:
    """Where an answer comes from, and where clients find each broker."""

    broker: int
    addresses: Mapping[int, Address]


def altered(response: Any, rule: Rule, named: Named, place: Place) -> Any:
    """What the rule makes of an answer."""
    match rule.do:
        case "answer_error":
            return with_error(response, rule.error, named)
        case "cap_versions":
            return _with_versions(response, {API_KEYS[api]: cap for api, cap in rule.versions.items()})
        case _:
            for hint in rule.hints:
                response = _with_hint(response, hint, rule, named, place)
            return response


def with_error(response: Any, code: int, named: Named) -> Any:
    """The error on each topic or whatever else is answered one by one, else on each partition, else on the whole."""
    kind: type[Entity] = type(response)
    if code not in _OF_THE_WHOLE and _has_room_below(kind):
        return _each(response, named, ERROR_FIELDS, lambda item: _failed(item, code))
    return replace(response, error_code=code) if hasattr(response, "error_code") else response


def _failed(item: Any, code: int) -> Any:
    emptied = {"records": b""} if hasattr(item, "records") else {}
    return replace(item, **{name: code for name in ERROR_FIELDS if hasattr(item, name)}, **emptied)


@cache
def _has_room_below(kind: type[Entity]) -> bool:
    structs = [field.kind for field in plain_fields(kind) if field.is_array and not isinstance(field.kind, str)]
    return any(
        _has_room_below(struct) or any(field.name in ERROR_FIELDS for field in plain_fields(struct))
        for struct in structs
        if not isinstance(struct, str)
    )


def _with_versions(response: Any, caps: Mapping[int, int | None]) -> Any:
    """An API whose lowest version is above its cap isn't offered at all."""
    offered = []
    for entry in response.api_keys:
        cap = caps.get(entry.api_key, entry.max_version)
        if cap is not None and cap >= entry.min_version:
            offered.append(entry if cap >= entry.max_version else replace(entry, max_version=cap))
    return response if tuple(offered) == response.api_keys else replace(response, api_keys=tuple(offered))


def _with_hint(response: Any, hint: Hint, rule: Rule, named: Named, place: Place) -> Any:
    strip = rule.do == "strip_hints"
    match hint:
        case "session_id":
            known = getattr(response, "session_id", 0)
            return replace(response, session_id=0 if strip else rule.session_id) if known else response
        case "node_endpoints":
            endpoints = getattr(response, "node_endpoints", ())
            false = () if strip else _leading_to(endpoints, place.addresses.get(rule.broker))
            return response if false == endpoints else replace(response, node_endpoints=false)
        case "current_leader":
            broker = None if strip else rule.broker
            return _each(response, named, ("current_leader",), lambda item: _led_by(item, broker))
        case "preferred_replica":
            broker = -1 if strip else rule.broker
            sent_to = -1 if broker == place.broker else broker
            return _each(response, named, ("preferred_read_replica",), lambda item: _sent_to(item, sent_to))


def _leading_to(endpoints: tuple[Any, ...], address: Address | None) -> tuple[Any, ...]:
    if address is None:
        return endpoints
    return tuple(replace(endpoint, host=address.host, port=address.port) for endpoint in endpoints)


def _led_by(item: Any, broker: int | None) -> Any:
    """The hint names another leader in the same epoch, or (None) is gone; where there is none, none is made up."""
    kind: type[Entity] = type(item)
    none = next(field.default for field in tagged_fields(kind) if field.name == "current_leader")
    if item.current_leader == none:
        return item
    false: Any = none if broker is None else replace(item.current_leader, leader_id=broker)
    return item if false == item.current_leader else replace(item, current_leader=false)


def _sent_to(item: Any, broker: int) -> Any:
    """A broker that names a preferred replica sends no records (``ReplicaManager.readFromLog`` of Kafka 4.3)."""
    if item.error_code or item.preferred_read_replica == broker:
        return item
    emptied = {"records": b""} if broker >= 0 else {}
    return replace(item, preferred_read_replica=broker, **emptied)


def _each(entity: Any, named: Named, attributes: tuple[str, ...], change: Change) -> Any:
    """``entity`` with the outermost items changed that have one of the attributes and are about what is named."""
    kind: type[Entity] = type(entity)
    changes = {}
    for field in plain_fields(kind):
        if field.is_array and not isinstance(field.kind, str):
            old = getattr(entity, field.name) or ()
            new = tuple(_changed(item, named, attributes, change) for item in old)
            if any(one is not other for one, other in zip(old, new, strict=True)):
                changes[field.name] = new
    return replace(entity, **changes) if changes else entity


def _changed(item: Any, named: Named, attributes: tuple[str, ...], change: Change) -> Any:
    if (names_topic(item) and not named.is_topic(item)) or not named.is_partition(item):
        return item
    if any(hasattr(item, name) for name in attributes):
        return change(item)
    return _each(item, named, attributes, change)


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
"""APIs that change nothing at a broker: its own answer, with an error put in, serves better than one made up."""


def refusal(request: Any, code: int) -> Any:
    """The response that says ``code`` of all that the request names, or of the whole where it names nothing."""
    asked: type[RequestPayload] = type(request)
    kind = response_type(asked)
    topics = tuple(topic for _, topic in topics_in(request))
    said: dict[str, Any] = {}
    for field in plain_fields(kind):
        struct = struct_of(field)
        if struct and topics and any(each.name in TOPIC_FIELDS for each in plain_fields(struct)):
            said[field.name] = tuple(_topic(struct, topic, code) for topic in topics)
    return made(kind, said or dict.fromkeys(ERROR_FIELDS, code))


def _topic(kind: type[Entity], topic: Any, code: int) -> Any:
    names = TOPIC_FIELDS if isinstance(topic, str) else [name for name in TOPIC_FIELDS if hasattr(topic, name)]
    said: dict[str, Any] = {name: topic if isinstance(topic, str) else getattr(topic, name) for name in names}
    for field in plain_fields(kind):
        struct = struct_of(field)
        if struct and number_field(struct):
            said[field.name] = _partitions(struct, [number_of(each) for each in partitions_in(topic)], code)
    return made(kind, {**said, **dict.fromkeys(ERROR_FIELDS, code)})


def _partitions(kind: type[Entity], numbers: Sequence[int | None], code: int) -> tuple[Any, ...]:
    errors = dict.fromkeys(ERROR_FIELDS, code)
    return tuple(made(kind, {str(number_field(kind)): number, **errors}) for number in numbers)
