"""Containers of a user's brokers: which is which, by its environment, its files, or its ports."""

import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import NotFound

from aftershock.errors import ClusterError
from aftershock.faults.sections.cluster import Attach
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.attach.broker_containers import (
    PROJECT,
    SERVICE,
    by_broker,
    configured_id,
    find,
    read_compose,
    refuse_strangers,
)
from aftershock.workloads.kafka.wire.connection import Address

ADVERTISED = {1: Address("localhost", 19092), 2: Address("localhost", 29092), 3: Address("192.0.2.1", 39092)}


def container(
    name: str, *ports: int, env: str = "", files: dict[str, str] | None = None, service: str = "", image: str = "kafka"
) -> Any:
    """Return a running container with variables, mounted files by path, and published ports."""
    contents = files or {}

    def get_archive(path: str) -> tuple[list[bytes], dict[str, int]]:
        if path not in contents:
            raise NotFound(path)
        content, buffer = contents[path].encode(), io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            member = tarfile.TarInfo("file")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        return [buffer.getvalue()], {"size": len(content)}

    mounts = [{"Destination": path if path.endswith("s") else path.rpartition("/")[0]} for path in contents]
    attrs = {
        "Config": {"Env": env.split(), "Image": image},
        "Mounts": mounts,
        "NetworkSettings": {"Ports": {f"{port}/tcp": [{"HostPort": str(port)}] for port in ports}},
    }
    labels = {PROJECT: "shop", SERVICE: service} if service else {}
    processes = {"Processes": [["1", "java kafka.Kafka"]] if image == "kafka" else [["1", "nginx"]]}
    return SimpleNamespace(
        id=name,
        name=name,
        attrs=attrs,
        labels=labels,
        reload=lambda: None,
        get_archive=get_archive,
        top=lambda: processes,
    )


def engine_with(*containers: Any) -> Any:
    def listed(filters: dict[str, list[str]] | None = None, **_: object) -> list[Any]:
        wanted = [label.partition("=") for label in (filters or {}).get("label", ())]
        return [
            each
            for each in containers
            if all(key in each.labels and (not equals or each.labels[key] == value) for key, equals, value in wanted)
        ]

    return SimpleNamespace(containers=SimpleNamespace(list=listed))


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (container("c", env="KAFKA_NODE_ID=4"), 4),
        (container("c", env="KAFKA_BROKER_ID=0"), 0),
        (container("c", env="KAFKA_CFG_NODE_ID=2 KAFKA_CFG_PROCESS_ROLES=controller,broker"), 2),
        (container("c", env="KAFKA_NODE_ID=3000 KAFKA_PROCESS_ROLES=controller"), None),
        (container("c", env="KAFKA_NODE_ID=x"), None),
        (container("c", files={"/mnt/shared/config/server.properties": "a=b\nnode.id=7\n"}), 7),
        (container("c", files={"/etc/kafka.properties": " broker.id : 5\n"}), 5),
        (container("c", files={"/etc/kafka.properties": "#node.id=5\n"}), None),
        (container("c", files={"/x/server.properties": "process.roles=controller\nnode.id=5\n"}), None),
        (container("c"), None),
    ],
)
def test_the_settings_of_a_container_tell_its_broker(described: Any, expected: int | None) -> None:
    assert configured_id(described) == expected


def test_a_container_without_settings_is_known_by_its_port() -> None:
    """But not a proxy, not one that publishes two brokers' ports, and not for a broker on another host."""
    containers = [container("two", 29092), container("far", 39092), container("both", 19092, 29092)]
    containers += [container("toxi", 19092, image="ghcr.io/shopify/toxiproxy:2.12.0")]
    assert by_broker(containers, ADVERTISED) == {2: "two"}
    assert by_broker(containers, {}) == {}


