"""A worker's two pipes: orders come in, reports go out, and neither may ever hold up the client.

One thread reads standard input, another writes standard output; the client only touches queues in between. The reader
also sees to it that the worker dies with its runner: at the end of input (the runner closed it, or is gone), and when
the parent process changes (the runner is gone and somebody else holds the pipe).
"""

import json
import os
import select
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

ORPHANED = 4
"""Exit status of a worker whose runner is gone."""

_LOOK_EVERY_S = 0.5
_CHUNK = 65_536


class Inbox:
    """Lines from ``descriptor``. The process ends at once when there will be no more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._parent = os.getppid()
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=self._read, name="inbox", daemon=True).start()

    def wait(self) -> bytes:
        """The next line, however long it takes."""
        return self._lines.get()

    def take(self) -> bytes | None:
        """The next line if there is one."""
        try:
            return self._lines.get_nowait()
        except Empty:
            return None

    def _read(self) -> None:
        rest = b""
        while True:
            *lines, rest = (rest + self._chunk()).split(b"\n")
            for line in lines:
                self._lines.put(line)

    def _chunk(self) -> bytes:
        while not select.select([self._descriptor], [], [], _LOOK_EVERY_S)[0]:
            if os.getppid() != self._parent:
                os._exit(ORPHANED)
        return os.read(self._descriptor, _CHUNK) or os._exit(ORPHANED)


class Outbox:
    """Reports to ``descriptor``, one JSON object a line. The process ends when nobody can read them any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="outbox", daemon=True)
        self._thread.start()

    def say(self, say: str, **details: Any) -> None:
        """Report ``{"say": say, ...details}``; returns before it is written."""
        self._lines.put(json.dumps({"say": say} | details).encode() + b"\n")

    def flush(self, deadline_s: float) -> None:
        """Wait until all that was said is written, at most ``deadline_s``; nothing can be said after."""
        self._lines.put(None)
        self._thread.join(deadline_s)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:
                os._exit(ORPHANED)
