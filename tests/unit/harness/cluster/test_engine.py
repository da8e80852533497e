"""Lookup order of images, and errors of an unreachable engine. No engine is needed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, DockerException, ImageNotFound
from requests.exceptions import ConnectionError as NoConnection

from aftershock.errors import ClusterError, EngineError, ImageError
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.images import build
from aftershock.harness.cluster.images.build import Recipe

OFFICIAL = "apache/kafka:4.3.1"
OURS = build.kafka("4.3.1").name


class FakeApi:
    """An engine that holds images by name; ``registry`` is the result of a pull: an exception or lines of progress."""

    def __init__(self, here: set[str], registry: Any) -> None:
        self.here = here
        self.registry = registry
        self.pulled: list[str] = []

    def inspect_image(self, name: str) -> dict[str, Any]:
        if name not in self.here:
            raise ImageNotFound(name)
        return {
            "Id": "sha256:id",
            "RepoDigests": [f"{name.split(':', maxsplit=1)[0]}@sha256:digest"] if name == OFFICIAL else [],
        }

    def pull(self, repository: str, tag: str, **_: Any) -> Iterator[dict[str, Any]]:
        self.pulled.append(f"{repository}:{tag}")
        if isinstance(self.registry, Exception):
            raise self.registry
        for event in self.registry:
            if isinstance(event, threading.Event):
                event.wait()
            else:
                yield event
        self.here.add(f"{repository}:{tag}")

    def images(self) -> list[dict[str, Any]]:
        return [{"RepoTags": [name], "Size": 7} for name in self.here] + [{"RepoTags": None, "Size": 1}]


class FakeClient:
    def __init__(self, *here: str, registry: Any = ()) -> None:
        self.api = FakeApi(set(here), registry)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record builds in the returned list, and put the built image on the engine."""
    versions: list[str] = []

    def build_image(client: FakeClient, recipe: Recipe, _log: Any) -> str:
        versions.append(recipe.version)
        client.api.here.add(recipe.name)
        return recipe.name

    monkeypatch.setattr(build, "build_image", build_image)
    return versions


def ask(client: FakeClient) -> engine.Image:
    return engine.kafka_image(client, "4.3.1", lambda _: None)


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ([OFFICIAL], engine.Image(OFFICIAL, "sha256:digest", "here")),
        ([OURS], engine.Image(OURS, "sha256:id", "here")),
        ([OURS, OFFICIAL], engine.Image(OFFICIAL, "sha256:digest", "here")),
    ],
)
def test_a_local_image_is_used(here: list[str], expected: engine.Image, built: list[str]) -> None:
    """The official image comes first, then ours; neither pull nor build follows."""
    client = FakeClient(*here)

    assert ask(client) == expected
    assert client.api.pulled == built == []


def test_a_missing_image_is_pulled(built: list[str]) -> None:
    """An image that the registry provides is not built."""
    client = FakeClient(registry=[{"status": "Pulling"}, {"status": "Downloading"}])

    assert ask(client) == engine.Image(OFFICIAL, "sha256:digest", "pulled")
    assert built == []


@pytest.mark.parametrize(
    "registry",
    [
        APIError("500 Server Error", explanation="lookup of the registry: no such host"),
        [{"status": "Pulling"}, {"error": "toomanyrequests: rate limit"}],
    ],
)
def test_an_image_that_can_not_be_pulled_is_built(registry: Any, built: list[str]) -> None:
    """The registry can't be reached or breaks off: the image is built, and the log gives the reason."""
    said: list[str] = []

    image = engine.kafka_image(FakeClient(registry=registry), "4.3.1", said.append)

    assert image == engine.Image(OURS, "sha256:id", "built")
    assert built == ["4.3.1"]
    assert [line for line in said if "no such host" in line or "rate limit" in line]


def test_a_silent_registry_times_out(monkeypatch: pytest.MonkeyPatch, built: list[str]) -> None:
    """The wait for a registry that never answers is bounded, then the image is built."""
    monkeypatch.setattr(engine, "SILENCE_S", 0.05)
    forever = threading.Event()

    assert ask(FakeClient(registry=[forever])).origin == "built"
    assert built == ["4.3.1"]
    forever.set()


