"""Open fetch sessions of a consumer, derived from its events."""

from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from aftershock.errors import AdminError
from aftershock.harness.kafka.groups import open_sessions, sessions_after_run


def line(event: str, node: int, session: int = 0, worker: str = "me") -> dict[str, object]:
    return {"worker": worker, "event": event, "node_id": node, "session_id": session}


def test_the_last_event_of_each_broker_decides() -> None:
    """A lost session is closed, its replacement is open, and other workers' sessions don't count."""
    events = [
        line("session_established", 1, 11),
        line("session_established", 2, 22),
        line("assigned", 2),
        line("session_lost", 1, 0),
        line("session_established", 1, 12),
        line("session_reset", 2, 22),
        line("session_established", 3, 33, worker="another"),
    ]
    assert {1: 12} == open_sessions(events, "me")


def test_a_client_without_events_has_no_sessions() -> None:
    assert {} == open_sessions([line("client_error", 1)], "me")


def test_sessions_that_brokers_still_have() -> None:
    """Each session counts once, also a lost session; `left` is null if a broker does not answer."""
    events = [
        line("session_established", 2, 22),
        line("session_lost", 2),
        line("session_established", 1, 11, "another"),
    ]
    known = {(1, 11)}

    def ask(request: Any, *, only: int) -> Any:
        if only == 3:
            raise AdminError("no broker answered", "NETWORK_EXCEPTION")
        found = (only, int(request.session_id)) in known
        code = ErrorCode.invalid_fetch_session_epoch if found else ErrorCode.fetch_session_id_not_found
        return SimpleNamespace(error_code=code)

    admin: Any = SimpleNamespace(ask=ask)
    assert {"told": 2, "left": [(1, 11)]} == sessions_after_run([*events, *events], admin)
    assert {"told": 3, "left": None} == sessions_after_run([*events, line("session_established", 3, 33)], admin)
    assert sessions_after_run([line("session_lost", 2)], admin) is None
