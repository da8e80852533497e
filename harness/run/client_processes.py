"""Processes of ours as the kernel has them (proc(5)): found, signalled and looked into by their ids, safely.

An id may be used again at any time, so a signal goes through a descriptor of the process, opened before it is asked
once more whether it is still the one that is meant.

Where the clients of a run leave their rows until they are evidence: memory, which outlives a runner that is killed.

A spool's name says whose it is (``aftershock-<run>.<owner>``), so that a dead run's can be told; its link ``home``
leads to the run directory, so that what it holds can still become evidence.

The client processes of a run, to be hit by faults: found, killed, frozen, cut off and looked at, from any process.

What a worker started counts as the worker: the processes of its session, and the container of a Java client. Only the
runner can start one again, for it holds their pipes; so a kill leaves word for it (``fleet.py``), and so does
the release. Where the runner is dead there is nobody to start, and no worker that lives.
"""

import ctypes
import errno
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import docker
from docker.errors import APIError
from docker.models.containers import Container

from aftershock.errors import FaultError
from aftershock.faults.targets.values import BrokerId, ClientProcess, ClientState
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.ownership import RUN, WORKER, lives, owner
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.kafka.groups import open_sessions
from aftershock.results.evidence.files import read_lines
from aftershock.workloads.load.assignment import Assignment, ConsumeAssignment, parse_assignment
from aftershock.workloads.load.fleet import hold, release
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.spool import TMPFS, spool_home
from aftershock.workloads.load.worker import Beat, read_pulse

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


_HOME = "home"
_WORKER = b"aftershock.workloads.load.worker"


@dataclass(frozen=True)
class Spool:
    """The spools of one run's clients. ``home``: its run directory, where that is still known and there."""

    run_id: str
    owner: str
    path: Path

    @property
    def home(self) -> Path | None:
        """The run directory."""
        home = self.path / _HOME
        return home.resolve() if home.is_dir() else None

    def salvage(self) -> None:
        """Turn what the clients wrote into evidence, and let go of the memory."""
        if self.home:
            convert(self.path, self.home / "outcomes")
        self.discard()

    def discard(self) -> None:
        """Let go of the memory; the run directory is left alone."""
        with suppress(OSError):
            (self.path / _HOME).unlink()
        shutil.rmtree(self.path, ignore_errors=True)


def spool_for(run_id: str, run_dir: Path) -> Spool:
    """A new spool of this process's run."""
    mine = owner()
    path = spool_home(f"{run_id}.{mine}", run_dir)
    path.mkdir(mode=0o700)
    (path / _HOME).symlink_to(run_dir.resolve(), target_is_directory=True)
    return Spool(run_id, mine, path)


def orphaned() -> list[Spool]:
    """The spools of runners that are dead, and are ours to remove."""
    found = [_spool(path) for path in sorted(TMPFS.glob("aftershock-*")) if path.stat().st_uid == os.getuid()]
    return [spool for spool in found if spool and not lives(spool.owner)]


def end_workers(run_id: str) -> None:
    """Kill the client processes of a run whose runner is dead, and what they started.

    By itself each ends in half a second, unless it is frozen.
    """
    for whole in workers(run_id).values():
        for process in whole:
            send(process, signal.SIGKILL)


def workers(run_id: str) -> dict[str, list[Process]]:
    """The client processes of that run that are there, by name, each with all that it started (its session)."""
    found = {}
    for leader, whole in sessions().items():
        words = command_line(leader)
        if words[-3:-1] == [_WORKER, run_id.encode()]:
            found[words[-1].decode()] = whole
    return found


def spool_of(run_id: str) -> Path | None:
    """Where the clients of a run that is under way leave their rows; None where there is no such run."""
    found = (_spool(path) for path in TMPFS.glob(f"aftershock-{run_id}.*"))
    return next((spool.path for spool in found if spool and spool.run_id == run_id and lives(spool.owner)), None)


def _spool(path: Path) -> Spool | None:
    run_id, dot, owned_by = path.name.removeprefix("aftershock-").rpartition(".")
    return Spool(run_id, owned_by, path) if dot and ":" in owned_by else None


_DEADLINE_S = 5.0


