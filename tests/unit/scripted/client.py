"""A plain client for tests of the scripted broker: it sends the given requests and validates nothing."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from kio.index import load_request_schema

from aftershock.tests.scripted.messages import KEYS, make
from aftershock.workloads.kafka.wire.batch import parse
from aftershock.workloads.kafka.wire.batch_builder import build
from aftershock.workloads.kafka.wire.connection import Connection

TIMEOUT_S = 10
SHORT_S = 0.2  # for an answer that must not come


class Client:
    """Asks one node in chosen versions, with the fields that matter; the rest is zero."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        timeout_s = fields.pop("timeout_s", TIMEOUT_S)
        return self.connection.ask(make(load_request_schema(KEYS[api], version), fields), timeout_s)

    def produce(self, topic: str, batch: bytes, *, version: int = 12, partition: int = 0, acks: int = -1) -> Any:
        """The partition's part of the response, and the whole of it."""
        data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
        response = self.ask("Produce", version, acks=acks, topic_data=data)
        return response.responses[0].partition_responses[0], response

    def fetch(self, topic_id: UUID, offset: int, *, version: int = 16, partition: int = 0, **fields: Any) -> Any:
        told = {"max_bytes": 1 << 20, "session_epoch": -1, "max_wait": 0} | fields
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        asked |= {"current_leader_epoch": told.pop("leader_epoch", -1)}
        asked |= {"partition_max_bytes": told.pop("partition_max_bytes", 1 << 20)}
        return self.ask("Fetch", version, topics=[{"topic_id": topic_id, "partitions": [asked]}], **told)

    def read(self, topic_id: UUID, offset: int, **fields: Any) -> Any:
        """The partition's part of a fetch."""
        return self.fetch(topic_id, offset, **fields).responses[0].partitions[0]


Dial = Callable[..., Client]


def batch(count: int = 3, **told: Any) -> bytes:
    return build([b"value"] * count, timestamps_ms=list(range(1000, 1000 + count)), **told)


def bases(records: bytes) -> list[int]:
    return [parsed.base_offset for parsed in parse(bytes(records))]


def first_error(entity: Any) -> int:
    """The first error code in a response that isn't 0, at any depth."""
    for name in getattr(entity, "__slots__", ()):
        value = getattr(entity, name)
        found = int(value) if name == "error_code" else 0
        for item in value if isinstance(value, tuple) else (value,):
            found = found or first_error(item)
        if found:
            return found
    return 0
