"""Pulling an image within bounds of time, so that a host without a registry learns so soon and builds instead."""

import queue
import threading
import time
from contextlib import suppress
from typing import Any

import docker
import requests
from docker.errors import DockerException

from aftershock.errors import ImageError

SILENCE_S = 15.0
"""A pull that shows no progress for this long is given up; so is a registry that does not answer at all."""
LIMIT_S = 600.0
POLL_S = 0.1


class PullError(Exception):
    """The image can't be had from its registry, now; the text says why."""


def pull(client: docker.DockerClient, name: str, cancelled: threading.Event) -> None:
    """Pull ``name`` (``repository:version``).

    Raises:
        PullError: the registry is not to be reached, refuses, or is too slow.
        ImageError: ``cancelled`` was set meanwhile.
    """
    events = _Events(client, name)
    events.start()
    limit = time.monotonic() + LIMIT_S
    silence = time.monotonic() + SILENCE_S
    while not cancelled.is_set():
        now = time.monotonic()
        if now > limit:
            raise PullError(f"not done after {LIMIT_S:.0f} s")
        if now > silence:
            raise PullError(f"no progress for {SILENCE_S:.0f} s")
        with suppress(queue.Empty):
            event = events.get(timeout=POLL_S)
            if event is None:
                return
            if "error" in event:
                raise PullError(event["error"])
            silence = time.monotonic() + SILENCE_S
    raise ImageError(f"pulling {name} was interrupted")


class _Events(threading.Thread):
    """Reads a pull's progress, for the SDK would wait for each line without any limit. Ends with the process."""

    def __init__(self, client: docker.DockerClient, name: str) -> None:
        super().__init__(name=f"pull {name}", daemon=True)
        self._client = client
        self._image = name
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def run(self) -> None:
        repository, version = self._image.rsplit(":", 1)
        try:
            for event in self._client.api.pull(repository, tag=version, stream=True, decode=True):
                self._events.put(event)
        except (DockerException, requests.RequestException) as error:
            self._events.put({"error": str(getattr(error, "explanation", None) or error)})
        self._events.put(None)

    def get(self, timeout: float) -> dict[str, Any] | None:
        """The next line of progress; None after the last. Raises queue.Empty after ``timeout`` seconds."""
        return self._events.get(timeout=timeout)
