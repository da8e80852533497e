"""Which topics and partitions a message names, whatever its version calls them.

A topic goes by its name, or by its id where the version has ids (KIP-516). A Fetch of a session names only what has
changed (KIP-227), so it may be about any partition.
"""

import base64
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from aftershock.faults.wire_proxy.apis import FETCH

TOPIC_FIELDS = ("name", "topic", "topic_id")
NUMBER_FIELDS = ("index", "partition_index", "partition")


class Named(NamedTuple):
    """The topic, and the partition, that a rule is about; None: any. ``topic_id`` as Kafka writes it."""

    topic: str | None
    topic_id: str | None
    partition: int | None

    def is_topic(self, item: Any) -> bool:
        """Whether an item of a message is about the topic."""
        if self.topic is None:
            return True
        known = {self.topic, _uuid(self.topic_id)} - {None}
        return any(getattr(item, name) in known for name in TOPIC_FIELDS if _has(item, name))

    def is_partition(self, item: Any) -> bool:
        """Whether an item within a topic's is about the partition; it is, if it names none."""
        number = number_of(item)
        return self.partition is None or number is None or number == self.partition


ANY = Named(None, None, None)


def topics_in(message: Any) -> Iterator[tuple[str, Any]]:
    """The items that name a topic, each with the field of the message it is in."""
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, tuple):
            yield from ((field.name, item) for item in value if isinstance(item, str) or names_topic(item))


def partitions_in(topic: Any) -> Iterator[Any]:
    """What is said of each partition within a topic's item: an item of its own, or merely its number."""
    for field in fields(topic):
        value = getattr(topic, field.name)
        if isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, int) or number_of(item) is not None)


def about(request: Any, named: Named) -> bool:
    """Whether a request names that topic and partition, or may be about them without a word."""
    if named.topic is None or _is_of_session(request):
        return True
    for _, topic in topics_in(request):
        if isinstance(topic, str):
            if topic == named.topic:
                return True
        elif named.is_topic(topic):
            numbers = list(partitions_in(topic))
            if not numbers or any(named.is_partition(number) for number in numbers):
                return True
    return False


def number_of(item: Any) -> int | None:
    """The partition that an item is about."""
    if isinstance(item, int):
        return item
    return next((getattr(item, name) for name in NUMBER_FIELDS if _has(item, name)), None)


def _is_of_session(request: Any) -> bool:
    return request.__api_key__ == FETCH and getattr(request, "session_epoch", -1) > 0


def names_topic(item: Any) -> bool:
    """Whether an item is about a topic."""
    return is_dataclass(item) and any(_has(item, name) for name in TOPIC_FIELDS)


def _has(item: Any, name: str) -> bool:
    return hasattr(type(item), name)  # kio's classes have slots


@cache
def _uuid(text: str | None) -> UUID | None:
    return None if text is None else UUID(bytes=base64.urlsafe_b64decode(text + "=="))
