"""An answer that no broker gave: the response to a request, made up, with an error in it.

It names what the request named, each topic and each partition of it, and holds nothing else (``making.py``).
"""

from collections.abc import Sequence
from typing import Any

from kio.static.protocol import Entity, RequestPayload

from aftershock.faults.wire_proxy.alter import ERROR_FIELDS
from aftershock.faults.wire_proxy.apis import API_KEYS
from aftershock.faults.wire_proxy.making import made, number_field, struct_of
from aftershock.faults.wire_proxy.naming import TOPIC_FIELDS, number_of, partitions_in, topics_in
from aftershock.workloads.wire.codec import response_type
from aftershock.workloads.wire.schema import plain_fields

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
