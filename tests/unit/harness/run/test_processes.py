"""Sockets of a process, found by the kernel's tables and hung up from outside."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftershock.harness.run.client_processes import connections, shut_down_connection


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as here:
        there, _ = server.accept()
        with there:
            there.settimeout(5.0)
            yield here, there


def test_hung_up_its_next_read_is_the_end(ends: tuple[socket.socket, socket.socket]) -> None:
    """The connection ends as if its broker had closed it, and no descriptor of the harness stays open."""
    here, there = ends
    (held,) = [held for held in connections(os.getpid()).values() if held.descriptor == here.fileno()]
    before = _open_files()
    shut_down_connection(os.getpid(), held)
    assert b"" == here.recv(1)
    assert b"" == there.recv(1)
    assert before == _open_files()


@pytest.mark.parametrize("into", ["a file", "another connection"])
def test_one_that_ended_meanwhile_is_left_alone(
    ends: tuple[socket.socket, socket.socket], tmp_path: Path, into: str
) -> None:
    """The descriptor now belongs to a file or to another connection, which must not be shut down."""
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
