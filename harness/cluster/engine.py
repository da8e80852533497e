"""Access to the Docker engine, and to the images that runs need, which are pulled or built if missing.

The Docker engine is that of ``DOCKER_HOST``, else of the docker client's current context, else of the local socket, as
in testcontainers. If an image can't be pulled in time, `images.build` builds an equivalent image.
"""

import os
import queue
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import docker
import requests
from docker.context import ContextAPI
from docker.errors import APIError, ContainerError, ContextException, DockerException
from urllib3.exceptions import HTTPError

from aftershock.errors import AftershockError, EngineError, ImageError, Log
from aftershock.faults.sections.cluster import RELEASE
from aftershock.harness.cluster.images import build
from aftershock.harness.cluster.images.build import Recipe, has_image

SILENCE_S = 15.0  # limit of the time without progress of an image pull
LIMIT_S = 600.0
DEFAULT_KAFKA = "4.3.1"
TOXIPROXY = build.TOXIPROXY_VERSION
OFFICIAL_KAFKA = "apache/kafka"
OFFICIAL_TOXIPROXY = "ghcr.io/shopify/toxiproxy"
_OURS = ("kafka", "toxiproxy", "java-client", "tools", "worker", "runner", *build.SERVICES)
_TAGGED = re.compile(r":(\d+\.\d+\.\d+)")
_RELEASE = re.compile(RELEASE)
_LOCAL = "http+docker://"  # begin of the SDK's address of an engine that it reaches through a socket of this host


@dataclass(frozen=True)
class Image:
    """A Docker image; ``digest`` is the image registry's digest, or the image id if Aftershock built the image."""

    name: str
    digest: str
    origin: Literal["here", "pulled", "built"]


@dataclass(frozen=True)
class ImageHere:
    """An image in the table that ``aftershock images`` prints."""

    name: str
    digest: str
    size_bytes: int


def connect() -> docker.DockerClient:
    """Return a client of the Docker engine; raise EngineError if no engine answers or access is denied."""
    host = os.environ.get("DOCKER_HOST", "")
    try:
        name = os.environ.get("DOCKER_CONTEXT")
        context = None if host else ContextAPI.get_context(name) if name else ContextAPI.get_current_context()
        if name and not host and context is None:
            raise EngineError(f"DOCKER_CONTEXT names {name}, which is no context; `docker context ls` lists them")
        if context is not None and context.Name != "default":
            host = context.Host
        host = host or "unix:///var/run/docker.sock"
        if host.startswith("unix://"):
            # for a socket without a listener, the SDK's own error is long and leaks a socket
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(host.removeprefix("unix://"))
        # the environment holds the TLS settings that belong to DOCKER_HOST
        client = docker.from_env(timeout=60, environment={**os.environ, "DOCKER_HOST": host})
        client.ping()
    except (DockerException, ContextException, requests.RequestException, OSError, ValueError) as error:
        if "Permission denied" in str(error):
            raise EngineError(
                f"the Docker engine at {host} denies access: join the docker group and log in again, or run as root"
            ) from error
        raise EngineError(
            f"no Docker engine answers at {host} ({error}): start an engine, as ci/bootstrap does on Debian and "
            "Ubuntu, or set DOCKER_HOST"
        ) from error
    return client


def block_device_refusal(client: docker.DockerClient) -> str | None:
    """Return why nodes can't have block devices on this engine, and what to do; None if nothing is known against it."""
    with docker_errors(EngineError, "ask for its security options"):
        options = client.info().get("SecurityOptions") or ()
    if any("rootless" in option for option in options):
        return "a rootless engine may not mount file systems; use an engine that runs as root"
    if client.api.base_url.startswith(_LOCAL) and not Path("/dev/loop-control").exists():
        return "this host has no loop devices; load the kernel's module with: modprobe loop"
    return None


