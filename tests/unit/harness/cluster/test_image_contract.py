"""The contract of node images, tested on images that keep it and on images that each break one line.

No engine is needed: containers and the node's Kafka are played, as an image that keeps the contract would behave.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aftershock.errors import AdminError, ImageError
from aftershock.harness.cluster import image_contract
from aftershock.harness.cluster.engine import Image
from aftershock.harness.cluster.image_contract import CONTRACT, check_image, checked_image
from aftershock.harness.cluster.topology import LOG_DIR, cluster_id_of

FLAGS = ["-Xms192m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Daftershock.contract=kept"]


class PlayedContainer:
    """A container of an image that breaks the lines in ``breaks``."""

    def __init__(self, breaks: set[str], command: list[str] | None, name: str, environment: dict[str, str]) -> None:
        self.breaks, self.command, self.name, self.environment = breaks, command, name, environment
        self.status = "running"
        self.attrs: dict[str, Any] = {"State": {"ExitCode": 0}, "NetworkSettings": {"Ports": {}}}
        self.topics: list[str] = []
        self.client = SimpleNamespace()

    def exec_run(self, command: list[str]) -> tuple[int, bytes]:
        script = command[-1]
        if "for file in /proc" in script:
            return 0, "\n".join(["java", *(FLAGS[:-1] if "jvm" in self.breaks else FLAGS)]).encode()
        if "/proc/1/cmdline" in script:
            return 0, b"/bin/sh entry.sh sleep" if "command" in self.breaks else b"sleep infinity "
        if "command -v" in script:
            return 0, b"timeout\nwc\n" if "tools" in self.breaks else b""
        assert LOG_DIR in script
        return (2, b"Permission denied") if "data" in self.breaks else (0, b"1000")

    def reload(self) -> None:
        if self.command is None and "boot" in self.breaks:
            self.status = "exited"

    def logs(self, **_: Any) -> bytes:
        return b"" if "output" in self.breaks else b"[1] INFO Kafka version: 4.3.1 (AppInfoParser)"

    def stop(self, timeout: int) -> None:
        assert timeout
        self.attrs["State"]["ExitCode"] = 137 if "signal" in self.breaks else 143

    def start(self) -> None:
        if "restart" in self.breaks:
            self.topics.clear()


class PlayedKafka:
    """What an `Admin` sees of the node."""

    def __init__(self, node: PlayedContainer) -> None:
        self.node = node

    def close(self) -> None: ...

    def members(self) -> list[Any]:
        return [SimpleNamespace(id=1, fenced=False)]

    def cluster_id(self) -> str:
        return self.node.environment["CLUSTER_ID"]

    def configs(self, _kind: int, _name: str) -> dict[str, str]:
        read = {key.removeprefix("KAFKA_").lower().replace("_", "."): v for key, v in self.node.environment.items()}
        return read | ({"num.io.threads": "8"} if "properties" in self.node.breaks else {})

    def create_topic(self, name: str, *_: Any) -> str:
        self.node.topics.append(name)
        return "id"

    def topics(self) -> tuple[str, ...]:
        return tuple(self.node.topics)


class PlayedEngine:
    def __init__(self, *breaks: str) -> None:
        self.breaks = set(breaks)
        self.started: list[dict[str, Any]] = []
        self.removed: list[str] = []
        self.containers = SimpleNamespace(run=self._run)
        create = SimpleNamespace(create=lambda _name, labels: labels["aftershock.run"])
        self.volumes = self.networks = create

    def _run(self, image: str, command: list[str] | None, **options: Any) -> PlayedContainer:
        self.started.append({"image": image, **options})
        return PlayedContainer(self.breaks, command, options["name"], options.get("environment", {}))


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(image_contract.Trial, "admin", lambda trial: PlayedKafka(trial.node))
    monkeypatch.setattr(image_contract.ownership, "remove_run", lambda client, run_id: client.removed.append(run_id))
    monkeypatch.setattr(image_contract, "local_image", lambda _, name: Image(name, "sha256:abc", "here"))


def problems(engine: Any) -> dict[str, str]:
    return {result.line.name: result.problem for result in check_image(engine, "ours/kafka:1")}


def test_an_image_that_keeps_the_contract() -> None:
    """Each line is tested, in containers with the labels and the limits of a node, which are removed."""
    engine = PlayedEngine()
    assert dict.fromkeys((line.name for line in CONTRACT), "") == problems(engine)
    assert 2 == len(engine.started)
    for options in engine.started:
        assert ["DAC_OVERRIDE"] == options["cap_drop"]
        assert [options["labels"]["aftershock.run"]] == engine.removed
        assert options["name"] in options["volumes"]
        assert f"aftershock-{engine.removed[0]}" == options["network"]
    environment = engine.started[1]["environment"]
    assert cluster_id_of(engine.removed[0]) == environment["CLUSTER_ID"]


@pytest.mark.parametrize("name", [line.name for line in CONTRACT])
def test_a_broken_line_is_named(name: str) -> None:
    """One broken line is found, and a line that depends on it is not called kept."""
    broken = problems(PlayedEngine(name))
    dependants = {line.name for line in CONTRACT if line.needs == name}
    assert {name, *dependants} == {line for line, problem in broken.items() if problem}
    assert all(f"It can't be tested without `{name}`" == broken[other] for other in dependants)


def test_each_line_has_a_test_and_a_remedy() -> None:
    assert len(CONTRACT) == len({line.test for line in CONTRACT})
    assert all(line.promise and line.remedy for line in CONTRACT)
    names = [line.name for line in CONTRACT]
    assert all(line.needs in ["", *names[: names.index(line.name)]] for line in CONTRACT)


def test_a_node_that_does_not_answer_breaks_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AdminError("no broker answered DescribeConfigsRequest", "NETWORK_EXCEPTION")

    monkeypatch.setattr(PlayedKafka, "configs", refuse)
    assert "no broker answered" in problems(PlayedEngine())["properties"]


def test_a_run_refuses_an_image_with_the_line_that_it_breaks() -> None:
    engine: Any = PlayedEngine("data")
    says = f"ours/kafka:1 can't be a node: BROKEN  data: the image's user may write to a new volume at {LOG_DIR}"
    for _ in range(2):  # a failure is not remembered
        with pytest.raises(ImageError, match=says):
            checked_image(engine, "ours/kafka:1", print)
    assert 2 == len(engine.removed)


def test_a_good_image_is_tested_once() -> None:
    """Until the contract changes."""
    engine: Any = PlayedEngine()
    log: list[str] = []
    assert "ours/kafka:1" == checked_image(engine, "ours/kafka:1", log.append).name
    checked_image(engine, "ours/kafka:1", log.append)
    assert 1 == len(log) == len(engine.removed)
