"""Python process that a test exchanges lines with; killed at the end of the test."""

import select
import signal
import subprocess
import sys
from types import TracebackType
from typing import Self


class Child:
    """Runs ``script`` with ``arguments``; `line` returns the next line of output, `tell` sends a line of input."""

    def __init__(self, script: str, *arguments: str) -> None:
        command = [sys.executable, "-u", "-c", script, *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """Return the next line of output; fail with the process's stderr if it ended instead."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return self.process.stdout.readline().rstrip("\n") or f"ended: {self.process.stderr.read()}"

    def silent(self) -> bool:
        """True if the process has printed nothing since the last line."""
        assert self.process.stdout is not None
        return not select.select([self.process.stdout], [], [], 0)[0]

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> int:
        """Send SIGINT and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait()
