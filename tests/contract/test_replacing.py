"""Replacement of a container on a real engine: only the image changes, and the node is never without a container."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from aftershock.errors import ClusterError
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import collect_logs
from aftershock.harness.cluster.node import KafkaNode, current_container, replace
from aftershock.harness.cluster.topology import Node
from aftershock.harness.safety import ownership

pytestmark = pytest.mark.engine
NODE = Node(2, "b", broker=True, controller=True)


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    client = engine.connect()
    yield client
    client.close()


@pytest.fixture
def image(client: docker.DockerClient) -> str:
    """Return an image with a version and a process that waits."""
    return engine.toxiproxy_image(client, print).name


@pytest.fixture
def run_id(client: docker.DockerClient) -> Iterator[str]:
    run_id = f"test-{secrets.token_hex(4)}"
    yield run_id
    ownership.remove_run(client, run_id)


@pytest.fixture
def node(client: docker.DockerClient, image: str, run_id: str) -> KafkaNode:
    """A container with every property of a node's: a name, names on a network, a volume, labels, variables, a limit."""
    marks = {ownership.RUN: run_id, ownership.NODE: "2"}
    name = f"aftershock-{run_id}-k2"
    client.networks.create(name, labels=marks)
    client.volumes.create(name, labels=marks)
    container = client.containers.create(
        image,
        name=name,
        hostname="k2",
        labels=marks,
        network=name,
        networking_config={name: client.api.create_endpoint_config(aliases=["k2", "b2"])},
        environment={"KAFKA_NODE_ID": "2"},
        mem_limit="64m",
        cap_drop=["DAC_OVERRIDE"],
        volumes={name: {"bind": "/var/lib/kafka/data", "mode": "rw"}},
    )
    container.start()
    return KafkaNode(NODE, container)


def about(node: KafkaNode) -> dict[str, object]:
    """Return the properties that both containers must share."""
    node.container.reload()
    told = node.container.attrs
    own = node.container.short_id  # The engine adds the container's id to its names.
    nets = {name: {*net["Aliases"]} - {own} for name, net in told["NetworkSettings"]["Networks"].items()}
    return {
        "name": node.container.name,
        "labels": node.container.labels,
        "environment": sorted(told["Config"]["Env"]),
        "hostname": told["Config"]["Hostname"],
        "networks": nets,
        "host": told["HostConfig"],
        "state": node.state(),
    }


def test_everything_but_the_image_is_copied(node: KafkaNode, image: str) -> None:
    """Name, labels, environment, names on its networks, volumes, limits, rights; the container is another."""
    before, old = about(node), node.container.id
    replace(node, image)
    assert before == about(node)
    assert old != node.container.id
    assert "running" == node.state()


def test_a_limit_that_was_set_later_is_copied(node: KafkaNode, image: str) -> None:
    """The engine's current settings are copied, not the launch settings."""
    node.container.update(mem_limit="48m", memswap_limit="48m")
    replace(node, image)
    assert 48 * 1_048_576 == about(node)["host"]["Memory"]  # type: ignore[index]


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_a_container_is_replaced_in_any_state(node: KafkaNode, image: str, how: str) -> None:
    """A frozen node and a dead one are replaced as well: an undo must not depend on the state."""
    getattr(node, how)()
    replace(node, image)
    assert "running" == node.state()


def test_an_attached_process_uses_the_new_container(client: docker.DockerClient, node: KafkaNode, image: str) -> None:
    """A process that attached before the replacement can stop and start the new container."""
    other = KafkaNode(NODE, client.containers.get(node.container.id))
    replace(node, image)
    assert "running" == other.state()
    assert node.container.id == other.container.id
    other.kill()
    other.restart()
    assert "running" == node.state()


def test_an_interrupted_replacement_is_completed(client: docker.DockerClient, node: KafkaNode, image: str) -> None:
    """Between two containers the old one represents the node: another process finds and replaces it."""
    name = str(node.container.name)
    node.container.stop(timeout=5)
    node.container.rename(f"{name}-was-1")
    found = {each.name: each for each in client.containers.list(all=True, filters={"name": name})}
    standing = current_container(found, name)
    assert standing is not None
    left = KafkaNode(NODE, standing)
    assert "exited" == left.state()
    replace(left, image)
    assert (name, "running") == (left.container.name, left.state())


def test_a_missing_image_leaves_the_old_container(node: KafkaNode) -> None:
    """The engine refuses: an error, and the node still exists and can be replaced by its old image."""
    with pytest.raises(ClusterError, match="can't replace"):
        replace(node, "aftershock/nothing:9.9.9")
    assert "exited" == node.state()
    node.restart()
    assert "running" == node.state()


def test_the_log_has_the_output_of_both_containers(
    client: docker.DockerClient, node: KafkaNode, image: str, run_id: str, tmp_path: Path
) -> None:
    """The old container's output comes first."""
    replace(node, image)
    replace(node, image)
    collect_logs(client, run_id, tmp_path)
    assert 3 <= (tmp_path / "k2.log").read_text(encoding="utf-8").count("Starting Toxiproxy")
