"""A container replaced on a real engine: everything about it but the image, and never nobody in its place."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from aftershock.errors import ClusterError
from aftershock.harness.cluster import engine, ownership
from aftershock.harness.cluster.cluster import collect_logs
from aftershock.harness.cluster.node import KafkaNode, current_container, replace
from aftershock.harness.cluster.topology import Node

pytestmark = pytest.mark.engine
NODE = Node(2, "b", broker=True, controller=True)


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    client = engine.connect()
    yield client
    client.close()


@pytest.fixture
def image(client: docker.DockerClient) -> str:
    """Any image with a version and a process that waits."""
    return engine.toxiproxy_image(client, print).name


@pytest.fixture
def run_id(client: docker.DockerClient) -> Iterator[str]:
    run_id = f"test-{secrets.token_hex(4)}"
    yield run_id
    ownership.remove_run(client, run_id)


@pytest.fixture
def node(client: docker.DockerClient, image: str, run_id: str) -> KafkaNode:
    """A container with all that a node's has: a name, names on a network, a volume, labels, variables, a limit."""
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
    """What must be the same of both."""
    node.container.reload()
    told = node.container.attrs
    own = node.container.short_id  # the engine names a container by its id as well
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


def test_all_but_the_image_is_as_it_was(node: KafkaNode, image: str) -> None:
    """Name, labels, environment, names on its networks, volumes, limits, rights: copied; the container is another."""
    before, old = about(node), node.container.id
    replace(node, image)
    assert before == about(node)
    assert old != node.container.id
    assert "running" == node.state()


def test_a_limit_that_was_put_on_later_stays(node: KafkaNode, image: str) -> None:
    """The engine's own account is copied, not what was launched."""
    node.container.update(mem_limit="48m", memswap_limit="48m")
    replace(node, image)
    assert 48 * 1_048_576 == about(node)["host"]["Memory"]  # type: ignore[index]


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_whatever_state_it_is_in(node: KafkaNode, image: str, how: str) -> None:
    """A frozen node and a dead one are replaced as well: an undo must not depend on what it finds."""
    getattr(node, how)()
    replace(node, image)
    assert "running" == node.state()


def test_whoever_held_the_old_one_sees_the_new(client: docker.DockerClient, node: KafkaNode, image: str) -> None:
    """Another process that attached before goes on with the one in its place, and may stop and start it."""
    other = KafkaNode(NODE, client.containers.get(node.container.id))
    replace(node, image)
    assert "running" == other.state()
    assert node.container.id == other.container.id
    other.kill()
    other.restart()
    assert "running" == node.state()


def test_broken_off_half_way(client: docker.DockerClient, node: KafkaNode, image: str) -> None:
    """Between two containers the old one stands for the node: found by another process, and replaced by it."""
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


def test_an_image_that_is_not_here(node: KafkaNode) -> None:
    """The engine refuses: said, and the node still stands, to be replaced by what it was."""
    with pytest.raises(ClusterError, match="can't replace"):
        replace(node, "aftershock/nothing:9.9.9")
    assert "exited" == node.state()
    node.restart()
    assert "running" == node.state()


def test_the_output_of_both_is_kept(
    client: docker.DockerClient, node: KafkaNode, image: str, run_id: str, tmp_path: Path
) -> None:
    """One log for the node, what the old one said first."""
    replace(node, image)
    replace(node, image)
    collect_logs(client, run_id, tmp_path)
    assert 3 <= (tmp_path / "k2.log").read_text(encoding="utf-8").count("Starting Toxiproxy")
