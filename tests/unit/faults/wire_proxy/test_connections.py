"""Counts of the connections that clients open, by second."""

import time

import pytest

from aftershock.faults.wire_proxy.connections import MANY, Connections


def test_many_connections_in_a_second_are_told_once_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [7.5]
    monkeypatch.setattr(time, "monotonic_ns", lambda: round(now_s[0] * 1e9))
    connections = Connections()
    for _ in range(MANY):
        connections.opened("w-a-produce", 1)
    for _ in range(MANY - 1):
        connections.opened("w-b-produce", 1)
    assert [] == connections.take()
    now_s[0] = 8.1
    connections.opened("w-a-produce", 1)
    expected = {"event": "connections_opened", "at_ns": 7_000_000_000, "worker": "w-a-produce", "node_id": 1}
    assert [expected | {"connections": MANY}] == connections.take()
    now_s[0] = 9.0
    assert [] == connections.take()
