"""Recipes' names, and what a build leaves behind when it goes wrong. No engine is needed; the processes are real."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ImageNotFound

from aftershock.errors import ImageError
from aftershock.harness.cluster.images import builder
from aftershock.harness.cluster.images import recipes as cds
from aftershock.harness.cluster.images import recipes as kafka
from aftershock.harness.cluster.images import recipes as toxiproxy
from aftershock.harness.cluster.images.builder import (
    ImageBuilder,
    StepError,
    build_untagged,
    builds_folder,
    image_builder,
)


class FakeApi:
    """An engine without images, whose builder answers with given events."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = events
        self.tagged: list[str] = []
        self.removed: list[str] = []

    def inspect_image(self, name: str) -> dict[str, Any]:
        if name.startswith("sha256:"):
            return {"Id": name, "RepoTags": self.tagged}
        raise ImageNotFound(name)

    def build(self, **_: Any) -> Iterator[dict[str, Any]]:
        return iter(self.events)

    def tag(self, _image: str, repository: str, tag: str) -> None:
        self.tagged.append(f"{repository}:{tag}")

    def remove_image(self, image: str) -> None:
        self.removed.append(image)


class FakeClient:
    def __init__(self, events: list[dict[str, Any]] | None = None) -> None:
        self.api = FakeApi(events or [])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def log_lines() -> list[str]:
    return []


@pytest.fixture
def image_build(log_lines: list[str]) -> Iterator[ImageBuilder]:
    with image_builder(FakeClient(), "A Thing 1.0", log_lines.append) as made:
        yield made


def folder_with(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def test_a_name_changes_with_anything_that_goes_into_the_image(tmp_path: Path) -> None:
    """A byte in a file, a file's name, a pinned fact and the version each make another image."""
    recipes = [
        builder.tag("x", "1", [folder_with(tmp_path / "a", run="one")], ["base"]),
        builder.tag("x", "1", [folder_with(tmp_path / "b", run="two")], ["base"]),
        builder.tag("x", "1", [folder_with(tmp_path / "c", ran="one")], ["base"]),
        builder.tag("x", "1", [tmp_path / "a"], ["another base"]),
        builder.tag("x", "2", [tmp_path / "a"], ["base"]),
    ]

    assert len(recipes) == len(set(recipes))


def test_a_name_does_not_change_with_the_weather(tmp_path: Path) -> None:
    """The same contents written in another order, with Python's droppings beside them, are the same image."""
    contents = folder_with(tmp_path / "r", run="x", etc="y")
    before = builder.tag("x", "1", [contents])
    (contents / "run").unlink()
    (contents / "run").write_text("x")
    folder_with(contents / "__pycache__", junk="z")

    assert builder.tag("x", "1", [contents]) == before


def test_our_names_say_what_they_hold() -> None:
    """A built image is recognised by repository and version; two versions of Kafka are two images."""
    assert kafka.kafka_name("4.3.1").startswith("aftershock/kafka:4.3.1-")
    assert toxiproxy.toxiproxy_name().startswith("aftershock/toxiproxy:2.12.0-")
    assert kafka.kafka_name("4.3.1").split("-")[1] != kafka.kafka_name("4.1.2").split("-")[1]


def test_the_table_of_tools_is_well_formed() -> None:
    """Each row is a script's name and a class; no script is given twice."""
    lines = (builder.FOLDER / "kafka" / "tools").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]

    assert all(len(row) == 2 and row[0].startswith("kafka-") and "." in row[1] for row in rows)
    assert len(rows) == len({row[0] for row in rows})


def test_a_failed_step_is_named_with_its_log_and_its_last_words(
    image_build: ImageBuilder, log_lines: list[str]
) -> None:
    """The error names subject, step and log; the log holds the whole output and is still there afterwards."""
    with pytest.raises(ImageError) as raised, image_build.step("the hard part", about_s=3):
        image_build.run(["sh", "-c", "echo it began; echo it broke >&2; exit 7"])

    assert log_lines == ["building A Thing 1.0: the hard part, about 3 s"]
    for part in ("A Thing 1.0", "the hard part", "status 7", "it broke", str(image_build.log_path)):
        assert part in str(raised.value)
    image_build.close()
    assert "it began\nit broke\n" in (builds_folder() / "a-thing-1.0.log").read_text()


def test_whatever_ends_a_build_its_folder_is_gone(log_lines: list[str]) -> None:
    """Ctrl-C in the middle of a step removes the temporary folder and gives the lock back."""
    folders: list[Path] = []

    def build() -> None:
        with image_builder(FakeClient(), "thing", log_lines.append) as image_build:
            (image_build.folder / "half").write_text("made")
            folders.append(image_build.folder)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()

    assert not folders[0].exists()
    with image_builder(FakeClient(), "thing", log_lines.append):
        assert not [line for line in log_lines if "waiting" in line]


