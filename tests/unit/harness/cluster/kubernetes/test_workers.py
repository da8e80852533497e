"""The way to a pod's host: what the API server's stream carries is written whole, in order, and not kept."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any, cast

import pytest

from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.kubernetes.workers import carry


class Stream:
    """A stream like ``kubernetes.stream.ws_client.WSClient``, whose reads may receive further frames of any channel."""

    def __init__(self, frames: list[str]) -> None:
        self._near, self._far = socket.socketpair()
        self.sock = type("Sock", (), {"sock": self._near})()
        self._frames, self._waiting, self._all = frames, list[str](), StringIO()
        self.stdin, self.kept = list[str](), 0
        self._far.send(b".")  # readable, as long as frames are left
        self.returncode = 0

    def close(self) -> None:
        self._near.close()
        self._far.close()

    def is_open(self) -> bool:
        return bool(self._frames or self._waiting)

    def update(self, timeout: float = 0) -> None:
        assert timeout == 0
        if self._frames:
            self._waiting.append(self._frames.pop(0))
            self._all.write(self._waiting[-1])
            self.kept = max(self.kept, len(self._all.getvalue()))

    def read_stdout(self, timeout: float = 0) -> str:
        assert timeout == 0
        text, self._waiting = "".join(self._waiting), []
        return text

    def read_stderr(self, timeout: float = 0) -> str:
        self.update(timeout)  # which receives output of the other channel
        return ""

    def write_stdin(self, text: str) -> None:
        self.stdin.append(text)

    def close_channel(self, channel: int) -> None:
        assert channel == 0


def test_frames_that_arrive_while_another_channel_is_read_are_not_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    frames = [f"line {number}\n" for number in range(200)]
    stream = Stream([*frames])

    class Server:
        @contextmanager
        def session(self, *_: Any, stdin: bool) -> Iterator[Stream]:
            assert stdin
            yield stream
            stream.close()

    reading, writing = os.pipe()
    os.write(writing, b"an order\n")
    os.close(writing)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert carry(cast("Api", Server()), "tests", "worker-1", ["run", "w1", "/root"]) == 0
    assert capfd.readouterr().out == "".join(frames)
    assert stream.stdin == ["an order\n"]
    assert stream.kept < 4 * len(frames[-1])  # not the whole output
