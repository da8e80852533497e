"""A user's service as a pipe: a program that reads one topic and writes another, and knows nothing of Aftershock.

Its output goes to the worker's log. A service that ends by itself is started again, as an orchestrator would. At the
end of the run it gets SIGTERM and CLOSE_S seconds, then SIGKILL.
"""

import ctypes
import logging
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

import re2

from aftershock.errors import WorkloadError
from aftershock.redaction import redact
from aftershock.workloads.adapters import tether
from aftershock.workloads.load.assignment import CONTAINER_ID, Order, PipeAssignment
from aftershock.workloads.load.events import Clock, Events, Tally
from aftershock.workloads.load.fleet import read_down_marker, write_life
from aftershock.workloads.load.process import descendants
from aftershock.workloads.load.schedule import US_PER_MS, US_PER_S
from aftershock.workloads.load.spool import write_assignment

CLOSE_S = 8.0
"""Time limit for a service to end after SIGTERM, shorter than the runner's time limit for the worker."""

_WORD = re.compile(r"\{(bootstrap|from|to|group|member|file|python)\}")
LOG_BYTES_MAX = 64 * 2**20
"""Output that is kept of a worker's services: an hour of 100 lines of 180 bytes a second."""
_LAST_LINES = 5
_LINE_MAX = 65_536
_READY_STEP_S = 0.1
_LIVES_US = 500_000
"""Time that a service must live to be ready, so that a command that is not there is told as such."""
_HTTP_TIMEOUT_S = 1.0
_KILL_TIMEOUT_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_MAX = 10_000
"""Limit for a service that forks faster than its processes are killed."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_LOG = logging.getLogger(__name__)


def _text(content: bytes) -> str:
    return redact(content.decode(errors="replace").rstrip("\n"))


class ServicePipe:
    """One process of a service; implements ``worker.Client``."""

    def __init__(self, assignment: PipeAssignment, clock: Clock, events: Events) -> None:
        self._assignment, self._clock, self._events = assignment, clock, events
        folder = assignment.spool / assignment.worker
        folder.mkdir(exist_ok=True)  # of an earlier life, if a fault had ended the service
        write_assignment(folder, assignment)
        words = {"bootstrap": assignment.bootstrap, "from": assignment.topic, "to": assignment.to}
        words |= {
            "python": sys.executable,
            "group": assignment.group or "",
            "member": assignment.worker,
            "file": str(folder / "service.conf"),
        }

        def filled(text: str) -> str:
            return _WORD.sub(lambda match: words[match[1]], text)

        self._command = [filled(word) for word in assignment.command]
        self._container_id = Path(filled(CONTAINER_ID))
        self._env = os.environ | {name: filled(value) for name, value in assignment.env.items()}
        if assignment.file is not None:
            Path(words["file"]).write_text(filled(assignment.file), encoding="utf-8")
        self._exits = self._logged = 0
        self._others = frozenset(descendants(os.getpid()))  # processes that are not the service's
        self._restart_us: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Start the service, and wait until it is ready; the caller sets the time limit.

        Raises ``WorkloadError``, with the last lines of its output, if the service ends before.
        """
        # processes that it starts in the background stay our descendants when it ends (prctl(2))
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._start()
        lives_us = self._clock() + _LIVES_US
        while not self._is_ready() or self._clock() < lives_us:
            if self._ended():
                self._reader.join(_READY_STEP_S)
                left = self._kill()
                advice = f" and left {left} processes in the background: let it run in the foreground" if left else ""
                problem = f"the service {self._name} {self._how()} before it was ready{advice}"
                raise WorkloadError(f"{problem}; {self._lines()}")
            time.sleep(_READY_STEP_S)

    @property
    def _name(self) -> str:
        return self._assignment.worker

    def _start(self) -> None:
        self._last_lines: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._said_ready = Event()
        self._container_id.unlink(missing_ok=True)  # Docker does not overwrite it
        command = [sys.executable, "-I", "-S", str(Path(tether.__file__)), str(os.getpid()), *self._command]
        process = self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._env,
            process_group=0,
        )
        self._end = os.pidfd_open(process.pid)
        write_life(self._assignment.spool, self._name, process.pid)
        self._reader = Thread(target=self._copy_output, args=(process.stdout,), name="service output", daemon=True)
        self._reader.start()

    def _copy_output(self, output: IO[bytes]) -> None:
        pattern = re2.compile(self._assignment.ready.log) if self._assignment.ready.log else None
        with output:
            while content := output.readline(_LINE_MAX):
                if content.strip():
                    self._last_lines.append(content)
                is_awaited = pattern is not None and not self._said_ready.is_set()
                if self._logged >= LOG_BYTES_MAX and not is_awaited:
                    continue
                line = _text(content)
                if self._logged < LOG_BYTES_MAX:
                    self._logged += len(content)
                    full = self._logged >= LOG_BYTES_MAX
                    rest = f"(its further output is not kept, after {LOG_BYTES_MAX >> 20} MiB)\n" if full else ""
                    sys.stderr.write(f"{line}\n{rest}")
                    sys.stderr.flush()
                if pattern and pattern.search(line):
                    self._said_ready.set()

    def _is_ready(self) -> bool:
        ready = self._assignment.ready
        if ready.log:
            return self._said_ready.is_set()
        if ready.http:
            try:
                with _DIRECT.open(ready.http, timeout=_HTTP_TIMEOUT_S) as answer:
                    return bool(answer.status < 400)  # noqa: PLR2004 -- HTTP's first error
            except (OSError, HTTPException):
                return False
        return True

    def _ended(self, wait_s: float = 0.0) -> bool:
        """Return whether the service ends within ``wait_s``; its process id stays its own until `_kill`."""
        return bool(select.select([self._end], [], [], wait_s)[0])

    def _how(self) -> str:
        status = self._process.returncode if self._process else 0
        return f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"

    def _lines(self) -> str:
        self._reader.join(_READY_STEP_S)
        lines = "".join(f"\n    {line}" for line in self._ending())
        return f"the last lines of its output:{lines or ' none'}"

    def _ending(self) -> list[str]:
        return [_text(content) for content in self._last_lines]

    def obey(self, order: Order) -> None:
        """Ignore all orders: a service works until it is closed."""

    def step(self, wait_us: int) -> None:
        """Wait, and start a service again that has ended by itself."""
        if self._restart_us is None and self._ended():
            marker = read_down_marker(self._assignment.spool, self._name)
            if marker is not None and marker.pid == os.getpid():
                raise SystemExit(f"a fault has killed the service {self._name}")  # the runner starts it again
            self._exits += 1
            self._kill()
            status = self._process.returncode if self._process else 0
            _LOG.warning("the service %s", self._how())
            self._reader.join(_READY_STEP_S)
            self._events.emit("service_exited", status=status, lines=self._ending())
            self._restart_us = self._clock() + self._assignment.restart_ms * US_PER_MS
        elif self._restart_us is not None and self._clock() >= self._restart_us:
            self._restart_us = None
            self._start()
            self._events.emit("service_started", exits=self._exits)
        time.sleep(wait_us / US_PER_S)

    def keep_polling(self, _polls: bool) -> None:  # noqa: FBT001 -- a switch
        """Do nothing: a service has no switch for its polling."""

    def answer(self) -> dict[str, Any] | None:
        return None

    def progress(self) -> dict[str, Any]:
        return Tally().progress() | {"traffic": {}}

    def counters(self) -> dict[str, int]:
        return {"exits": self._exits}

    def reports(self) -> Collection[str]:
        return ()

    def close(self) -> None:
        """Send the service SIGTERM; kill it, with the event ``service_killed``, if it has not ended after CLOSE_S."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        os.kill(process.pid, signal.SIGTERM)
        if not self._ended(CLOSE_S):
            self._events.emit("service_killed", after_us=int(CLOSE_S * US_PER_S), lines=self._ending())
            _LOG.warning("the service did not end within %.0f s of SIGTERM, and was killed", CLOSE_S)
        self._kill()
        self._reader.join(1.0)

    def _kill(self) -> int:
        """Kill what is left of the service and its child processes, and read its exit status; return how many lived."""
        left = 0
        if self._process:
            with suppress(ProcessLookupError):
                # before the wait, after which the id may belong to another process
                os.killpg(self._process.pid, signal.SIGKILL)
            if self._assignment.in_container and self._container_id.exists():  # it outlives its `docker run`
                kill = ["docker", "kill", self._container_id.read_text()]
                with suppress(subprocess.TimeoutExpired):  # the runner removes it then
                    subprocess.run(kill, capture_output=True, check=False, timeout=_KILL_TIMEOUT_S)
            self._process.wait()
            os.close(self._end)
            while (orphans := {*descendants(os.getpid())} - self._others) and left < _ORPHANS_MAX:
                left += len(orphans)
                for pid in orphans:
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                for pid in orphans:
                    with suppress(ChildProcessError):  # a child of another one, which becomes ours
                        os.waitpid(pid, 0)
        return left
