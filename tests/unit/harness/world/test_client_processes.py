"""Faults on client processes, with real processes: a client is its worker and all processes that the worker started."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError
from aftershock.harness.world import client_processes
from aftershock.harness.world.client_processes import ClientProcesses, connections, shut_down_connection
from aftershock.tests.mock_cluster import MockCluster
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.tests.unit.workloads.load.test_fleet import READY_S, rows, until
from aftershock.workloads.adapters.conformance.bench import PARTITIONS
from aftershock.workloads.load.fleet import Fleet
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.spool import TMPFS

if TYPE_CHECKING:
    from collections.abc import Iterator


PROGRAM = Path(__file__).parents[4] / "docs" / "examples" / "exec_client.py"


@pytest.fixture(scope="module")
def mock_cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest, mock_cluster: MockCluster) -> Bench:
    """A run with an id of its own, so that no other workers match."""
    mock_cluster.create(request.node.originalname, PARTITIONS)
    bench = Bench(tmp_path, mock_cluster.bootstrap, request.node.originalname)
    bench._common["run_id"] = f"run-{uuid.uuid4()}"
    return bench


def crew_of(bench: Bench) -> ClientProcesses:
    return ClientProcesses(bench._common["run_id"], bench.spool)


def states(crew: ClientProcesses) -> dict[str, str]:
    return {client.name: client.state for client in crew.members()}


async def test_a_kill_takes_the_worker_and_its_program(bench: Bench) -> None:
    """Both processes of a worker with a program end, the other worker lives; after the release the worker restarts."""
    program = bench.produce(worker="mine", client="exec", command=(sys.executable, str(PROGRAM)))
    async with Fleet([program, bench.produce(worker="other", producer_id=1)], bench.logs) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        crew = crew_of(bench)
        whole = client_processes.workers(bench._common["run_id"])["mine"]
        assert len(whole) >= 2
        await asyncio.to_thread(crew.kill, "mine")
        assert not {process.pid for process in whole} & {
            process.pid for session in client_processes.workers(bench._common["run_id"]).values() for process in session
        }
        assert states(crew) == {"mine": "exited", "other": "running"}
        with pytest.raises(FaultError, match="the client mine is not running"):
            crew.kill("mine")
        crew.release("mine")
        crew.release("mine")
        await until(lambda: states(crew)["mine"] == "running", "another life")
        await until(lambda: "mine" in fleet.progress() and fleet.progress()["mine"].failed > 0, "what was due")


TALKATIVE = """
import json, os, sys, time
sys.stdin.readline()
print('{{"say": "assigned", "partitions": [0]}}')
print('{{"say": "ready"}}', flush=True)
while not os.path.exists({flag!r}):
    time.sleep(0.01)
records = [dict(say="record", partition=0, offset=offset, mark=None, size_bytes=3) for offset in range({records})]
print(*map(json.dumps, records), sep="\\n", flush=True)
os.remove({flag!r})
time.sleep(60)
"""


async def test_what_a_program_reported_before_its_death_is_recorded(bench: Bench, tmp_path: Path) -> None:
    """Its commits may follow these reports, so they must not be lost."""
    records, flag = 10_000, tmp_path / "due"
    program = (sys.executable, "-c", TALKATIVE.format(records=records, flag=str(flag)))
    reader = bench.consume(worker="mine", client="exec", command=program, group="g")
    async with Fleet([reader], bench.logs) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        crew = crew_of(bench)
        flag.touch()
        while flag.exists():  # noqa: ASYNC110 -- without a pause, so that the worker has not read them all
            await asyncio.sleep(0)
        await asyncio.to_thread(crew.kill, "mine")
    convert(bench.spool, bench.outcomes)
    assert records == len(rows(bench.outcomes, "mine"))


async def test_a_pause_freezes_worker_and_program(bench: Bench) -> None:
    """Both processes read back as stopped, the worker's heartbeat stops, and both continue after the resume."""
    program = bench.produce(worker="mine", client="exec", command=(sys.executable, str(PROGRAM)))
    async with Fleet([program], bench.logs) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        crew = crew_of(bench)
        await until(lambda: crew.heartbeat("mine") is not None, "a sign of life")
        crew.pause("mine")
        await until(lambda: states(crew) == {"mine": "paused"}, "every process of it stopped")
        frozen = crew.heartbeat("mine")
        whole = client_processes.workers(bench._common["run_id"])["mine"]
        assert {process.state for process in whole} == {"T"}
        crew.resume("mine")
        crew.resume("mine")
        await until(lambda: states(crew) == {"mine": "running"} and crew.heartbeat("mine") != frozen, "it goes on")


