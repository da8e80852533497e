"""Kafka's error codes by name, for clients that tell errors in words."""

from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode

UNKNOWN_SERVER_ERROR = -1

_CODES: dict[str, int] = {
    # librdkafka's own errors, and its own names of Kafka's
    **{name: code for name, code in vars(KafkaError).items() if isinstance(code, int)},
    **{code.name.upper(): int(code) for code in ErrorCode},
}


def code_of(name: str) -> int:
    """The code of an error that goes by this name in Kafka or in librdkafka; -1 for a name that neither knows."""
    return _CODES.get(name, UNKNOWN_SERVER_ERROR)