def test_two_containers_of_one_broker_are_ambiguous() -> None:
    first, second = container("first", env="KAFKA_NODE_ID=1"), container("second", 19092)
    with pytest.raises(ClusterError, match="first and second both are broker 1: name the container of each broker"):
        by_broker([first, second], ADVERTISED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: shop\nservices: {a: {image: x}, b: {}}\n", ("shop", ("a", "b"))),
        ("services: {a: {}}\n", ("myshop2", ("a",))),
        ("x: &x {image: y}\nservices:\n  a: {<<: *x}\n  b: {ports: !reset []}\n", ("myshop2", ("a", "b"))),
    ],
)
def test_a_compose_file_gives_project_and_services(tmp_path: Path, text: str, expected: tuple[str, object]) -> None:
    """A project without a name has that of the folder, as Compose writes it."""
    folder = tmp_path / "_My.Shop2"
    folder.mkdir()
    (folder / "compose.yml").write_text(text)
    assert read_compose(folder / "compose.yml") == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("version: '3'\n", "has no `services`, so it is no compose file"),
        ("services: []\n", "has no `services`"),
        ("[1]\n", "has no `services`"),
        ("services: {a: {}\n", "is not valid YAML"),
        ("name: ${SHOP}\nservices: {a: {}}\n", "is not a plain text, so the project is unknown"),
        (None, "can't be read: No such file or directory"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "compose.yml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ClusterError, match=r"compose\.yml") as refused:
        read_compose(path)
    assert why in str(refused.value)


def test_the_containers_of_a_compose_file_are_those_of_its_services(tmp_path: Path) -> None:
    """Not one of another file of the project, and not one of `docker compose run`."""
    (tmp_path / "shop.yml").write_text("name: shop\nservices: {one: {}, two: {}, web: {}}\n")
    once = container("once", env="KAFKA_NODE_ID=1", service="one")
    once.labels["com.docker.compose.oneoff"] = "True"
    others = [container("other", env="KAFKA_NODE_ID=1", service="else"), container("alien", env="KAFKA_NODE_ID=1")]
    brokers = [container("a", env="KAFKA_NODE_ID=1", service="one"), container("b", 29092, service="two")]
    web = container("c", 80, service="web", image="nginx")
    attach = Attach(bootstrap="localhost:19092", compose=str(tmp_path / "shop.yml"))
    assert find(engine_with(*others, once, *brokers, web), attach, ADVERTISED) == {1: "a", 2: "b"}
    with pytest.raises(ClusterError, match=r"is a broker's among those that run \(c\)"):
        find(engine_with(web), attach, ADVERTISED)
    elsewhere = container("x", service="one")
    elsewhere.labels[PROJECT] = "elsewhere"
    with pytest.raises(ClusterError, match=r"project shop .* write `labels: .*; compose projects .*: elsewhere"):
        find(engine_with(elsewhere), attach, ADVERTISED)


def test_labels_select_containers() -> None:
    labelled = container("a", env="KAFKA_NODE_ID=1")
    labelled.labels.update({"team": "red", "kafka": ""})
    both = Attach(bootstrap="localhost:19092", labels={"team": "red", "kafka": ""})
    assert find(engine_with(labelled, container("b", env="KAFKA_NODE_ID=1")), both, {}) == {1: "a"}
    with pytest.raises(ClusterError, match="no running container has the labels team=blue: no compose project runs"):
        find(engine_with(labelled), Attach(bootstrap="localhost:19092", labels={"team": "blue"}), {})


@pytest.mark.parametrize(
    ("named", "others", "why"),
    [
        (container("a", env="KAFKA_NODE_ID=2"), [], "a runs broker 2 by its settings, not broker 1"),
        (container("a", image="nginx"), [], "a shows no sign of a broker"),
        (
            container("a"),
            [container("b", 19092, env="KAFKA_NODE_ID=1")],
            "b publishes the port 19092 of broker 1, not a",
        ),
        (container("a", env="KAFKA_NODE_ID=1"), [container("b", 19092, env="KAFKA_NODE_ID=5")], "b publishes the port"),
        (container("a", 19092), [], None),
        (container("a"), [], None),
        (container("a", env="KAFKA_NODE_ID=1"), [container("haproxy", 19092, image="haproxy")], None),
        (container("a"), [container("t", 19092, image="toxiproxy")], None),
    ],
)
def test_a_named_container_must_be_that_of_the_broker(named: Any, others: list[Any], why: str | None) -> None:
    """A proxy may publish the port in the place of the broker, which has no sign but its process."""
    advertised = {BrokerId(broker): address for broker, address in ADVERTISED.items()}
    containers = {BrokerId(1): named}
    if why is None:
        refuse_strangers(engine_with(named, *others), containers, advertised)
        return
    with pytest.raises(ClusterError, match=r"correct `attach\.containers`") as refused:
        refuse_strangers(engine_with(named, *others), containers, advertised)
    assert why in str(refused.value)