@pytest.mark.parametrize("version", ["latest", "4.3", "4.3.1 ", "4.3.1; rm", ""])
def test_an_invalid_version_is_refused(version: str) -> None:
    """Only the number of a released version reaches an engine or a shell."""
    with pytest.raises(ImageError, match="is not a Kafka version"):
        engine.kafka_image(FakeClient(), version, lambda _: None)


def test_only_images_a_run_could_use_are_listed() -> None:
    """Images of Kafka and Toxiproxy, official and ours, by name; not base images, other repositories or untagged
    layers.
    """
    client = FakeClient(OFFICIAL, OURS, "aftershock/base:x", "apache/kafka-native:4.3.1", "postgres:17")

    assert [OURS, OFFICIAL] == [image.name for image in engine.images_here(client)]


def test_a_missing_engine_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DOCKER_HOST names an address without listener: the error names the address and the remedy."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    with pytest.raises(EngineError, match=r"no Docker engine answers at unix://.*none\.sock.*ci/bootstrap"):
        engine.connect()


def test_a_malformed_docker_host_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's exception is turned into our error."""
    monkeypatch.setenv("DOCKER_HOST", "nonsense://")

    with pytest.raises(EngineError, match="nonsense"):
        engine.connect()


def test_an_unknown_context_is_not_replaced_by_the_default_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONTEXT", "nope")
    with pytest.raises(EngineError, match="DOCKER_CONTEXT names nope, which is no context"):
        engine.connect()


def test_a_refusal_differs_from_an_engine_without_answer() -> None:
    """A refused request is an error of the operation; without an answer the engine is to blame."""
    with pytest.raises(ClusterError, match="can't stop the node k1: driver failed"):
        with engine.docker_errors(ClusterError, "stop the node k1"):
            raise APIError("500 Server Error", explanation="driver failed")
    with pytest.raises(EngineError, match="the Docker engine stopped answering"):
        with engine.docker_errors(ClusterError, "stop the node k1"):
            raise NoConnection("refused")


def test_permission_denied_is_a_separate_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running engine without permission has another remedy than a missing engine."""

    def refuse(**_: Any) -> None:
        raise DockerException("('Connection aborted.', PermissionError(13, 'Permission denied'))")

    monkeypatch.setenv("DOCKER_HOST", "tcp://engine:2375")
    monkeypatch.setattr(engine.docker, "from_env", refuse)
    with pytest.raises(
        EngineError, match="the Docker engine at tcp://engine:2375 denies access: join the docker group"
    ):
        engine.connect()


@pytest.mark.parametrize(("version", "client"), [("4.1.2", "4.1.2"), ("3.9.1", "4.3.1"), ("ours/kafka:fixed", "4.3.1")])
def test_java_clients_have_share_consumers(built: list[str], version: str, client: str) -> None:
    """Kafka 3.x has none, and the version of a user's image may be unknown: their Java clients are the default's."""
    engine.java_client_image(FakeClient(registry=APIError("no registry")), version, print)
    assert [client, client] == built


@pytest.mark.usefixtures("built")
def test_shipped_services_are_built() -> None:
    """Their names in a plan have no version; other images are the user's, also with our name in front."""
    client = FakeClient("acme/billing:1.4", registry=APIError("no registry"))
    names = [f"aftershock/{service}" for service in build.SERVICES]
    images = [engine.service_image(client, name, print).name for name in names]
    assert [f"{name}:4.3.1" for name in names] == [image.rpartition("-")[0] for image in images]
    assert {*images} <= {image.name for image in engine.images_here(client)}
    assert "acme/billing:1.4" == engine.service_image(client, "acme/billing:1.4", print).name
    with pytest.raises(ImageError, match="docker pull aftershock/kafka"):
        engine.service_image(client, "aftershock/kafka", print)


def test_an_image_of_the_user_is_never_pulled() -> None:
    """The image may be a stranger's: what is not on the engine is an error that says how to get it."""
    client = FakeClient("ours/kafka:1")
    assert engine.Image("ours/kafka:1", "sha256:id", "here") == engine.local_image(client, "ours/kafka:1")
    with pytest.raises(ImageError, match="docker pull ours/kafka:2"):
        engine.local_image(client, "ours/kafka:2")
    assert [] == client.api.pulled
