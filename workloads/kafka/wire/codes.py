"""Kafka's error codes, and groups of error codes that Kafka's clients treat alike.

``RETRIABLE`` and ``INVALID_METADATA`` are the errors in ``org.apache.kafka.common.protocol.Errors`` of Kafka 4.3 whose
exceptions extend ``RetriableException`` and ``InvalidMetadataException``.
"""

from kio.schema.errors import ErrorCode

INVALID_METADATA: frozenset[int] = frozenset({3, 5, 6, 9, 13, 56, 72, 74, 80, 83, 84, 100, 103})
"""Errors of a request that was based on outdated metadata; all of these codes are retriable."""

RETRIABLE: frozenset[int] = INVALID_METADATA | frozenset(
    {2, 7, 14, 15, 16, 19, 20, 41, 51, 70, 71, 75, 78, 88, 89, 106, 122, 123, 133}
)
"""Errors after which a client may send the same request again."""

HOPELESS: frozenset[int] = frozenset({17, 29})
"""INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED: this client can't get the topic's metadata."""

COORDINATOR_MOVED: frozenset[int] = frozenset({15, 16})
"""COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: errors after which a client finds the coordinator again."""

OFFSET_OUT_OF_RANGE = 1


def name(code: int) -> str:
    """Return Kafka's name of an error code, such as ``NOT_LEADER_OR_FOLLOWER``, or ``CODE_<n>`` for an unknown code."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"CODE_{code}"
