"""The proxy as a process: it says where it listens, minds what it is told, and ends with what it stands before."""

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
    """One that was started, with a guard of ours."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.guard = socket.create_server(("127.0.0.1", 0))
        ways = [["client_a-k1", "a", 1, list(broker.addresses[1])]]
        told = json.dumps({"ways": ways, "guard": list(self.guard.getsockname())})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aftershock.faults.wire_proxy", told], stdout=subprocess.PIPE
        )
        assert self.process.stdout
        self.said = json.loads(self.process.stdout.readline())

    def order(self, **said: Any) -> Any:
        with socket.create_connection(("127.0.0.1", self.said["control"]), DEADLINE_S) as connection:
            connection.sendall(json.dumps(said).encode() + b"\n")
            return json.loads(connection.makefile("rb").readline())


@pytest.fixture
def process(broker: ScriptedBroker) -> Iterator[Process]:
    started = Process(broker)
    yield started
    started.guard.close()
    started.process.kill()
    started.process.communicate()


def test_it_minds_what_it_is_told(broker: ScriptedBroker, process: Process) -> None:
    """A rule put in force from outside is met; taken away it is not, and taking it away again is no error."""
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


def test_it_ends_with_what_it_stands_before(process: Process) -> None:
    """Once nobody takes connections at its guard, it is gone within seconds, by itself."""
    assert process.process.poll() is None
    process.guard.close()
    assert 0 == process.process.wait(DEADLINE_S)
