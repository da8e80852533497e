"""The order in which an image is looked for, and the sentences for an engine that is not there. No engine is needed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, DockerException, ImageNotFound

from aftershock.errors import EngineError, ImageError
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.images import build
from aftershock.harness.cluster.images.build import Recipe

OFFICIAL = "apache/kafka:4.3.1"
OURS = build.kafka("4.3.1").name


class FakeApi:
    """An engine that holds images by name; ``registry`` is what a pull answers, an exception or lines of progress."""

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
    """Builds become an entry in this list and an image on the engine."""
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
def test_what_is_here_is_taken(here: list[str], expected: engine.Image, built: list[str]) -> None:
    """The official image first, then ours; nothing is pulled or built for either."""
    client = FakeClient(*here)

    assert ask(client) == expected
    assert client.api.pulled == built == []


def test_what_is_not_here_is_pulled(built: list[str]) -> None:
    """A registry that answers spares the build."""
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
def test_what_can_not_be_pulled_is_built(registry: Any, built: list[str]) -> None:
    """A registry that can't be reached, or breaks off, leads to a build, and the user is told why."""
    said: list[str] = []

    image = engine.kafka_image(FakeClient(registry=registry), "4.3.1", said.append)

    assert image == engine.Image(OURS, "sha256:id", "built")
    assert built == ["4.3.1"]
    assert [line for line in said if "no such host" in line or "rate limit" in line]


def test_a_silent_registry_is_given_up(monkeypatch: pytest.MonkeyPatch, built: list[str]) -> None:
    """Packets that vanish cost a bounded wait, then the image is built."""
    monkeypatch.setattr(engine, "SILENCE_S", 0.05)
    forever = threading.Event()

    assert ask(FakeClient(registry=[forever])).origin == "built"
    assert built == ["4.3.1"]
    forever.set()


@pytest.mark.parametrize("version", ["latest", "4.3", "4.3.1 ", "4.3.1; rm", ""])
def test_a_version_that_is_none_is_refused(version: str) -> None:
    """What is not a released version's number is never sent to an engine or a shell."""
    with pytest.raises(ImageError, match="is not a Kafka version"):
        engine.kafka_image(FakeClient(), version, lambda _: None)


def test_only_images_a_run_could_use_are_listed() -> None:
    """Kafka and Toxiproxy, official and ours, by name; bases, strangers and untagged layers are not."""
    client = FakeClient(OFFICIAL, OURS, "aftershock/base:x", "apache/kafka-native:4.3.1", "postgres:17")

    assert [OURS, OFFICIAL] == [image.name for image in engine.images_here(client)]


def test_no_engine_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DOCKER_HOST where nobody listens: the text names the place and says what to do."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    with pytest.raises(EngineError, match=r"no Docker engine answers at unix://.*none\.sock.*ci/bootstrap"):
        engine.connect()


def test_a_malformed_docker_host_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nonsense in DOCKER_HOST is reported, not raised from the depths of the SDK."""
    monkeypatch.setenv("DOCKER_HOST", "nonsense://")

    with pytest.raises(EngineError, match="nonsense"):
        engine.connect()


def test_permission_denied_has_a_sentence_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is there but closed to us is another problem with another remedy."""

    def refuse(**_: Any) -> None:
        raise DockerException("('Connection aborted.', PermissionError(13, 'Permission denied'))")

    monkeypatch.setenv("DOCKER_HOST", "tcp://engine:2375")
    monkeypatch.setattr(engine.docker, "from_env", refuse)
    with pytest.raises(
        EngineError, match="the Docker engine at tcp://engine:2375 denies access: join the docker group"
    ):
        engine.connect()
