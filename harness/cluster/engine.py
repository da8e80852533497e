"""Docker engine access and the images that runs need: found on the engine, else pulled, else built.

The engine is chosen as testcontainers chooses it: ``DOCKER_HOST``, else the docker client's current context, else the
local socket. Pulling is bounded in time. A host that reaches no registry fails at once (or within seconds if packets
are dropped) and builds interchangeable images instead; see ``images/recipes.py``.
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
from aftershock.harness.cluster.images.builder import Log
from aftershock.harness.cluster.images.recipes import is_here

SILENCE_S = 15.0
"""Limit of the time without progress, after which a pull is given up; also for a registry that does not answer."""
LIMIT_S = 600.0
POLL_S = 0.1


class PullError(Exception):
    """The image can't be pulled now; the text gives the reason."""


def pull(client: docker.DockerClient, name: str, cancelled: threading.Event) -> None:
    """Pull ``name`` (``repository:version``).

    Raises:
        PullError: the registry is unreachable, refuses, or is too slow.
        ImageError: ``cancelled`` was set.
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
    """Thread that reads a pull's progress, because the SDK waits for each line without a limit."""

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
        """Return the next progress event, None after the last. Raises queue.Empty after ``timeout`` seconds."""
        return self._events.get(timeout=timeout)


DEFAULT_KAFKA = "4.3.1"
TOXIPROXY = recipes.VERSION
OFFICIAL_KAFKA = "apache/kafka"
OFFICIAL_TOXIPROXY = "ghcr.io/shopify/toxiproxy"

LOCAL_SOCKET = "unix:///var/run/docker.sock"
CALL_TIMEOUT_S = 60


@dataclass(frozen=True)
class Image:
    """An image on the engine. ``digest`` is the registry's digest, or the image's id for an image without one."""

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
    """Official name and our name of an image, and the function that builds ours."""

    official: str
    ours: str
    build: Callable[[threading.Event], str]


def connect() -> docker.DockerClient:
    """Return a client of the engine that testcontainers uses too; see the module's docstring for the order.

    Raises:
        EngineError: no engine answers, or it denies access; the text says what to do.
    """
    host = os.environ.get("DOCKER_HOST", "")
    try:
        host = host or _context_host() or LOCAL_SOCKET
        _check_socket(host)
        # the environment holds the TLS settings that belong to DOCKER_HOST
        client = docker.from_env(timeout=CALL_TIMEOUT_S, environment={**os.environ, "DOCKER_HOST": host})
        client.ping()
    except (DockerException, ContextException, requests.RequestException, OSError, ValueError) as error:
        raise EngineError(_unreachable(host, str(error))) from error
    return client


def kafka_image(client: docker.DockerClient, version: str, log: Log, cancelled: threading.Event | None = None) -> Image:
    """Return an image of Kafka ``version`` (``4.3.1``), official or built by us; both fulfil the same contract.

    Args:
        client: the engine.
        version: a released version.
        log: receives a line before each action that takes time.
        cancelled: set it from another thread to end a pull or a build promptly.

    Raises:
        ImageError: the image can be neither pulled nor built.
        EngineError: the engine refused a request.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ImageError(f"{version!r} is not a Kafka version; use a released one, such as {DEFAULT_KAFKA}")
    source = _Source(
        f"{OFFICIAL_KAFKA}:{version}",
        recipes.kafka_name(version),
        lambda stop: recipes.build_kafka(client, version, log, stop),
    )
    return _ensure(client, source, log, cancelled or threading.Event())


def toxiproxy_image(client: docker.DockerClient, log: Log, cancelled: threading.Event | None = None) -> Image:
    """Return an image of the Toxiproxy version in use, official or built by us. Arguments and errors: `kafka_image`."""
    source = _Source(
        f"{OFFICIAL_TOXIPROXY}:{TOXIPROXY}",
        recipes.toxiproxy_name(),
        lambda stop: recipes.build_toxiproxy(client, log, stop),
    )
    return _ensure(client, source, log, cancelled or threading.Event())


def java_client_image(
    client: docker.DockerClient, version: str, log: Log, cancelled: threading.Event | None = None
) -> Image:
    """Return an image of Kafka's own Java client for ``client: java``, built on the Kafka image of that version.

    Arguments and errors: `kafka_image`.
    """
    stop = cancelled or threading.Event()
    kafka_name = kafka_image(client, version, log, stop).name
    with _engine_errors():
        here = is_here(client, recipes.java_client_name(kafka_name))
        name = recipes.build_java_client(client, kafka_name, log, stop)
        return Image(name, _digest(client, name), "here" if here else "built")


def images_here(client: docker.DockerClient) -> list[ImageHere]:
    """Return all images on the engine that a run could use, official and ours, sorted by name.

    Raises:
        EngineError: the engine refused a request.
    """
    ours = (f"{builder.REPOSITORY}/{name}" for name in ("kafka", "toxiproxy", recipes.JAVA_CLIENT_NAME))
    prefixes = tuple(f"{repository}:" for repository in (OFFICIAL_KAFKA, OFFICIAL_TOXIPROXY, *ours))
    with _engine_errors():
        sizes = {name: row["Size"] for row in client.api.images() for name in row["RepoTags"] or []}
        names = sorted(name for name in sizes if name.startswith(prefixes))
        return [ImageHere(name, _digest(client, name), sizes[name]) for name in names]


def _ensure(client: docker.DockerClient, source: _Source, log: Log, cancelled: threading.Event) -> Image:
    with _engine_errors():
        for name in (source.official, source.ours):
            if is_here(client, name):
                return Image(name, _digest(client, name), "here")
        log(f"pulling {source.official}")
        try:
            pull(client, source.official, cancelled)
            return Image(source.official, _digest(client, source.official), "pulled")
        except PullError as error:
            log(f"{source.official} can't be pulled ({error}): building an interchangeable image instead")
        name = source.build(cancelled)
        return Image(name, _digest(client, name), "built")


def _digest(client: docker.DockerClient, name: str) -> str:
    found = client.api.inspect_image(name)
    digests = found.get("RepoDigests") or []
    return str(digests[0].split("@")[-1] if digests else found["Id"])


@contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        raise EngineError(
            f"the Docker engine refused a request about images ({error}); check the engine with: docker info"
        ) from error


def _check_socket(host: str) -> None:
    """Raise OSError if nothing answers at a local socket: the SDK's own error is long, and it leaks its socket."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(host.removeprefix("unix://"))


def _context_host() -> str | None:
    """Return the address of the docker client's current context; None for the default context."""
    context = ContextAPI.get_current_context()
    return None if context is None or context.Name == "default" else context.Host


def _unreachable(host: str, reason: str) -> str:
    if "Permission denied" in reason:
        return f"the Docker engine at {host} denies access: join the docker group and log in again, or run as root"
    return (
        f"no Docker engine answers at {host} ({reason}): start one, as ci/bootstrap does on Debian and Ubuntu, "
        "or set DOCKER_HOST"
    )
