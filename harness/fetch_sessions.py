"""The fetch sessions (KIP-227) that a reference consumer has open, as its events tell."""

from collections.abc import Iterable, Mapping
from typing import Any

from aftershock.faults.values import BrokerId

_OPENED = "session_established"
_CLOSED = {"session_refused", "session_lost", "session_reset", "session_closed"}


def open_sessions(events: Iterable[Mapping[str, Any]], worker: str) -> dict[BrokerId, int]:
    """The id of the session with each broker. The events of a run, in the order in which they were written."""
    sessions: dict[BrokerId, int] = {}
    for line in events:
        if line.get("worker") == worker and line.get("event") == _OPENED:
            sessions[BrokerId(line["node_id"])] = line["session_id"]
        elif line.get("worker") == worker and line.get("event") in _CLOSED:
            sessions.pop(BrokerId(line["node_id"]), None)
    return sessions
