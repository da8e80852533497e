"""Which fetch sessions a consumer has open, by what its events have told so far."""

from aftershock.harness.fetch_sessions import open_sessions


def line(event: str, node: int, session: int = 0, worker: str = "me") -> dict[str, object]:
    return {"worker": worker, "event": event, "node_id": node, "session_id": session}


def test_the_last_word_about_each_broker_counts() -> None:
    """A session that was lost is gone, one that was granted in its place is there, and others' are others'."""
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


def test_nothing_told() -> None:
    """A client that tells nothing has none that we know of."""
    assert {} == open_sessions([line("client_error", 1)], "me")
