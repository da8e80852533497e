"""Names of clients in plans, and of a run's client processes (workers) in the journal, the events and the outcomes."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

Library: TypeAlias = Literal[
    "librdkafka",
    "franz-go",
    "sarama",
    "kafka-go",
    "kafka-python",
    "aiokafka",
    "kafkajs",
    "confluent-kafka-javascript",
    "rdkafka",
]
LIBRARIES: tuple[str, ...] = get_args(Library)
"""Clients with a `version`: shipped programs around a library, which are built from its package registry."""

Client: TypeAlias = Literal["confluent", "reference", "java", "exec", "service", Library]
"""Clients of a plan."""

ON_LIBRDKAFKA = ("confluent", "librdkafka", "confluent-kafka-javascript", "rdkafka")
"""Clients with librdkafka's names and defaults of settings."""

_SIGN, _INT = 1 << 31, 1 << 32


def worker_names(workload: str, arm: str, op: str, count: int = 1) -> tuple[str, ...]:
    """Return the names of an arm's ``count`` workers of an operation, numbered from 1 if there are several."""
    name = f"{workload}-{arm}-{op}"
    return (name,) if count == 1 else tuple(f"{name}-{number}" for number in range(1, count + 1))


def consumer_names(workload: str, arm: str, consume: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of an arm's consumers, those in reserve last; ``consume`` is the timeline's section."""
    reserve = consume.get("reserve") or {}
    return worker_names(workload, arm, "consume", consume.get("members", 1) + reserve.get(arm, 0))


def pipe_names(workload: str, arm: str, pipe: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a service's processes, those in reserve last; ``pipe`` is the timeline's section."""
    reserve = pipe.get("reserve") or {}
    return worker_names(workload, arm, "pipe", pipe["members"] + reserve.get(arm, 0))


def outputs_reader(workload: str, arm: str) -> str:
    """Return the name of the harness's reader of the outputs of an arm's pipe."""
    return f"{workload}-{arm}-outputs"


def topic_names(section: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the topics of a timeline's section ``produce``, ``consume`` or ``commit``; none of an empty section."""
    topic = section.get("topic")
    return tuple(section.get("topics") or ([] if topic is None else [topic]))


OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
"""Topics whose partitions' leaders coordinate consumer groups and transactions."""


def key_partition(key: str, partitions: int) -> int:
    """Return the partition of ``__consumer_offsets`` or ``__transaction_state`` that belongs to an ASCII key.

    The key is the name of a consumer group or a transactional id. Kafka takes Java's ``String.hashCode``, made positive
    (``GroupMetadataManager.partitionFor``, ``TransactionStateManager.partitionFor``).
    """
    hashed = 0
    for letter in key:
        hashed = (31 * hashed + ord(letter)) % _INT
    signed = hashed - _INT if hashed >= _SIGN else hashed
    return 0 if signed == -_SIGN else abs(signed) % partitions
