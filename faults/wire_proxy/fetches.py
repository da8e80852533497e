"""What clients fetch, read from the wire: bytes on each link, fetch sessions (KIP-227), brokers that serve (KIP-392).

A client's own counters say what it believes. The wire proxy sees what the client sent and what it got, in the same way
for each client library, so a claim about several clients is measured here.

* Counters by client id and broker, cumulative: ``sent_bytes`` and ``received_bytes`` of all requests, and for each kind
  of Fetch request (``full``, ``incremental``) ``fetches_<kind>``, ``fetch_request_bytes_<kind>``,
  ``fetch_response_bytes_<kind>`` (whole frames) and ``fetch_record_bytes_<kind>``. ``fetches_sessionless`` are those of
  the full requests that open no session.
* Events: ``wire_session_established``, ``wire_session_refused`` (a full request that asked for a session got none),
  ``wire_session_lost`` (error 70, 71 or 106), ``wire_session_closed`` (the client closed it); ``wire_served`` when the
  records of a partition come from another broker than before; ``wire_replica_named`` when a leader names a replica.

Only the fixed head of a Fetch request is read (``FetchRequest.json``), which is the same in versions 7 to 18.
"""

import struct
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from kio.index import KioIndexError, load_response_schema
from kio.schema.errors import ErrorCode

from aftershock.errors import ProtocolError
from aftershock.faults.wire_proxy.messages import RequestHead
from aftershock.faults.wire_proxy.rules import API_KEYS
from aftershock.faults.wire_proxy.streams import Piece
from aftershock.workloads.kafka.wire.codec import PREFIX
from aftershock.workloads.kafka.wire.decoder import decode
from aftershock.workloads.kafka.wire.schema import skip_tagged_fields

FETCH = API_KEYS["Fetch"]
NO_SESSION, INITIAL_EPOCH, FINAL_EPOCH = 0, 0, -1  # KIP-227
SESSIONS_SINCE = 7
_FLEXIBLE_SINCE, _NO_REPLICA_ID_SINCE = 12, 15
_FIXED_BYTES = 10
"""Size of a request header before the client id: API key, version, correlation id, and the length of the client id."""
_LIMITS_BYTES = 13
"""Size of max_wait_ms, min_bytes, max_bytes and isolation_level."""
_SESSION = struct.Struct(">ii")
_LOST = frozenset({70, 71, 106})  # session id not found, invalid session epoch, session topic id error
EVENTS_MAX = 5_000
"""Events that wait for the run, which takes them every second; when there are more, the oldest are discarded."""


class Asked(NamedTuple):
    """What a Fetch request asked for; ``session`` and ``epoch`` are as in the request."""

    session: int
    epoch: int

    @property
    def kind(self) -> str:
        return "full" if self.epoch in (INITIAL_EPOCH, FINAL_EPOCH) else "incremental"

    @property
    def closes(self) -> bool:
        return self.session != NO_SESSION and self.epoch == FINAL_EPOCH


def read_asked(frame: Piece, version: int) -> Asked:
    """Read the session of a Fetch request (a frame with its length prefix); versions before 7 have no session."""
    if version < SESSIONS_SINCE:
        return Asked(NO_SESSION, FINAL_EPOCH)
    at = PREFIX.size + _FIXED_BYTES
    (size,) = struct.unpack_from(">h", frame, at - 2)
    at += max(0, size)
    if version >= _FLEXIBLE_SINCE:
        at = skip_tagged_fields(frame, at)
    at += 0 if version >= _NO_REPLICA_ID_SINCE else 4
    return Asked(*_SESSION.unpack_from(frame, at + _LIMITS_BYTES))


class FetchObserver:
    """Counters and events of all clients' fetches since the observer was made; events are given once."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, int], Counter[str]] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._serving: dict[tuple[str, str, int], int] = {}
        """Broker that last served records, by client, topic (or topic id) and partition."""

    def count_bytes(self, client: str, broker: int, direction: str, size: int) -> None:
        self._of(client, broker)[f"{direction}_bytes"] += size

    def saw_request(self, head: RequestHead, frame: Piece, broker: int) -> Asked:
        """Count a Fetch request, and return what it asked for."""
        asked, client = read_asked(frame, head.version), head.client_id or "-"
        counts = self._of(client, broker)
        counts[f"fetches_{asked.kind}"] += 1
        counts[f"fetch_request_bytes_{asked.kind}"] += len(frame)
        counts["fetches_sessionless"] += asked == (NO_SESSION, FINAL_EPOCH)
        if asked.closes:
            self._add("session_closed", client, broker, session_id=asked.session)
        return asked

    def saw_response(self, head: RequestHead, asked: Asked, frame: Piece, broker: int) -> None:
        """Count the response to a Fetch request that was counted before."""
        client = head.client_id or "-"
        counts = self._of(client, broker)
        counts[f"fetch_response_bytes_{asked.kind}"] += len(frame)
        try:
            response = _decoded(frame, head.version)
        except (ProtocolError, KioIndexError, ValueError):
            counts["fetches_undecoded"] += 1
            return
        error, session = int(getattr(response, "error_code", 0)), int(getattr(response, "session_id", NO_SESSION))
        if error in _LOST:
            self._add("session_lost", client, broker, session_id=asked.session, error=ErrorCode(error).name)
        elif not error and asked.epoch == INITIAL_EPOCH:
            self._add(f"session_{'established' if session else 'refused'}", client, broker, session_id=session)
        for topic, partition in _partitions(response):
            size = len(partition.records or b"")
            counts[f"fetch_record_bytes_{asked.kind}"] += size
            place = (client, topic, int(partition.partition_index))
            named = int(getattr(partition, "preferred_read_replica", -1))
            if named >= 0:
                self._add("replica_named", client, broker, partition=place[2], replica=named)
            if size and self._serving.get(place) != broker:
                self._serving[place] = broker
                self._add("served", client, broker, partition=place[2])

    def take(self) -> list[dict[str, Any]]:
        """Return the events since the last call, with times by ``time.monotonic_ns()``."""
        events = list(self._events)
        self._events.clear()
        return events

    def _of(self, client: str, broker: int) -> Counter[str]:
        return self.counters.setdefault((client, broker), Counter())

    def _add(self, event: str, client: str, broker: int, **details: object) -> None:
        line = {"event": f"wire_{event}", "at_ns": time.monotonic_ns(), "worker": client, "node_id": broker, **details}
        self._events.append(line)


def _decoded(frame: Piece, version: int) -> Any:
    kind = load_response_schema(FETCH, version)
    _, at = decode(kind.__header_schema__, frame, PREFIX.size)
    return decode(kind, frame, at)[0]


def _partitions(response: Any) -> Iterator[tuple[str, Any]]:
    for topic in response.responses:
        name = str(getattr(topic, "topic", None) or getattr(topic, "topic_id", ""))
        for partition in topic.partitions:
            yield name, partition
