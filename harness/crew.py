"""The client processes of a run, to be hit by faults: found, killed, frozen, cut off and looked at, from any process.

What a worker started counts as the worker: the processes of its session, and the container of a Java client. Only the
runner can start one again, for it holds their pipes; so a kill leaves word for it (``workloads/held.py``), and so does
the release. Where the runner is dead there is nobody to start, and no worker that lives.
"""

import errno
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import docker
from docker.errors import APIError
from docker.models.containers import Container

from aftershock.errors import FaultError
from aftershock.faults.values import BrokerId, ClientProcess, ClientState
from aftershock.harness import engine, processes, spools
from aftershock.harness.fetch_sessions import open_sessions
from aftershock.harness.labels import RUN, WORKER
from aftershock.harness.waiting import still_lacking
from aftershock.results.files import read_lines
from aftershock.workloads.assignment import Assignment, ConsumeAssignment, parse_assignment
from aftershock.workloads.held import hold, release
from aftershock.workloads.pulse import Beat, read_pulse

_DEADLINE_S = 5.0


class Crew:
    """The workers of one run, whose rows are in ``spool`` (None: wherever the run of that id has put them)."""

    def __init__(self, run_id: str, spool: Path | None = None) -> None:
        self._run_id, self._known_spool = run_id, spool

    def members(self) -> list[ClientProcess]:
        """All that ever began, by name; none where no run is under way."""
        folder = self._spool()
        told = [_assignment(path) for path in sorted(folder.glob("*/assignment.json"))] if folder else []
        there = spools.workers(self._run_id) if told else {}
        return [
            ClientProcess(t.worker, t.workload, t.arm, t.op, t.rack, self._state(t, there.get(t.worker, ())))
            for t in told
        ]

    def _state(self, told: Assignment, whole: Sequence[processes.Process]) -> ClientState:
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
        if still_lacking(lambda: worker if whole[0].session in processes.sessions() else "", _DEADLINE_S):
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
                    processes.hang_up(pid, held)

    def _talkers(self, worker: str) -> list[int]:
        """Who talks to Kafka: of a Java client what runs in its container, not the command that started it."""
        inside = [int(container.attrs["State"]["Pid"]) for container in self._containers(worker)]
        return inside or [process.pid for process in self._processes(worker)]

    def _processes(self, worker: str) -> list[processes.Process]:
        return spools.workers(self._run_id).get(worker, [])

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
        return self._known_spool or spools.spool_of(self._run_id)


def _assignment(path: Path) -> Assignment:
    return parse_assignment(path.read_bytes())


def _send(whole: Iterable[processes.Process], number: signal.Signals) -> None:
    """To its leader first: that mustn't see what becomes of the others."""
    for process in whole:
        processes.send(process, number)


def _act(act: Callable[[], object]) -> None:
    try:
        act()
    except APIError as error:
        raise FaultError(f"the container of a Java client: {error.explanation or error}") from error


def _connections(pid: int) -> dict[str, processes.Held]:
    with _permitted(pid):
        return processes.connections(pid)
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