class Crew:
    """The workers of one run, whose rows are in ``spool`` (None: wherever the run of that id has put them)."""

    def __init__(self, run_id: str, spool: Path | None = None) -> None:
        self._run_id, self._known_spool = run_id, spool

    def members(self) -> list[ClientProcess]:
        """All that ever began, by name; none where no run is under way."""
        folder = self._spool()
        told = [_assignment(path) for path in sorted(folder.glob("*/assignment.json"))] if folder else []
        there = workers(self._run_id) if told else {}
        return [
            ClientProcess(t.worker, t.workload, t.arm, t.op, t.rack, self._state(t, there.get(t.worker, ())))
            for t in told
        ]

    def _state(self, told: Assignment, whole: Sequence[Process]) -> ClientState:
        """``paused`` when nothing of it moves, ``exited`` when there is nothing of it."""
        states = {process.state == "T" for process in whole}
        states |= {container.status == "paused" for container in self._containers(told.worker)}
        if not states:
            return "exited"
        return "paused" if all(states) else "running"

    def group(self, worker: str) -> str | None:
        """The group that it consumes in, if it does."""
        told = self._told(worker)
        return told.group if isinstance(told, ConsumeAssignment) else None

    def beat(self, worker: str) -> Beat | None:
        """What it last said of itself."""
        folder = self._spool()
        return read_pulse(folder, worker) if folder else None

    def fetch_sessions(self, worker: str) -> dict[BrokerId, int]:
        """The fetch session that it has with each broker, if it is of those who tell."""
        told = self._told(worker)
        return open_sessions(read_lines(told.events), worker) if told else {}

    def kill(self, worker: str) -> None:
        """SIGKILL it and all that it started, and see them dead; it stays down until it is released."""
        containers, whole, folder = self._containers(worker), self._processes(worker), self._spool()
        if not whole or folder is None:
            raise FaultError(f"the client {worker} does not run, so it can't be killed")
        hold(folder, worker, whole[0].pid)
        _send(whole, signal.SIGSTOP)  # so that nothing of it gets to know of the death of another part
        for container in containers:
            _act(container.kill)
        _send(whole, signal.SIGKILL)
        if still_lacking(lambda: worker if whole[0].session in sessions() else "", _DEADLINE_S):
            raise FaultError(f"the client {worker} was killed and is not dead after {_DEADLINE_S:g} s")

    def release(self, worker: str) -> None:
        """Let its fleet start it again; no error if it runs, or there is no fleet any more."""
        if folder := self._spool():
            release(folder, worker)

    def pause(self, worker: str) -> None:
        """Stop it and all that it started."""
        _send(self._processes(worker), signal.SIGSTOP)
        for container in self._containers(worker):
            _act(container.pause)

    def resume(self, worker: str) -> None:
        """Let it go on; no error if it isn't stopped, or is gone."""
        for container in self._containers(worker):
            if container.status == "paused":
                _act(container.unpause)
        _send(self._processes(worker), signal.SIGCONT)

    def connections(self, worker: str) -> frozenset[str]:
        """Its established TCP connections to whomever."""
        return frozenset(found for pid in self._talkers(worker) for found in _connections(pid))

    def disconnect(self, worker: str) -> None:
        """End each of its connections, and nobody else's."""
        for pid in self._talkers(worker):
            for held in _connections(pid).values():
                with _permitted(pid):
                    hang_up(pid, held)

    def _talkers(self, worker: str) -> list[int]:
        """Who talks to Kafka: of a Java client what runs in its container, not the command that started it."""
        inside = [int(container.attrs["State"]["Pid"]) for container in self._containers(worker)]
        return inside or [process.pid for process in self._processes(worker)]

    def _processes(self, worker: str) -> list[Process]:
        return workers(self._run_id).get(worker, [])

    def _containers(self, worker: str) -> list[Container]:
        told = self._told(worker)
        if told is not None and told.client != "java":
            return []
        wanted = {"label": [f"{RUN}={self._run_id}", f"{WORKER}={worker}"]}
        found: list[Container] = self._engine.containers.list(filters=wanted, ignore_removed=True)
        return found

    @cached_property
    def _engine(self) -> docker.DockerClient:
        return engine.connect()

    def _told(self, worker: str) -> Assignment | None:
        folder = self._spool()
        path = folder / worker / "assignment.json" if folder else None
        return _assignment(path) if path and path.exists() else None

    def _spool(self) -> Path | None:
        return self._known_spool or spool_of(self._run_id)


def _assignment(path: Path) -> Assignment:
    return parse_assignment(path.read_bytes())


def _send(whole: Iterable[Process], number: signal.Signals) -> None:
    """To its leader first: that mustn't see what becomes of the others."""
    for process in whole:
        send(process, number)


def _act(act: Callable[[], object]) -> None:
    try:
        act()
    except APIError as error:
        raise FaultError(f"the container of a Java client: {error.explanation or error}") from error


def _connections(pid: int) -> dict[str, Held]:
    with _permitted(pid):
        return connections(pid)
    return {}


@contextmanager
def _permitted(pid: int) -> Iterator[None]:
    """What has ended meanwhile has no connections; what is another user's is not ours to touch."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError):
        return
    except OSError as error:
        if error.errno == errno.EBADF:
            return
        sentence = f"the connections of process {pid} can't be reached ({error.strerror}): a client in a container "
        raise FaultError(sentence + "belongs to another user; run as root to disconnect that") from error
