"""A small client that requests versions, hints, sessions and replicas, which faults of the wire proxy falsify.

It repeats its requests over its own connections to a broker that leads a partition and to a broker that doesn't.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kio.index import load_request_schema

from aftershock.faults.runtime.record import Clock
from aftershock.tests.chaos.kinds.probe import TOPIC
from aftershock.tests.scripted.messages import KEYS, make
from aftershock.workloads.kafka.wire.batch_builder import build
from aftershock.workloads.kafka.wire.connection import Address, Connection

TURN_S, TIMEOUT_S = 0.15, 5.0


@dataclass(frozen=True)
class Turn:
    """Result of one turn. ``error`` and the hints ``leader`` and ``endpoints`` answer a record sent to
    a broker that does not lead; ``produce`` is the highest version.
    """

    t_us: int
    produce: int
    error: int
    leader: int
    endpoints: tuple[tuple[int, int], ...]
    session: int
    replica: int


class Looker:
    """Sends its requests about partition 0 of the probe's topic to the leader and to another broker."""

    def __init__(self, leading: Address, other: Address, topic_id: UUID, clock: Clock) -> None:
        self._leading, self._other, self._topic_id, self._clock = leading, other, topic_id, clock
        self.turns: list[Turn] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="looker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(TURN_S):
            now_us = self._clock.now_us()
            try:
                self.turns.append(self._turn(now_us))
            except OSError:  # A version cap closes connections when it starts and when it ends.
                time.sleep(TURN_S)

    def _turn(self, now_us: int) -> Turn:
        with Connection(self._leading, TIMEOUT_S) as leading, Connection(self._other, TIMEOUT_S) as other:
            versions = {each.api_key: each.max_version for each in _ask(leading, "ApiVersions", 0).api_keys}
            refused = _ask(other, "Produce", 12, acks=-1, topic_data=[_produced()], timeout=1000)
            refusal = refused.responses[0].partition_responses[0]
            fetched = _ask(leading, "Fetch", 16, topics=[self._fetched()], max_bytes=1, session_epoch=0, rack_id="a")
        replica = fetched.responses[0].partitions[0].preferred_read_replica
        endpoints = tuple((each.node_id, each.port) for each in refused.node_endpoints)
        leader = refusal.current_leader.leader_id
        return Turn(now_us, versions.get(0, -1), refusal.error_code, leader, endpoints, fetched.session_id, replica)

    def _fetched(self) -> dict[str, Any]:
        return {"topic_id": self._topic_id, "partitions": [{"partition": 0, "partition_max_bytes": 1}]}


def _produced() -> dict[str, Any]:
    return {"name": TOPIC, "partition_data": [{"index": 0, "records": build([b"x"], timestamps_ms=[0])}]}


def _ask(connection: Connection, api: str, version: int, **fields: Any) -> Any:
    return connection.ask(make(load_request_schema(KEYS[api], version), fields))
