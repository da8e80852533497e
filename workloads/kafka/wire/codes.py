"""Kafka's error codes, and the families that its clients act by.

The numbers are kio's ``ErrorCode`` (an ``IntEnum``). A broker newer than kio may send others: ``name`` and the families
take any integer. ``RETRIABLE`` and ``INVALID_METADATA`` are those of ``org.apache.kafka.common.protocol.Errors`` in
Kafka 4.3: the exceptions that extend ``RetriableException``, and of these ``InvalidMetadataException``.
"""

from kio.schema.errors import ErrorCode

INVALID_METADATA: frozenset[int] = frozenset({3, 5, 6, 9, 13, 56, 72, 74, 80, 83, 84, 100, 103})
"""The cached metadata is out of date: refresh it. All of them are retriable."""

RETRIABLE: frozenset[int] = INVALID_METADATA | frozenset(
    {2, 7, 14, 15, 16, 19, 20, 41, 51, 70, 71, 75, 78, 88, 89, 106, 122, 123, 133}
)
"""The same request may succeed later."""

HOPELESS: frozenset[int] = frozenset({17, 29})
"""INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED: whatever one waits for, that topic's metadata won't come."""

COORDINATOR_MOVED: frozenset[int] = frozenset({15, 16})
"""COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: look for the coordinator, then ask again."""

OFFSET_OUT_OF_RANGE = 1


def name(code: int) -> str:
    """Kafka's name of an error code: ``NOT_LEADER_OR_FOLLOWER``; ``CODE_<n>`` for one that kio doesn't know."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"CODE_{code}"
