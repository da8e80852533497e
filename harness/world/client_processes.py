"""Client processes of a run, their spools (output in shared memory), and the faults kill, pause and disconnect.

A client consists of a worker process, child processes in its session, and, for Kafka's Java client and services with an
image, a container. Only the run's own process can start a killed worker again, so `ClientProcesses.kill` and
`ClientProcesses.release` write marker files, which the run's process reads (``load/fleet.py``). A spool is a folder in
shared memory, named ``aftershock-<run>.<owner>``, for the clients' rows; the spool of a killed run stays until
`salvage`.
"""

import ctypes
import errno
import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import docker
from docker.errors import APIError
from docker.models.containers import Container

from aftershock.errors import EvidenceError, FaultError, Log
from aftershock.faults.targets.values import BrokerId, ClientProcess, ClientState
from aftershock.harness.cluster import engine
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.kafka.groups import open_sessions
from aftershock.harness.safety.ownership import RUN, WORKER, is_alive, owner
from aftershock.harness.world.group_members import Owners, read_owners
from aftershock.results.evidence.files import read_lines, read_object
from aftershock.workloads.load.assignment import (
    Assignment,
    ConsumeAssignment,
    PipeAssignment,
    in_reserve,
    parse_assignment,
)
from aftershock.workloads.load.fleet import mark_down, mark_released
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.spool import TMPFS, spool_home, write_assignment
from aftershock.workloads.load.worker import Heartbeat, Signals, read_heartbeat

PROC = Path("/proc")
_ESTABLISHED = "01"
_PIDFD_GETFD = 438  # pidfd_getfd(2), Linux 5.6; the number is the same on every architecture
_HOME = "home"
_ELSEWHERE = "elsewhere"
_WORKER_MODULE = b"aftershock.workloads.load.worker"
_KILL_DEADLINE_S, _PAUSE_DEADLINE_S = 5.0, 5.0
_READ_DEADLINE_S = 2.0
"""Time limit for a worker to read the last output of its killed program."""
_LEAVE_DEADLINE_S = 15.0


class Process(NamedTuple):
    """A running process; ``state`` is the letter in proc(5), for example T if stopped."""

    pid: int
    state: str
    session: int


class SocketHandle(NamedTuple):
    """Socket of a process; the process may reuse the file ``descriptor``, but the ``inode`` is unique."""

    descriptor: int
    inode: int


def processes_by_session() -> dict[int, list[Process]]:
    """Return all running processes of the host by session id, each session's leader first."""
    sessions: dict[int, list[Process]] = {}
    for process in filter(None, map(_read_process, PROC.glob("[0-9]*"))):
        sessions.setdefault(process.session, []).append(process)
    return {
        leader: sorted(processes, key=lambda process: (process.pid != leader, process.pid))
        for leader, processes in sessions.items()
    }


def workers(run_id: str) -> dict[str, list[Process]]:
    """Return the processes of each running client of a run, by the client's name."""
    result = {}
    for leader, processes in processes_by_session().items():
        command: list[bytes] = []
        with suppress(OSError):  # the process may have ended
            folder = PROC / str(leader)
            if folder.stat().st_uid == os.getuid():
                command = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        if command[-3:-1] == [_WORKER_MODULE, run_id.encode()]:
            result[command[-1].decode()] = processes
    return result


def kill_workers(run_id: str) -> None:
    """Kill all clients of a run whose own process has died; frozen clients would otherwise stay."""
    for processes in workers(run_id).values():
        send_signal(processes, signal.SIGKILL)


