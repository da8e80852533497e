"""Client program as a child process of a worker, with non-blocking pipes.

The client program dies with the worker (``tether``), and child processes of the client program die with the program.
"""

import fcntl
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from aftershock.errors import ClientDiedError, WorkloadError
from aftershock.redaction import redact
from aftershock.workloads.adapters import tether

BACKLOG_BYTES_MAX = 16 * 2**20
NO_LINES = " none"
LINE_BYTES_MAX = 2**20
"""Longest line that a client program may write to its standard output."""

_PIPE_BYTES = 2**20
_PAGE = 4096
_CHUNK = 65_536
_LOG_LINES = 5
_LAST_OUTPUT_S = 1.0


class Child:
    """Running client program; every method raises ``WorkloadError`` if the program has ended unexpectedly."""

    def __init__(self, command: Sequence[str], *, echo: bool = True) -> None:
        """Start the client program; with ``echo``, what it writes to standard error appears on the worker's."""
        if not command:
            raise WorkloadError("the arm has no program to start: add a `command` to it")
        self.name = shlex.join(command)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(tether.__file__)), str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        process = self._process
        self._pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe]
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
            with suppress(OSError):  # a kernel that limits pipes to 64 KiB only makes this slower
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._in, self._out, err = (pipe.fileno() for pipe in self._pipes)
        self._err: int | None = err
        self._end = os.pidfd_open(self._process.pid)  # readable once it has ended, whichever process holds its pipes
        self._backlog = bytearray()
        self._rest = b""
        self._log_rest = b""
        self._dead: WorkloadError | None = None
        self._echo = echo
        self._last_lines: deque[str] = deque(maxlen=_LOG_LINES)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_lines(self) -> str:
        """Last lines of the client program's standard error, each on an indented line; NO_LINES without lines."""
        return "".join(f"\n    {line}" for line in self._last_lines) or NO_LINES

    def write(self, line: bytes) -> bool:
        """Queue a line for the client program; return False if the queue (BACKLOG_BYTES_MAX bytes) is full."""
        if self._dead:
            raise self._dead
        if len(self._backlog) + len(line) > BACKLOG_BYTES_MAX:
            return False
        self._backlog += line
        self._push()
        return True

    def hear(self, wait_s: float) -> list[bytes]:
        """Return the whole lines that the client program writes within ``wait_s``; send queued lines meanwhile."""
        if self._dead:
            raise self._dead
        listening = [self._out, self._end] if self._err is None else [self._out, self._end, self._err]
        readable, writable, _ = select.select(listening, [self._in] if self._backlog else [], [], wait_s)
        if writable:
            self._push()
        if self._err in readable:
            self._copy_log()
        if self._out in readable:
            piece = os.read(self._out, _CHUNK)
            if not piece:
                raise self.death()
            *lines, self._rest = (self._rest + piece).split(b"\n")
            if len(self._rest) > LINE_BYTES_MAX:
                raise WorkloadError(f"the client {self.name} wrote a line of more than {LINE_BYTES_MAX} bytes")
            return lines
        if self._end in readable:
            raise self.death()
        return []

    def narrow_pipe(self) -> None:
        """Shrink the pipe of the program's standard output to a page, if it is not fuller than that."""
        with suppress(OSError):
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, _PAGE)

    def hang_up(self) -> None:
        """Close the client program's standard input, as if the worker had ended."""
        self._backlog.clear()
        if self._process.stdin:
            self._process.stdin.close()

    def end(self, grace_s: float) -> int:
        """Wait up to ``grace_s`` for the client program to end, then kill it; return its exit status."""
        until = time.monotonic() + grace_s
        with suppress(WorkloadError):
            while (remaining_s := until - time.monotonic()) > 0:
                self.hear(remaining_s)
        return self.kill()

    def kill(self) -> int:
        """Kill the client program and its children; return the exit status, -9 if the program was running."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                # before the wait, after which the id may belong to another process
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            while self._err is not None and select.select([self._err], [], [], 0)[0]:
                self._copy_log()
            self._log(self._log_rest)
            os.close(self._end)
            for pipe in self._pipes:
                pipe.close()
        return self._process.returncode

    def _push(self) -> None:
        with suppress(BlockingIOError):
            try:
                while self._backlog:
                    del self._backlog[: os.write(self._in, self._backlog[:_CHUNK])]
            except BrokenPipeError:
                self._backlog.clear()  # its end is reported by `hear`, after its last output

    def _copy_log(self) -> None:
        if self._err is None:
            return
        piece = os.read(self._err, _CHUNK)
        # whole lines, because a secret may be written in two pieces
        lines, newline, rest = (self._log_rest + piece).rpartition(b"\n")
        if not piece:
            self._err = None
        elif len(rest) <= _CHUNK:
            self._log(lines + newline, rest)
            return
        self._log(lines + newline + rest)

    def _log(self, content: bytes, rest: bytes = b"") -> None:
        """Write a part of the client program's standard error without secrets; ``rest`` is kept for later."""
        text, self._log_rest = redact(content.decode(errors="replace")), rest
        if self._echo and text:
            sys.stderr.write(text)
            sys.stderr.flush()
        self._last_lines.extend(line for line in text.splitlines() if line.strip())

    def death(self, why: str = "") -> ClientDiedError:
        """Kill a client program that has ended, closed its standard output or given up; return an error with the cause.

        ``why`` is the reason in the program's own report ``died``.
        """
        ended = bool(select.select([self._end], [], [], _LAST_OUTPUT_S)[0])
        status = self.kill()
        if why:
            description = f"gave up: {why}"
        elif not ended:
            description = "closed its standard output without ending"
        elif status < 0:
            description = f"was killed by signal {-status}"
        else:
            description = f"ended with exit status {status}"
        cause = f"the client {self.name} {description}"
        self._dead = ClientDiedError(
            f"{cause}; the last lines of its standard error:{self.last_lines}",
            cause,
            status if ended and not why else None,
            self._last_lines,
        )
        return self._dead