def test_cancelling_ends_a_command_and_all_it_started(image_build: ImageBuilder, tmp_path: Path) -> None:
    """Once cancelled, neither the command nor a child that it left in the background is alive."""
    pids = tmp_path / "pids"
    command = f"sleep 300 & echo $$ $! > {pids}.part; mv {pids}.part {pids}; wait"
    watcher = threading.Thread(target=lambda: (wait_for_file(pids), image_build.cancelled.set()))
    watcher.start()

    with pytest.raises(ImageError, match="interrupted"), image_build.step("endless", about_s=300):
        image_build.run(["sh", "-c", command])

    watcher.join()
    for pid in map(int, pids.read_text().split()):
        assert gone(pid)


def test_a_second_build_of_the_same_thing_waits_and_can_be_called_off(log_lines: list[str]) -> None:
    """While one build holds the lock another says that it waits, and ends when cancelled."""
    cancelled = threading.Event()

    def say(line: str) -> None:
        log_lines.append(line)
        cancelled.set()

    second = image_builder(FakeClient(), "thing", say, cancelled)
    with image_builder(FakeClient(), "thing", log_lines.append), pytest.raises(ImageError, match="interrupted"):
        second.__enter__()

    assert log_lines == ["building thing: waiting for another process that builds it"]


def test_a_builder_that_fails_leaves_no_tag(tmp_path: Path, image_build: ImageBuilder) -> None:
    """The engine's error ends the step; nothing was tagged, and the engine's words are in the log."""
    image_build.client.api.events = [{"stream": "Step 1/2 : FROM base"}, {"error": "no space left on device"}]

    with pytest.raises(StepError, match="no space left"):
        build_untagged(image_build, tmp_path)
    image_build.close()

    assert image_build.client.api.tagged == []
    assert "Step 1/2" in image_build.log_path.read_text()


def test_a_layer_that_nothing_was_built_on_goes_with_the_build(tmp_path: Path, image_build: ImageBuilder) -> None:
    """An image that never got a tag is removed at the end; one that did stays."""
    image_build.client.api.events = [{"aux": {"ID": "sha256:1"}}]

    assert build_untagged(image_build, tmp_path) == "sha256:1"
    image_build.close()

    assert image_build.client.api.removed == ["sha256:1"]


def test_a_compiler_that_fails_is_an_error_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    """The whole Toxiproxy build with a Go that is new enough but can't reach its modules: a sentence, no tag."""
    stand_in(tmp_path, monkeypatch, "go", '[ "$1" = env ] && echo go1.26.1 || { echo proxy unreachable >&2; exit 1; }')
    client = FakeClient()

    with pytest.raises(ImageError, match=r"Toxiproxy 2.12.0 failed in step “server \(go install\)”") as raised:
        toxiproxy.build_toxiproxy(client, log_lines.append, threading.Event())

    assert "proxy unreachable" in str(raised.value)
    assert client.api.tagged == []


def test_a_go_that_is_too_old_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]) -> None:
    """Debian 12's Go can't build it: the text says which version is needed, before anything is tried."""
    stand_in(tmp_path, monkeypatch, "go", "echo go1.19.8")

    with pytest.raises(ImageError, match=r"Go 1\.21 or later is required"):
        toxiproxy.build_toxiproxy(FakeClient(), log_lines.append, threading.Event())


def test_kafka_before_4_can_not_be_built(log_lines: list[str]) -> None:
    """The recipe does not fit 3.x, and says so before it starts."""
    with pytest.raises(ImageError, match=r"can't build Kafka 3\.9\.1"):
        kafka.build_kafka(FakeClient(), "3.9.1", log_lines.append, threading.Event())
    assert log_lines == []


@pytest.mark.parametrize("status", [1, 137])
def test_a_training_node_that_fails_is_removed_and_its_output_kept(image_build: ImageBuilder, status: int) -> None:
    """A failed training run is a failed step; its container is gone, its output in the log."""
    container = FakeContainer(status)
    image_build.client.containers = container

    with pytest.raises(StepError, match=f"status {status}"):
        cds.train(image_build, "sha256:1", "exit 1")
    image_build.close()

    assert container.removed
    assert "the node's last words" in image_build.log_path.read_text()


class FakeContainer:
    """A collection of containers that is its only container, which has ended."""

    id = "c1"
    status = "exited"
    removed = False

    def __init__(self, exit_code: int) -> None:
        self.attrs = {"State": {"ExitCode": exit_code}}

    def create(self, *_: Any, **__: Any) -> "FakeContainer":
        return self

    def start(self) -> None: ...

    def reload(self) -> None: ...

    def logs(self) -> bytes:
        return b"the node's last words"

    def remove(self, **_: Any) -> None:
        self.removed = True


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, script: str) -> None:
    """Put a script of that name first on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / command).write_text(f"#!/bin/sh\n{script}\n")
    (folder / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def wait_for_file(path: Path) -> None:
    poll = threading.Event()
    for _ in range(200):
        if path.exists():
            return
        poll.wait(0.05)


def gone(pid: int) -> bool:
    """Whether the process is no more, or only a zombie that its parent has not looked at yet; given a moment."""
    poll = threading.Event()
    for _ in range(40):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        poll.wait(0.05)
    return False