def send_signal(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to each of the processes that still exists, in order."""
    for process in processes:
        with suppress(ProcessLookupError):
            # the kernel may reuse a process id, so check the process again after opening its pidfd
            descriptor = os.pidfd_open(process.pid)
            try:
                now = _read_process(PROC / str(process.pid))
                if now is not None and now.session == process.session:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def _read_process(folder: Path) -> Process | None:
    with suppress(OSError):
        text = (folder / "stat").read_text(encoding="ascii", errors="replace")
        state, *fields = text.rpartition(")")[2].split()
        return None if state in ("Z", "X") else Process(int(folder.name), state, int(fields[2]))
    return None


def connections(pid: int) -> dict[str, SocketHandle]:
    """Return the sockets of a process's established TCP connections, by a key of both addresses and the inode.

    Raises PermissionError if another user owns the process.
    """
    handles: dict[str, SocketHandle] = {}
    for descriptor in (PROC / str(pid) / "fd").iterdir():
        with suppress(FileNotFoundError):
            kind, _, name = str(descriptor.readlink()).partition(":")
            if kind == "socket":
                inode = name.strip("[]")
                handles[inode] = SocketHandle(int(descriptor.name), int(inode))
    result = {}
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in (PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                local, remote, state, inode = fields[1], fields[2], fields[3], fields[9]
                if state == _ESTABLISHED and inode in handles:
                    result[f"{local}-{remote} {inode}"] = handles[inode]
    return result


def shut_down_connection(pid: int, handle: SocketHandle) -> None:
    """Shut down another process's TCP connection in both directions, so that its next read returns end of stream.

    Nothing happens if the process has closed the connection. Raises OSError if the kernel denies access to the socket.
    """
    process = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = (_PIDFD_GETFD, process, handle.descriptor, 0)
        copy: int = libc.syscall(*map(ctypes.c_long, arguments))
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(process)
    if os.fstat(copy).st_ino != handle.inode:
        os.close(copy)
        return
    with closing(socket.socket(fileno=copy)) as connection, suppress(OSError):  # the connection may have ended
        connection.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Spool:
    """Spool of a run, the folder in shared memory to which clients write their rows; ``owner`` is the run's process."""

    run_id: str
    owner: str
    path: Path

    @property
    def home(self) -> Path | None:
        """Run directory to which the spool's rows belong; None if the run directory was removed."""
        home = self.path / _HOME
        return home.resolve() if home.is_dir() else None

    def salvage(self) -> None:
        """Convert the clients' rows into evidence files, and remove the spool (the folder in shared memory)."""
        if self.home:
            convert(self.path, self.home / "outcomes")
        self.discard()

    def discard(self) -> None:
        with suppress(OSError):
            (self.path / _HOME).unlink()
        shutil.rmtree(self.path, ignore_errors=True)


def spool_for(run_id: str, run_dir: Path) -> Spool:
    this_process = owner()
    path = spool_home(f"{run_id}.{this_process}", run_dir)
    path.mkdir(mode=0o700)
    (path / _HOME).symlink_to(run_dir.resolve(), target_is_directory=True)
    return Spool(run_id, this_process, path)


def orphaned_spools(log: Log = lambda _: None) -> list[Spool]:
    """Return the spools (run output in shared memory) of this user's runs whose process has died.

    ``log`` receives a line for each entry of shared memory that has the name of a spool and is no folder of this user.
    """
    spools = _spools("aftershock-*", log)
    return [spool for spool in spools if not is_alive(spool.owner) and spool_of(spool.run_id) is None]


def spool_in(home: Path) -> Spool | None:
    """Return the spool in the run directory of a dead run, which had no shared memory; None if there is none."""
    path, linked = home / "spool", home / "spool" / _HOME
    try:
        facts = read_object(home / "run.json")
    except EvidenceError:
        return None
    # the run directory may come from a stranger, whose links could lead anywhere
    if path.is_symlink() or not linked.is_dir() or linked.resolve() != home.resolve():
        return None
    owned_by = str(facts.get("owner", ""))
    return None if is_alive(owned_by) else Spool(home.resolve().name, owned_by, path)


def spool_of(run_id: str) -> Path | None:
    """Return the spool (folder in shared memory) of a run in progress; None for another run."""
    spools = _spools(f"aftershock-{run_id}.*", lambda _: None)
    return next((spool.path for spool in spools if spool.run_id == run_id and is_alive(spool.owner)), None)


def _spools(pattern: str, log: Log) -> list[Spool]:
    spools = []
    for path in sorted(TMPFS.glob(pattern)):
        run_id, dot, owned_by = path.name.removeprefix("aftershock-").rpartition(".")
        if not dot or ":" not in owned_by:
            continue
        try:
            status = path.lstat()  # any user can put a link here, for example to another user's folder
        except OSError:
            continue  # its process has removed it meanwhile
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            spools.append(Spool(run_id, owned_by, path))
        elif not stat.S_ISDIR(status.st_mode):
            log(
                f"{path} is not a folder, so Aftershock did not create it and leaves it alone; remove it if it is yours"
            )
    return spools


def note_elsewhere(spool: Path, client: Assignment) -> None:
    """Keep the assignment of a client whose process and rows are on another host."""
    folder = spool / _ELSEWHERE / client.worker
    folder.mkdir(parents=True)
    write_assignment(folder, client)


class ClientProcesses:
    """Clients of a run; ``spool`` is the folder in shared memory for their rows, by default found by the run id."""

    def __init__(self, run_id: str, spool: Path | None = None) -> None:
        self._run_id, self._given_spool = run_id, spool

    def members(self) -> list[ClientProcess]:
        """Return all clients of the run, sorted by name; an empty list if the run has ended."""
        folder = self._spool()
        if folder is None:
            return []
        paths = sorted(folder.glob("*/assignment.json"))
        running = workers(self._run_id) if paths else {}
        # the fleet sees their ends; faults on processes are refused for them (`plan check`)
        away = map(_read_assignment, sorted((folder / _ELSEWHERE).glob("*/assignment.json")))
        clients = [ClientProcess(a.worker, a.workload, a.arm, a.op, a.rack, "running", a.number) for a in away]
        for a in map(_read_assignment, paths):
            if isinstance(a, ConsumeAssignment) and a.observes:
                continue  # the harness's own reader is no target
            stopped = {process.state == "T" for process in running.get(a.worker, ())}
            stopped |= {container.status == "paused" for container in self._containers(a.worker)}
            state: ClientState = "exited" if not stopped else "paused" if all(stopped) else "running"
            clients.append(ClientProcess(a.worker, a.workload, a.arm, a.op, a.rack, state, a.number, in_reserve(a)))
        return sorted(clients, key=lambda client: client.name)

    def group(self, worker: str) -> str | None:
        """Return the group of a consumer, or of a service's process."""
        assignment = self._assignment(worker)
        return assignment.group if isinstance(assignment, ConsumeAssignment | PipeAssignment) else None

    def owners_of_members(self, worker: str) -> Owners | None:
        """Return what is known of the members of a service's group; None for a consumer, which its client id names."""
        assignment, folder = self._assignment(worker), self._spool()
        if not isinstance(assignment, PipeAssignment) or folder is None:
            return None
        return read_owners(folder, assignment.group or "")

    def heartbeat(self, worker: str) -> Heartbeat | None:
        folder = self._spool()
        return read_heartbeat(folder, worker) if folder else None

    def fetch_sessions(self, worker: str) -> dict[BrokerId, int]:
        """Return the id of the consumer's fetch session with each broker, for clients that report fetch sessions."""
        assignment = self._assignment(worker)
        return open_sessions(read_lines(assignment.events), worker) if assignment else {}

    def kill(self, worker: str) -> None:
        """Kill all processes of a client, and wait for their end; the client stays down until `release`.

        A client program dies before its worker, and the worker reads all that the program had reported, then ends by
        itself. Otherwise deliveries that the program had reported and then committed would be missing as evidence.
        """
        containers, processes, folder = self._containers(worker), self._processes(worker), self._spool()
        if not processes or folder is None:
            raise FaultError(f"the client {worker} is not running, so it can't be killed")
        leader, *program = processes
        mark_down(folder, worker, leader.pid)
        for container in containers:  # its `docker run`, among the program's processes, ends with its output
            _engine_call(container.kill)
        if not containers:
            send_signal(program, signal.SIGSTOP)  # no process may react to the death of another
            send_signal(program, signal.SIGKILL)
        if program:

            def lives() -> str:
                return worker if leader.pid in {process.pid for process in self._processes(worker)} else ""

            still_lacking(lives, _READ_DEADLINE_S)
        send_signal(self._processes(worker), signal.SIGSTOP)
        send_signal(self._processes(worker), signal.SIGKILL)
        if still_lacking(lambda: worker if leader.session in processes_by_session() else "", _KILL_DEADLINE_S):
            raise FaultError(f"the client {worker} is still alive {_KILL_DEADLINE_S:g} s after SIGKILL")

    def leave(self, worker: str) -> None:
        """Let a client close and exit (SIGTERM), and wait for its end; the client stays down until `release`."""
        processes, folder = self._processes(worker), self._spool()
        if not processes or folder is None:
            raise FaultError(f"the client {worker} is not running, so it can't leave its group")
        leader = processes[0]
        mark_down(folder, worker, leader.pid)
        send_signal([leader], Signals.LEAVE)
        if still_lacking(lambda: worker if leader.session in processes_by_session() else "", _LEAVE_DEADLINE_S):
            raise FaultError(f"the client {worker} still runs {_LEAVE_DEADLINE_S:g} s after it was told to leave")

    def release(self, worker: str) -> None:
        """Let the run start a killed client again; no effect on a running client, or if the run has ended."""
        if folder := self._spool():
            mark_released(folder, worker)

    def pause(self, worker: str) -> None:
        """Stop all processes of a client (SIGSTOP), and wait until the kernel has stopped each.

        A process that waits for a CPU stops only when it gets one.
        """
        send_signal(self._processes(worker), signal.SIGSTOP)  # the leader first, as it must not see its children stop
        for container in self._containers(worker):
            _engine_call(container.pause)

        def running() -> str:
            return ", ".join(str(process.pid) for process in self._processes(worker) if process.state != "T")

        if pids := still_lacking(running, _PAUSE_DEADLINE_S):
            raise FaultError(
                f"the processes {pids} of the client {worker} still run {_PAUSE_DEADLINE_S:g} s after SIGSTOP"
            )

    def resume(self, worker: str) -> None:
        """Let a paused client continue (SIGCONT); no effect on a client that is running or has ended."""
        for container in self._containers(worker):
            if container.status == "paused":
                _engine_call(container.unpause)
        send_signal(self._processes(worker), signal.SIGCONT)

    def stop_polling(self, worker: str) -> None:
        send_signal(self._processes(worker)[:1], Signals.STOP_POLLING)

    def resume_polling(self, worker: str) -> None:
        """Let a consumer poll again; no effect on a consumer that polls or has ended."""
        send_signal(self._processes(worker)[:1], Signals.RESUME_POLLING)

    def connections(self, worker: str) -> frozenset[str]:
        names: set[str] = set()
        for pid in self._connected_pids(worker):
            with _connection_errors(pid):
                names |= connections(pid).keys()
        return frozenset(names)

    def disconnect(self, worker: str) -> None:
        for pid in self._connected_pids(worker):
            handles: dict[str, SocketHandle] = {}
            with _connection_errors(pid):
                handles = connections(pid)
            for handle in handles.values():
                with _connection_errors(pid):
                    shut_down_connection(pid, handle)

    def _connected_pids(self, worker: str) -> list[int]:
        """Return the ids of the client's processes that may be connected to Kafka."""
        inside = [int(container.attrs["State"]["Pid"]) for container in self._containers(worker)]
        return inside or [process.pid for process in self._processes(worker)]

    def _processes(self, worker: str) -> list[Process]:
        return workers(self._run_id).get(worker, [])

    def _containers(self, worker: str) -> list[Container]:
        assignment = self._assignment(worker)
        in_container = isinstance(assignment, PipeAssignment) and assignment.in_container
        in_container = in_container or (
            assignment is not None and assignment.client == "java" and assignment.version is None
        )
        if assignment is not None and not in_container:
            return []
        filters = {"label": [f"{RUN}={self._run_id}", f"{WORKER}={worker}"]}
        containers: list[Container] = self._engine.containers.list(filters=filters, ignore_removed=True)
        return containers

    @cached_property
    def _engine(self) -> docker.DockerClient:
        return engine.connect()

    def _assignment(self, worker: str) -> Assignment | None:
        folder = self._spool()
        paths = (home / worker / "assignment.json" for home in (folder, folder / _ELSEWHERE)) if folder else ()
        return next((_read_assignment(path) for path in paths if path.exists()), None)

    def _spool(self) -> Path | None:
        return self._given_spool or spool_of(self._run_id)


def _read_assignment(path: Path) -> Assignment:
    return parse_assignment(path.read_bytes())


def _engine_call(call: Callable[[], object]) -> None:
    try:
        call()
    except APIError as error:
        raise FaultError(
            f"Docker could not kill, pause or resume the container of a client: {error.explanation or error}"
        ) from error


@contextmanager
def _connection_errors(pid: int) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ProcessLookupError):
        return
    except OSError as error:
        if error.errno == errno.EBADF:
            return
        problem = f"the connections of the client's process {pid} can't be shut down ({error.strerror})"
        advice = "if the client runs in a container of another user, run Aftershock as root"
        raise FaultError(f"{problem}; {advice}") from error
