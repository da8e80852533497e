"""Names of images, and remains of a failed build. No engine is needed; the processes are real."""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from docker.errors import ImageNotFound

from aftershock.errors import ImageError
from aftershock.harness.cluster.images import build
from aftershock.harness.cluster.images.build import Build, Recipe, build_image
from aftershock.harness.safety.lease import cache_folder


class FakeApi:
    """An engine whose builder returns the given events, and tags the image unless one of them is an error."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = events
        self.images: set[str] = set()
        self.pruned: list[dict[str, Any]] = []
        self.contexts: list[set[str]] = []

    def inspect_image(self, name: str) -> dict[str, Any]:
        if name not in self.images:
            raise ImageNotFound(name)
        return {"Id": name}

    def build(self, path: str, tag: str, **_: Any) -> Iterator[dict[str, Any]]:
        self.contexts.append({file.name for file in Path(path).iterdir()})
        yield from self.events
        if not any("error" in event for event in self.events):
            self.images.add(tag)

    def prune_images(self, filters: dict[str, Any]) -> None:
        self.pruned.append(filters)


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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the Dockerfile of the image `thing`."""
    monkeypatch.setattr(build, "_FOLDER", tmp_path)
    return folder_with(tmp_path / "thing", Dockerfile="FROM scratch")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return folder_with(tmp_path / "scratch")


def folder_with(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def recipe(download: Callable[[Build], None] = lambda _: None, version: str = "1", **fields: Any) -> Recipe:
    return Recipe("thing", version, download, ("the hard part", 3), 2, **fields)


def test_a_name_changes_with_anything_that_goes_into_the_image(folder: Path) -> None:
    """A byte in a file, a file's name, a pinned coordinate, the parent and the version each change the name."""
    names = [recipe(pinned=["base"]).name]
    (folder / "run").write_text("one")
    names += [recipe(pinned=["base"]).name]
    (folder / "run").write_text("two")
    names += [recipe(pinned=["base"]).name]
    (folder / "run").rename(folder / "ran")
    names += [recipe(pinned=["base"]).name, recipe().name, recipe(base="base").name, recipe(version="2").name]

    assert len(names) == len({name.rsplit("-")[1] for name in names})


def test_a_name_does_not_change_with_the_order_of_writing(folder: Path) -> None:
    """The same files written in another order, with Python's caches beside them, give the same name."""
    (folder / "run").write_text("x")
    (folder / "etc").write_text("y")
    before = recipe().name
    (folder / "run").unlink()
    (folder / "run").write_text("x")
    folder_with(folder / "__pycache__", junk="z")

    assert recipe().name == before


def test_names_contain_the_version() -> None:
    """Built images are identified by repository and version."""
    assert build.kafka("4.3.1").name.startswith("aftershock/kafka:4.3.1-")
    assert build.toxiproxy().name.startswith("aftershock/toxiproxy:2.12.0-")
    assert build.kafka("4.3.1").name.split("-")[1] != build.kafka("4.1.2").name.split("-")[1]


def test_the_table_of_tools_is_well_formed() -> None:
    """Each row is a script's name and a class; no script is given twice."""
    lines = (build.kafka("4.3.1").folder / "tools").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]

    assert all(len(row) == 2 and row[0].startswith("kafka-") and "." in row[1] for row in rows)
    assert len(rows) == len({row[0] for row in rows})


@pytest.mark.usefixtures("folder")
def test_a_failed_step_is_named_with_its_log_and_its_last_lines(log_lines: list[str]) -> None:
    """The error names subject, step and log; the log has the whole output and is kept."""
    failing = recipe(lambda it: it.run(["sh", "-c", "echo it began; echo it broke >&2; exit 7"]))
    with pytest.raises(ImageError) as raised:
        build_image(FakeClient(), failing, log_lines.append)

    assert log_lines == ["building thing 1: the hard part, about 3 s"]
    log = cache_folder() / "builds" / "thing-1.log"
    for part in ("thing 1", "the hard part", "status 7", "it broke", str(log)):
        assert part in str(raised.value)
    assert "it began\nit broke\n" in log.read_text()


@pytest.mark.usefixtures("folder")
def test_an_image_is_built_once(log_lines: list[str]) -> None:
    """The build context has the folder's files and the downloads; the parent is built first."""
    client, parent = FakeClient(), recipe(version="0")
    thing = recipe(lambda it: it.context.joinpath("jar").touch(), base=parent.name, parent=parent)
    for _ in range(2):
        assert build_image(client, thing, log_lines.append) == thing.name

    assert {thing.name, parent.name} == client.api.images
    assert client.api.contexts == [{"Dockerfile"}, {"Dockerfile", "jar"}]