async def test_a_pause_waits_for_the_kernel(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP stops a process that waits for a CPU later; a pause ends when the process stands still."""
    send = client_processes.send_signal
    monkeypatch.setattr(client_processes, "send_signal", lambda *sent: threading.Timer(0.3, send, sent).start())
    async with Fleet([bench.produce(worker="mine")], bench.logs) as fleet:
        await fleet.start(READY_S)
        crew_of(bench).pause("mine")
        assert {"mine": "paused"} == states(crew_of(bench))
        send(client_processes.workers(bench._common["run_id"])["mine"], signal.SIGCONT)
        monkeypatch.setattr(client_processes, "send_signal", lambda *_: None)
        monkeypatch.setattr(client_processes, "_PAUSE_DEADLINE_S", 0.2)
        with pytest.raises(FaultError, match=r"the client mine still run 0.2 s after SIGSTOP"):
            crew_of(bench).pause("mine")


async def test_only_the_connections_of_one_client_are_closed(bench: Bench) -> None:
    """Every connection of one client closes and it connects again; the other client keeps all its connections."""
    both = [bench.produce(worker="hit"), bench.produce(worker="spared", producer_id=1)]
    async with Fleet(both, bench.logs) as fleet:
        await fleet.start(READY_S)
        await fleet.go(bench.now_us())
        await until(lambda: fleet.progress().get("hit") is not None, "some records")
        crew = crew_of(bench)
        had, spared = crew.connections("hit"), crew.connections("spared")
        assert had
        assert spared
        crew.disconnect("hit")
        await until(lambda: not had & crew.connections("hit"), "its connections gone")
        await until(lambda: bool(crew.connections("hit")), "new ones")
        assert spared <= crew.connections("spared")
        ok = fleet.progress()["hit"].ok
        await until(lambda: fleet.progress()["hit"].ok > ok + 20, "records over the new ones")


async def test_a_frozen_worker_of_a_dead_runner_can_be_ended(bench: Bench) -> None:
    """``heal`` kills the workers that a dead runner left, also frozen workers and their programs."""
    program = bench.produce(worker="mine", client="exec", command=(sys.executable, str(PROGRAM)))
    async with Fleet([program], bench.logs) as fleet:
        await fleet.start(READY_S)
        crew_of(bench).pause("mine")
        client_processes.kill_workers(bench._common["run_id"])
        await until(lambda: not client_processes.workers(bench._common["run_id"]), "nothing left of it")


def test_without_a_run_there_are_no_clients() -> None:
    """A release is no error."""
    crew = ClientProcesses(f"run-{uuid.uuid4()}")
    assert crew.members() == []
    assert crew.heartbeat("x") is None
    crew.release("x")


def test_the_spool_of_a_dead_runner_has_no_clients() -> None:
    """Its rows are for ``heal`` to save."""
    run_id = f"run-{uuid.uuid4()}"
    left = TMPFS / f"aftershock-{run_id}.999999999:1"
    left.mkdir()
    try:
        assert client_processes.spool_of(run_id) is None
    finally:
        left.rmdir()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as here:
        there, _ = server.accept()
        with there:
            there.settimeout(5.0)
            yield here, there


def test_the_next_read_of_a_shut_down_connection_ends(ends: tuple[socket.socket, socket.socket]) -> None:
    """The connection ends as if its broker had closed it, and the harness leaves no descriptor open."""
    here, there = ends
    (held,) = [held for held in connections(os.getpid()).values() if held.descriptor == here.fileno()]
    before = _open_files()
    shut_down_connection(os.getpid(), held)
    assert b"" == here.recv(1)
    assert b"" == there.recv(1)
    assert before == _open_files()


@pytest.mark.parametrize("into", ["a file", "another connection"])
def test_a_reused_descriptor_is_not_shut_down(
    ends: tuple[socket.socket, socket.socket], tmp_path: Path, into: str
) -> None:
    """The descriptor now belongs to a file or to another connection."""
    here, there = ends
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as doomed:
        (held,) = [held for held in connections(os.getpid()).values() if held.descriptor == doomed.fileno()]
        with (tmp_path / "notes").open("w") as notes:
            os.dup2((notes if into == "a file" else here).fileno(), doomed.fileno())
        before = _open_files()
        shut_down_connection(os.getpid(), held)
        assert before == _open_files()
    here.sendall(b"x")
    assert b"x" == there.recv(1)


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
