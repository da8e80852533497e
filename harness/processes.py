"""Processes of ours as the kernel has them (proc(5)): found, signalled and looked into by their ids, safely.

An id may be used again at any time, so a signal goes through a descriptor of the process, opened before it is asked
once more whether it is still the one that is meant.
"""

import ctypes
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_ESTABLISHED = "01"
_PIDFD_GETFD = 438  # pidfd_getfd(2), Linux 5.6; the number is the same on every architecture


class Process(NamedTuple):
    """``state``: one letter, T for stopped. ``session``: the id of the process that leads its session."""

    pid: int
    state: str
    session: int


def sessions() -> dict[int, list[Process]]:
    """All processes that haven't ended, by the session that they are in; its leader comes first, where it is there."""
    found: dict[int, list[Process]] = {}
    for process in filter(None, map(_process, PROC.glob("[0-9]*"))):
        found.setdefault(process.session, []).append(process)
    return {leader: sorted(whole, key=lambda one: (one.pid != leader, one.pid)) for leader, whole in found.items()}


def command_line(pid: int) -> list[bytes]:
    """The words that a process of ours was started with; none of one that is gone, or another user's."""
    with suppress(OSError):
        folder = PROC / str(pid)
        if folder.stat().st_uid == os.getuid():
            return (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return []


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process, if the one of that id is still of that session."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            now = _process(PROC / str(process.pid))
            if now is not None and now.session == process.session:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


class Held(NamedTuple):
    """A socket of a process: its descriptor there, which a later file may get, and its inode, which is its own."""

    descriptor: int
    inode: int


def connections(pid: int) -> dict[str, Held]:
    """Its established TCP connections, by addresses and socket.

    Raises:
        PermissionError: it belongs to another user.
    """
    held: dict[str, Held] = {}
    for descriptor in (PROC / str(pid) / "fd").iterdir():
        with suppress(FileNotFoundError):
            kind, _, inode = str(descriptor.readlink()).partition(":")
            if kind == "socket":
                number = inode.strip("[]")
                held[number] = Held(int(descriptor.name), int(number))
    return {f"{ends} {inode}": held[inode] for ends, inode in _established(pid) if inode in held}


def hang_up(pid: int, held: Held) -> None:
    """Shut down a connection of a process both ways, as its broker would: its next read says that it has ended.

    One that has ended by itself is left alone, and so is whatever has its descriptor now.

    Raises:
        OSError: the kernel doesn't let us.
    """
    process = os.pidfd_open(pid)
    try:
        copy = _syscall(_PIDFD_GETFD, process, held.descriptor, 0)
    finally:
        os.close(process)
    if os.fstat(copy).st_ino != held.inode:
        os.close(copy)
        return
    with closing(socket.socket(fileno=copy)) as connection, suppress(OSError):  # it may have ended by itself
        connection.shutdown(socket.SHUT_RDWR)


def _syscall(*words: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    answer: int = libc.syscall(*(ctypes.c_long(word) for word in words))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def _process(folder: Path) -> Process | None:
    with suppress(OSError):
        text = (folder / "stat").read_text(encoding="ascii", errors="replace")
        state, *fields = text.rpartition(")")[2].split()
        return None if state in ("Z", "X") else Process(int(folder.name), state, int(fields[2]))
    return None


def _established(pid: int) -> Iterator[tuple[str, str]]:
    """The addresses of both ends, as the kernel writes them, and the socket's inode."""
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in (PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                (
                    _,
                    here,
                    there,
                    state,
                    *_,
                ) = line.split()[:4]
                if state == _ESTABLISHED:
                    yield f"{here}-{there}", line.split()[9]