def volumes_folder(client: docker.DockerClient) -> Path | None:
    """Return the folder of the Docker engine's volumes; None if the engine may be on another host."""
    if not client.api.base_url.startswith(_LOCAL):
        return None
    with docker_errors(EngineError, "ask for the folder of its volumes"):
        return Path(client.info()["DockerRootDir"])


@contextmanager
def docker_errors(kind: type[AftershockError], action: str) -> Iterator[None]:
    """Raise ``kind`` with ``action`` and Docker's reason if Docker refuses a request in the ``with`` block.

    Raises EngineError if the engine does not answer.
    """
    try:
        yield
    except APIError as error:
        raise kind(f"can't {action}: {error.explanation or error}") from error
    except (DockerException, requests.RequestException, HTTPError) as error:
        raise engine_error(error) or error from error


def run_to_end(client: docker.DockerClient, image: str, command: list[str], **options: Any) -> bytes:
    """Run a command in a new container, and remove the container with its anonymous volumes; return the output.

    `docker.containers.run(remove=True)` would leave a volume for each ``VOLUME`` of the image. Raises ContainerError if
    the exit status is not 0, and Docker's errors.
    """
    container = client.containers.create(image, command, **options)
    try:
        container.start()
        status = container.wait()["StatusCode"]
        if status != 0:
            raise ContainerError(container, status, command, image, container.logs(stdout=False, stderr=True))
        output: bytes = container.logs(stdout=True, stderr=False)
        return output
    finally:
        container.remove(force=True, v=True)


def engine_error(error: BaseException) -> EngineError | None:
    """Return the EngineError for an exception of the Docker SDK or its HTTP client; None for another exception.

    Most of these exceptions are also OSError, so this comes before any handling of OSError.
    """
    if isinstance(error, APIError):
        return EngineError(f"the Docker engine refused a request: {error.explanation or error}")
    if isinstance(error, (DockerException, requests.RequestException, HTTPError)):
        return EngineError(
            f"the Docker engine stopped answering ({error}); see its log, start it again, then type: aftershock heal"
        )
    return None


def kafka_image(client: docker.DockerClient, version: str, log: Log) -> Image:
    """Return an image of Kafka ``version`` (``4.3.1``), either the official image, or an equivalent that is built.

    Raises ImageError if the image can be neither pulled nor built, and EngineError if the Docker engine refused a
    request.
    """
    if not _RELEASE.fullmatch(version):
        raise ImageError(f"{version!r} is not a Kafka version; use a released version, such as {DEFAULT_KAFKA}")
    return _ensure(client, f"{OFFICIAL_KAFKA}:{version}", build.kafka(version), log)


def local_image(client: docker.DockerClient, name: str) -> Image:
    """Return a user's image that is on the engine; raise ImageError if it is missing, as such images are not pulled."""
    with _engine_errors():
        if has_image(client, name):
            return Image(name, _digest(client, name), "here")
    raise ImageError(
        f"the image {name} is not on the Docker engine, and images of your own are not pulled: build it, or type: "
        f"docker pull {name}"
    )


def version_in(image: str) -> str:
    """Return the Kafka version in the tag of an image, or the image's whole name if the tag has none."""
    match = _TAGGED.search(image)
    return match[1] if match else image


def toxiproxy_image(client: docker.DockerClient, log: Log) -> Image:
    return _ensure(client, f"{OFFICIAL_TOXIPROXY}:{TOXIPROXY}", build.toxiproxy(), log)


def java_client_image(client: docker.DockerClient, version: str, log: Log) -> Image:
    """Return an image of Kafka's Java client, which is built on top of the image of Kafka ``version``.

    Kafka 3.x has no share consumer, which the image needs, so the clients of such a cluster are those of DEFAULT_KAFKA,
    as are those of a cluster with an image whose version is unknown.
    """
    if version.startswith("3.") or not _RELEASE.fullmatch(version):
        version = DEFAULT_KAFKA
    return _built(client, build.java_client(kafka_image(client, version, log).name), log)


