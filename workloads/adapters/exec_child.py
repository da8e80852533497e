"""A client program as a child process, and the pipes to it.

Rules:

1. Nothing here waits longer than it is told to: all pipes are non-blocking, and only ``hear`` moves bytes.
2. What can't be written yet is kept, up to BACKLOG_BYTES_MAX; past that ``write`` refuses. What the program writes is
   read only as fast as it is wanted, so a program that writes too much is held up by its pipe.
3. The program's standard error goes on to ours, which is the worker's log; its last lines go into the error about it.
4. The program dies with us (``tether``), and whatever it started with it when it is ended in good order.
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
from typing import IO

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters import tether

BACKLOG_BYTES_MAX = 16 * 2**20
LINE_BYTES_MAX = 2**20
"""A line of the program's that is longer is no report."""

_PIPE_BYTES = 2**20
_CHUNK = 65_536
_LOG_LINES = 5
_LAST_WORDS_S = 1.0


class Child:
    """One running program. Everything raises ``WorkloadError`` once it has ended without being told to."""

    def __init__(self, command: Sequence[str]) -> None:
        if not command:
            raise WorkloadError("there is no program to start: give the arm a `command`")
        self.name = shlex.join(command)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(tether.__file__)), str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        self._in, self._out, err = (_non_blocking(pipe) for pipe in self._pipes())
        self._err: int | None = err
        self._end = os.pidfd_open(self._process.pid)  # readable once it has ended, whoever holds its pipes
        self._backlog = bytearray()
        self._rest = b""
        self._dead: WorkloadError | None = None
        self._last_words: deque[str] = deque(maxlen=_LOG_LINES)

    @property
    def pid(self) -> int:
        """The program's process id, which is also that of its process group."""
        return self._process.pid

    def write(self, line: bytes) -> bool:
        """Have ``line`` written soon; False, and it is not written, when too much is waiting already."""
        if self._dead:
            raise self._dead
        if len(self._backlog) + len(line) > BACKLOG_BYTES_MAX:
            return False
        self._backlog += line
        self._push()
        return True

    def hear(self, wait_s: float) -> list[bytes]:
        """Whole lines that the program wrote, none when it writes none within ``wait_s``; writes what is waiting."""
        if self._dead:
            raise self._dead
        listening = [self._out, self._end] if self._err is None else [self._out, self._end, self._err]
        readable, writable, _ = select.select(listening, [self._in] if self._backlog else [], [], wait_s)
        if writable:
            self._push()
        if self._err in readable:
            self._overhear()
        if self._out in readable:
            return self._lines()
        if self._end in readable:
            raise self._death()
        return []

    def hang_up(self) -> None:
        """Close the program's standard input, as the end of this process would; nothing can be written after."""
        self._backlog.clear()
        if self._process.stdin:
            self._process.stdin.close()

    def end(self, grace_s: float) -> int:
        """See it end by itself within ``grace_s``, else kill it with all that it started; gives its exit status."""
        until = time.monotonic() + grace_s
        with suppress(WorkloadError):
            while (left_s := until - time.monotonic()) > 0:
                self.hear(left_s)
        return self.kill()

    def kill(self) -> int:
        """End it now, with all that it started; gives its exit status, -9 where it had not ended by itself."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # before it is waited for: then its id may be another's
            self._process.wait()
            os.close(self._end)
            for pipe in self._pipes():
                pipe.close()
        return self._process.returncode

    def _pipes(self) -> tuple[IO[bytes], ...]:
        process = self._process
        return tuple(pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe)

    def _push(self) -> None:
        with suppress(BlockingIOError):
            try:
                while self._backlog:
                    del self._backlog[: os.write(self._in, self._backlog[:_CHUNK])]
            except BrokenPipeError:
                self._backlog.clear()  # it has ended, or is about to be heard of: what it wrote comes first

    def _overhear(self) -> None:
        """Pass on a piece of its standard error."""
        piece = os.read(self._err, _CHUNK) if self._err is not None else b""
        if not piece:
            self._err = None
            return
        sys.stderr.write(piece.decode(errors="replace"))
        sys.stderr.flush()
        self._last_words.extend(line for line in piece.decode(errors="replace").splitlines() if line.strip())

    def _lines(self) -> list[bytes]:
        piece = os.read(self._out, _CHUNK)
        if not piece:
            raise self._death()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise WorkloadError(f"the client {self.name} wrote a line of more than {LINE_BYTES_MAX} bytes")
        return lines

    def _death(self) -> WorkloadError:
        """The sentence about a program that has ended, or has ended its standard output; ends it altogether."""
        ended = bool(select.select([self._end], [], [], _LAST_WORDS_S)[0])
        while self._err is not None and select.select([self._err], [], [], 0)[0]:
            self._overhear()
        status = self.kill()
        how = _ended(status) if ended else "closed its standard output without ending"
        lines = "".join(f"\n    {line}" for line in self._last_words)
        self._dead = WorkloadError(f"the client {self.name} {how}; its last words:{lines or ' none'}")
        return self._dead


def _non_blocking(pipe: IO[bytes]) -> int:
    descriptor = pipe.fileno()
    os.set_blocking(descriptor, False)
    with suppress(OSError):  # a kernel that gives no more than 64 KiB serves us a little slower
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return descriptor


def _ended(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
