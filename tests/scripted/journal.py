"""The received requests, and the script that each of them met."""

import itertools
import time
from typing import Any

from aftershock.tests.scripted.call import named, partitions_of
from aftershock.tests.scripted.cluster import Cluster
from aftershock.tests.scripted.messages import Request, plain
from aftershock.tests.scripted.script import PLAIN, Partition, Script
from aftershock.workloads.kafka.wire.batch import AFTER_CRC, UNTIL_CRC


class Journal:
    """All requests in order of arrival, as JSON has them (``Seen`` says what is in them)."""

    def __init__(self, cluster: Cluster) -> None:
        self.seen: list[dict[str, Any]] = []
        self.scripts: dict[int, Script] = {}
        self._numbers = itertools.count(1)
        self._connections = itertools.count()
        self._cluster = cluster

    def add(self, script: Script) -> int:
        number = next(self._numbers)
        self.scripts[number] = script
        return number

    def next_connection(self) -> int:
        """The number of a new connection, of whatever node."""
        return next(self._connections)

    def take(self, node: int, request: Request, connection: int, size_bytes: int) -> Script:
        """Write a request down; the script that it meets, the oldest first."""
        entries = [(self._place(topic, number), entry) for topic, number, entry in _entries(request.body)]
        fields = plain(request.body) | {"partition_fields": {f"{t}/{p}": _told(e) for (t, p), e in entries}}
        if getattr(request.body, "forgotten_topics_data", ()):
            fields["forgotten"] = [
                f"{t}/{p}"
                for topic in request.body.forgotten_topics_data
                for t, p in (self._place(named(topic), number) for number in topic.partitions)
            ]
        if request.api == "LeaveGroup":
            fields["leaving"] = [plain(member) for member in getattr(request.body, "members", ())]
        if request.api == "Metadata":
            fields["topics"] = request.body.topics and [str(named(topic)) for topic in request.body.topics]
        places = tuple(place for place, _ in entries)
        self.seen.append(
            {
                "number": len(self.seen),
                "time_ms": time.monotonic() * 1000,
                "node": node,
                "api": request.api,
                "version": request.version,
                "client_id": request.client_id,
                "connection": connection,
                "size_bytes": size_bytes,
                "partitions": places,
                "fields": fields,
            }
        )
        return next((s for s in self.scripts.values() if s.meets(request.api, node, places)), PLAIN)

    def _place(self, topic: Any, number: int) -> Partition:
        known = self._cluster.topic(topic)
        return known.name if known else str(topic), number


def _entries(body: Any) -> list[tuple[Any, int, Any]]:
    groups = getattr(body, "groups", None)
    return [entry for each in groups or (body,) for entry in partitions_of(each)]


def _told(entry: Any) -> dict[str, Any]:
    if isinstance(entry, int):
        return {}
    records = getattr(entry, "records", None)
    return plain(entry) | (_batch(bytes(records)) if records else {})


def _batch(records: bytes) -> dict[str, Any]:
    """What matters of the header of a produced batch, whether it is sound or not."""
    if len(records) < UNTIL_CRC.size + AFTER_CRC.size:
        return {}
    attributes, _, _, _, producer_id, epoch, sequence, count = AFTER_CRC.unpack_from(records, UNTIL_CRC.size)
    return {
        "attributes": attributes,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "count": count,
    }