@pytest.mark.usefixtures("folder")
def test_an_interrupted_build_leaves_no_folder(log_lines: list[str]) -> None:
    """An interrupt during a step removes the temporary folder and releases the lock."""
    scratch: list[Path] = []

    def interrupted(it: Build) -> None:
        scratch.append(it.scratch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_image(FakeClient(), recipe(interrupted), log_lines.append)

    assert not scratch[0].exists()
    build_image(FakeClient(), recipe(), log_lines.append)
    assert not [line for line in log_lines if "waiting" in line]


def test_ctrl_c_ends_a_command_and_its_children(tmp_path: Path, scratch: Path) -> None:
    """Neither the command nor a child that it left in the background is alive."""
    pids = tmp_path / "pids"
    command = f"sleep 300 & echo $$ $! > {pids}.part; mv {pids}.part {pids}; wait"
    main = threading.main_thread().ident
    assert main
    watcher = threading.Thread(target=lambda: (wait_for_file(pids), signal.pthread_kill(main, signal.SIGINT)))
    watcher.start()

    with pytest.raises(KeyboardInterrupt):
        Build("thing", print, tmp_path / "log", scratch).run(["sh", "-c", command])

    watcher.join()
    for pid in map(int, pids.read_text().split()):
        assert gone(pid)


@pytest.mark.usefixtures("folder")
def test_a_second_build_of_the_same_image_waits(log_lines: list[str]) -> None:
    """The second process logs that it waits, then uses the image of the first."""
    client, ended = FakeClient(), threading.Event()

    def first(_: Build) -> None:
        second.start()
        ended.wait(10)

    def log(line: str) -> None:
        log_lines.append(line)
        ended.set()

    second = threading.Thread(target=build_image, args=(client, recipe(), log))
    build_image(client, recipe(first), print)
    second.join()

    assert log_lines == ["building thing 1: waiting for another process that builds it"]
    assert 1 == len(client.api.contexts)


@pytest.mark.usefixtures("folder")
def test_a_dockerfile_that_fails_leaves_no_image() -> None:
    """The engine's error ends the step and is in the log; no image is tagged, and untagged images are removed."""
    client = FakeClient([{"stream": "Step 1/2 : FROM base"}, {"error": "no space left on device"}])

    with pytest.raises(ImageError, match="no space left") as raised:
        build_image(client, recipe(), print)

    assert client.api.images == set()
    assert "Step 1/2" in str(raised.value)
    assert client.api.pruned == [{"dangling": True, "label": f"aftershock.build={recipe().name}"}]


def test_a_compiler_that_fails_is_an_error_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    """The whole Toxiproxy build with a Go that can't download its modules: an error, and no tag."""
    stand_in(tmp_path, monkeypatch, "go", '[ "$1" = env ] && echo go1.26.1 || { echo proxy unreachable >&2; exit 1; }')
    client = FakeClient()

    with pytest.raises(ImageError, match=r"toxiproxy 2.12.0 failed in step “server \(go install\)”") as raised:
        build_image(client, build.toxiproxy(), log_lines.append)

    assert "proxy unreachable" in str(raised.value)
    assert client.api.images == set()


def test_a_go_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]) -> None:
    """Debian 12's Go can't build Toxiproxy: the error names the required version, before the build starts."""
    stand_in(tmp_path, monkeypatch, "go", "echo go1.19.8")

    with pytest.raises(ImageError, match=r"needs Go 1\.21 or later"):
        build_image(FakeClient(), build.toxiproxy(), log_lines.append)


def test_kafka_before_3_7_can_not_be_built(log_lines: list[str]) -> None:
    """The recipe does not fit 3.6: the error comes before any download."""
    with pytest.raises(
        ImageError,
        match=r"building kafka 3\.6\.2 failed .*: the build of a Kafka image supports Kafka 3\.7\.0 and later",
    ):
        build_image(FakeClient(), build.kafka("3.6.2"), log_lines.append)


@pytest.mark.parametrize(("version", "binding"), [("4.3.1", []), ("3.9.1", ["org.slf4j", "slf4j-reload4j", "1.7.36"])])
def test_each_kafka_gets_its_binding_of_slf4j(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[str], version: str, binding: list[str]
) -> None:
    """Kafka 3.x logs with Log4j 1: with the binding of 4.x beside its own, its log would go to either."""
    stand_in(tmp_path, monkeypatch, "mvn", f'echo "$@" >{tmp_path}/words')
    client, recipe = FakeClient(), build.kafka(version)
    client.api.images.add(build.base().name)
    build_image(client, recipe, log_lines.append)
    words = (tmp_path / "words").read_text().split()
    assert f"-Dkafka.version={version}" in words
    assert binding == [word.partition("=")[2] for word in words if word.startswith("-Dbinding.")]


def test_the_pom_and_the_logs_fit_both_versions() -> None:
    """What the command line replaces is a property of the pom; appenders have the names that Kafka's setup appends."""
    folder = build.kafka("3.9.1").folder
    pom = ET.parse(folder / "pom.xml")  # noqa: S314 -- ours
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    names = [element.tag.rpartition("}")[2] for element in pom.findall("m:properties/*", space)]
    assert ["binding.group", "binding.artifact", "binding.version"] == names
    assert "${binding.artifact}" in [element.text for element in pom.findall(".//m:artifactId", space)]
    for file, appender in (("log4j.properties", "stdout"), ("tools-log4j.properties", "stderr")):
        assert re.search(
            rf"^log4j\.rootLogger=[A-Z]+, {appender}$", (folder / "docker" / file).read_text(), re.MULTILINE
        )


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, script: str) -> None:
    """Put a script with the name of the command first on the PATH."""
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
    """Wait a moment; return True if the process has ended or is a zombie."""
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