def worker_image(client: docker.DockerClient, log: Log) -> Image:
    """Return the image of pods in which clients run, which is built; raise ImageError if it can't be."""
    return _built(client, build.worker(), log)


def runner_image(client: docker.DockerClient, log: Log) -> Image:
    """Return the image of a pod in which `aftershock` runs, which is built; raise ImageError if it can't be."""
    return _built(client, build.runner(), log)


def service_image(client: docker.DockerClient, name: str, log: Log) -> Image:
    """Return the image that a plan names for a service under test: a shipped one, which is built, or a user's.

    Raises ImageError if a shipped image can't be built, or if a user's image is not on the engine.
    """
    ours = name.removeprefix(f"{build.REPOSITORY}/")
    if name == f"{build.REPOSITORY}/{ours}" and ours in build.SERVICES:
        return _built(client, build.service(ours, kafka_image(client, DEFAULT_KAFKA, log).name), log)
    return local_image(client, name)


def tools_image(client: docker.DockerClient, log: Log) -> Image:
    """Return an image with tools for block devices (util-linux, e2fsprogs, perl), clocks and packets."""
    return _built(client, build.tools(), log)


def images_here(client: docker.DockerClient) -> list[ImageHere]:
    """Return all images on the Docker engine that a run could use, sorted by name."""
    ours = (f"{build.REPOSITORY}/{name}" for name in _OURS)
    prefixes = tuple(f"{repository}:" for repository in (OFFICIAL_KAFKA, OFFICIAL_TOXIPROXY, *ours))
    with _engine_errors():
        sizes = {name: row["Size"] for row in client.api.images() for name in row["RepoTags"] or []}
        names = sorted(name for name in sizes if name.startswith(prefixes))
        return [ImageHere(name, _digest(client, name), sizes[name]) for name in names]


def _built(client: docker.DockerClient, recipe: Recipe, log: Log) -> Image:
    with _engine_errors():
        present = has_image(client, recipe.name)
        name = build.build_image(client, recipe, log)
        return Image(name, _digest(client, name), "here" if present else "built")


def _ensure(client: docker.DockerClient, official: str, recipe: Recipe, log: Log) -> Image:
    with _engine_errors():
        for name in (official, recipe.name):
            if has_image(client, name):
                return Image(name, _digest(client, name), "here")
        log(f"pulling {official}")
        try:
            pull(client, official)
            return Image(official, _digest(client, official), "pulled")
        except PullError as error:
            log(f"the image {official} can't be pulled ({error}): building an equivalent image instead")
        name = build.build_image(client, recipe, log)
        return Image(name, _digest(client, name), "built")


class PullError(Exception): ...


def pull(client: docker.DockerClient, name: str) -> None:
    """Pull an image. Raises PullError if the image registry is unreachable, refuses the pull, or is too slow."""
    events = queue.SimpleQueue[dict[str, Any] | None]()

    def read() -> None:
        repository, version = name.rsplit(":", 1)
        try:
            for event in client.api.pull(repository, tag=version, stream=True, decode=True):
                events.put(event)
        except (DockerException, requests.RequestException) as error:
            events.put({"error": str(getattr(error, "explanation", None) or error)})
        events.put(None)

    # a thread, because the SDK waits for each event without a limit
    threading.Thread(target=read, name=f"pull {name}", daemon=True).start()
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        try:
            event = events.get(timeout=SILENCE_S)
        except queue.Empty:
            raise PullError(f"no progress for {SILENCE_S:.0f} s") from None
        if event is None:
            return
        if "error" in event:
            raise PullError(event["error"])
        if time.monotonic() > deadline_s:
            raise PullError(f"not done after {LIMIT_S:.0f} s")


def _digest(client: docker.DockerClient, name: str) -> str:
    image = client.api.inspect_image(name)
    digests = image.get("RepoDigests") or []
    return str(digests[0].split("@")[-1] if digests else image["Id"])


@contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        raise EngineError(
            f"the Docker engine refused a request about images ({error}); check the engine with: docker info"
        ) from error
