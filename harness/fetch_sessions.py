"""The fetch sessions (KIP-227) that reference consumers have or had open, as their events tell."""

from collections.abc import Iterable, Mapping
from typing import Any

from aftershock.errors import AdminError
from aftershock.faults.values import BrokerId
from aftershock.harness.admin import Admin
from aftershock.harness.kafka.fetch_sessions import is_open

_OPENED = "session_established"
_CLOSED = {"session_refused", "session_lost", "session_reset", "session_closed"}


Session = tuple[BrokerId, int]


def open_sessions(events: Iterable[Mapping[str, Any]], worker: str) -> dict[BrokerId, int]:
    """The id of the session with each broker. The events of a run, in the order in which they were written."""
    sessions: dict[BrokerId, int] = {}
    for line in events:
        if line.get("worker") == worker and line.get("event") == _OPENED:
            sessions[BrokerId(line["node_id"])] = line["session_id"]
        elif line.get("worker") == worker and line.get("event") in _CLOSED:
            sessions.pop(BrokerId(line["node_id"]), None)
    return sessions


def told_sessions(events: Iterable[Mapping[str, Any]]) -> list[Session]:
    """Every session that was ever granted to any of them."""
    return sorted({(BrokerId(line["node_id"]), line["session_id"]) for line in events if line.get("event") == _OPENED})


def still_open(sessions: Iterable[Session], admin: Admin) -> list[Session] | None:
    """Those that their brokers know; None where a broker doesn't tell."""
    try:
        return [each for each in sessions if is_open(admin, *each)]
    except AdminError:
        return None
