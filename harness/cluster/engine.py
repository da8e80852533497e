"""Pulling an image within bounds of time, so that a host without a registry learns so soon and builds instead.

The Docker engine and the images that runs need: found here, else pulled, else built.

Pulling is bounded in time: a host that reaches no registry learns so in a moment (or in seconds, where packets vanish)
and builds interchangeable images instead; see ``aftershock.harness.images``.
"""

import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import docker
import requests
from docker.context import ContextAPI
from docker.errors import ContextException, DockerException

from aftershock.errors import EngineError, ImageError
from aftershock.harness.cluster.images import builder, recipes
from aftershock.harness.cluster.images.builder import Say
from aftershock.harness.cluster.images.recipes import is_here

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


DEFAULT_KAFKA = "4.3.1"
TOXIPROXY = recipes.VERSION
OFFICIAL_KAFKA = "apache/kafka"
OFFICIAL_TOXIPROXY = "ghcr.io/shopify/toxiproxy"

LOCAL_SOCKET = "unix:///var/run/docker.sock"
CALL_TIMEOUT_S = 60


@dataclass(frozen=True)
class Image:
    """An image that is on the engine now. ``digest`` is the registry's where there is one, else the image's id."""

    name: str
    digest: str
    origin: Literal["here", "pulled", "built"]


@dataclass(frozen=True)
class ImageHere:
    """A row of ``aftershock images``."""

    name: str
    digest: str
    size_bytes: int


@dataclass(frozen=True)
class _Source:
    """The two names an image may go by, and the way to make ours."""

    official: str
    ours: str
    build: Callable[[threading.Event], str]


def connect() -> docker.DockerClient:
    """A client of the engine that ``DOCKER_HOST`` names, else the docker client's current context, else the socket.

    These are the places where testcontainers looks, in its order, so both talk to the same engine.

    Raises:
        EngineError: there is none, or it does not let us in; the text says what to do.
    """
    host = os.environ.get("DOCKER_HOST", "")
    try:
        host = host or _context_host() or LOCAL_SOCKET
        _knock(host)
        # the environment goes along for the TLS settings that belong to DOCKER_HOST
        client = docker.from_env(timeout=CALL_TIMEOUT_S, environment={**os.environ, "DOCKER_HOST": host})
        client.ping()
    except (DockerException, ContextException, requests.RequestException, OSError, ValueError) as error:
        raise EngineError(_unreachable(host, str(error))) from error
    return client


def kafka_image(client: docker.DockerClient, version: str, say: Say, cancelled: threading.Event | None = None) -> Image:
    """An image of Kafka ``version`` (``4.3.1``), official or built by us; both honour the same contract.

    Args:
        client: the engine.
        version: a released version.
        say: gets a line before anything that takes time.
        cancelled: set it from another thread to end a pull or a build within a moment.

    Raises:
        ImageError: neither here, nor to be pulled, nor could it be built.
        EngineError: the engine refused to be asked.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ImageError(f"{version!r} is not a version of Kafka; give a released one, such as {DEFAULT_KAFKA}")
    source = _Source(
        f"{OFFICIAL_KAFKA}:{version}",
        recipes.kafka_name(version),
        lambda stop: recipes.build_kafka(client, version, say, stop),
    )
    return _ensure(client, source, say, cancelled or threading.Event())


def toxiproxy_image(client: docker.DockerClient, say: Say, cancelled: threading.Event | None = None) -> Image:
    """An image of the Toxiproxy version we rely on, official or built by us. Arguments and errors as `kafka_image`."""
    source = _Source(
        f"{OFFICIAL_TOXIPROXY}:{TOXIPROXY}",
        recipes.toxiproxy_name(),
        lambda stop: recipes.build_toxiproxy(client, say, stop),
    )
    return _ensure(client, source, say, cancelled or threading.Event())


def java_client_image(
    client: docker.DockerClient, version: str, say: Say, cancelled: threading.Event | None = None
) -> Image:
    """An image of Kafka's own Java client for ``client: java``, built on the Kafka image of that version.

    Arguments and errors as `kafka_image`.
    """
    stop = cancelled or threading.Event()
    kafka_name = kafka_image(client, version, say, stop).name
    with _refusals():
        here = is_here(client, recipes.java_client_name(kafka_name))
        name = recipes.build_java_client(client, kafka_name, say, stop)
        return Image(name, _digest(client, name), "here" if here else "built")


def images_here(client: docker.DockerClient) -> list[ImageHere]:
    """All images on the engine that a run could use, official ones and ours, by name.

    Raises:
        EngineError: the engine refused to be asked.
    """
    ours = (f"{builder.REPOSITORY}/{name}" for name in ("kafka", "toxiproxy", recipes.JAVA_CLIENT_NAME))
    wanted = tuple(f"{repository}:" for repository in (OFFICIAL_KAFKA, OFFICIAL_TOXIPROXY, *ours))
    with _refusals():
        sizes = {name: row["Size"] for row in client.api.images() for name in row["RepoTags"] or []}
        names = sorted(name for name in sizes if name.startswith(wanted))
        return [ImageHere(name, _digest(client, name), sizes[name]) for name in names]


def _ensure(client: docker.DockerClient, source: _Source, say: Say, cancelled: threading.Event) -> Image:
    with _refusals():
        for name in (source.official, source.ours):
            if is_here(client, name):
                return Image(name, _digest(client, name), "here")
        say(f"pulling {source.official}")
        try:
            pull(client, source.official, cancelled)
            return Image(source.official, _digest(client, source.official), "pulled")
        except PullError as error:
            say(f"{source.official} can't be pulled ({error}): building an interchangeable image instead")
        name = source.build(cancelled)
        return Image(name, _digest(client, name), "built")


def _digest(client: docker.DockerClient, name: str) -> str:
    found = client.api.inspect_image(name)
    digests = found.get("RepoDigests") or []
    return str(digests[0].split("@")[-1] if digests else found["Id"])


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        raise EngineError(
            f"the Docker engine refused a question about images ({error}); is it in good health?"
        ) from error


def _knock(host: str) -> None:
    """Raise OSError if nobody answers at a local socket: the SDK would say it at length, and leak its own."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as knocking:
            knocking.connect(host.removeprefix("unix://"))


def _context_host() -> str | None:
    """The address of the docker client's current context, where that is not simply the local socket."""
    context = ContextAPI.get_current_context()
    return None if context is None or context.Name == "default" else context.Host


def _unreachable(where: str, words: str) -> str:
    if "Permission denied" in words:
        return (
            f"the Docker engine at {where} does not let us in: join the docker group and log in again, or run as root"
        )
    return (
        f"no Docker engine answers at {where} ({words}): start one, as ci/bootstrap does on Debian and Ubuntu, "
        "or set DOCKER_HOST"
    )
