"""The proxy as a process: it prints its addresses, obeys commands, and ends with its cluster."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.tests.unit.scripted.client import Client
from aftershock.workloads.kafka.wire.connection import Address, Connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aftershock.tests.scripted_broker import ScriptedBroker


DEADLINE_S = 20.0


class Process:
    """A started proxy process, with a guard of the test."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.guard = socket.create_server(("127.0.0.1", 0))
        ways = [["client_a-k1", "a", 1, list(broker.addresses[1])]]
        told = json.dumps({"ways": ways, "guard": list(self.guard.getsockname())})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aftershock.faults.wire_proxy", told], stdout=subprocess.PIPE
        )
        assert self.process.stdout
        self.said = json.loads(self.process.stdout.readline())

    def order(self, **arguments: Any) -> Any:
        with socket.create_connection(("127.0.0.1", self.said["control"]), DEADLINE_S) as connection:
            connection.sendall(json.dumps(arguments).encode() + b"\n")
            return json.loads(connection.makefile("rb").readline())


@pytest.fixture
def process(broker: ScriptedBroker) -> Iterator[Process]:
    started = Process(broker)
    yield started
    started.guard.close()
    started.process.kill()
    started.process.communicate()


def test_rules_are_added_and_removed_by_command(broker: ScriptedBroker, process: Process) -> None:
    """A rule matches until it is removed, and a second removal is no error."""
    rule = {"name": "r", "do": "answer_error", "api": "Metadata", "error": 3}
    with Connection(Address("127.0.0.1", process.said["ports"]["client_a-k1"]), DEADLINE_S) as connection:
        broker.create("t")
        client = Client(connection)
        assert {"is": None} == process.order(do="add", rule=rule)
        assert 3 == client.ask("Metadata", 12, topics=[{"name": "t"}]).topics[0].error_code
        assert {"is": {"r": {"matched": 1, "hit": 1, "untouched": 0, "probed": 0}}} == process.order(do="rules")
        assert [{"is": None}] * 2 == [process.order(do="remove", name="r") for _ in range(2)]
        assert 0 == client.ask("Metadata", 12, topics=[{"name": "t"}]).topics[0].error_code
    assert "already" in [process.order(do="add", rule=rule) for _ in range(2)][1]["error"]
    assert "explode" in process.order(do="explode")["error"]
    assert "error" in process.order(do="add", rule={"name": "x"})


def test_it_ends_when_its_guard_is_gone(process: Process) -> None:
    """The process exits within seconds when its guard accepts no connections."""
    assert process.process.poll() is None
    process.guard.close()
    assert 0 == process.process.wait(DEADLINE_S)
