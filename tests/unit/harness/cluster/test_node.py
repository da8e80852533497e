"""What a node's container is asked of the engine."""

from typing import Any, cast

import pytest
from docker.errors import APIError

from aftershock.harness.cluster.node import ContainerUsage, KafkaNode, current_container, node_name

NETWORKS = {"eth0": {"rx_bytes": 5, "tx_bytes": 30}, "eth1": {"rx_bytes": 5, "tx_bytes": 7}}


class Container:
    """Of these statistics, or an error in their place."""

    name, labels = "k1", dict[str, str]()

    def __init__(self, told: dict[str, Any] | APIError) -> None:
        self._told = told

    def stats(self, **asked: bool) -> dict[str, Any]:
        assert {"stream": False, "one_shot": True} == asked
        if isinstance(self._told, APIError):
            raise self._told
        return self._told


@pytest.mark.parametrize(
    ("told", "used"),
    [
        ({"cpu_stats": {"cpu_usage": {"total_usage": 5_000_000}}, "networks": NETWORKS}, ContainerUsage(5_000, 37)),
        ({"cpu_stats": {"cpu_usage": {"total_usage": 5_000_000}}}, ContainerUsage(5_000, 0)),
        ({"cpu_stats": {"cpu_usage": {"total_usage": 0}}}, None),
        ({}, None),
        (APIError("gone"), None),
    ],
)
def test_used(told: dict[str, Any] | APIError, used: ContainerUsage | None) -> None:
    """The engine counts nanoseconds; of a container that doesn't run it tells zeros or nothing, which is not known."""
    assert used == KafkaNode(cast("Any", None), cast("Any", Container(told))).usage()


@pytest.mark.parametrize(
    ("there", "stands"),
    [
        (["r-k1", "r-k2"], "r-k2"),
        (["r-k2", "r-k2-was-1"], "r-k2"),
        (["r-k2-was-9", "r-k2-was-10", "r-k2-was-1"], "r-k2-was-10"),
        (["r-k20", "r-k20-was-1"], None),
        ([], None),
    ],
)
def test_who_stands_for_a_node(there: list[str], stands: str | None) -> None:
    """Numbers are numbers, and another node's containers are another node's."""
    found: Any = {name: name for name in there}
    assert stands == current_container(found, "r-k2")


@pytest.mark.parametrize("name", ["r-k2", "r-k2-was-1", "r-k2-was-12"])
def test_the_name_of_its_node(name: str) -> None:
    """The same, whether the container still has it or was replaced."""

    class Container:
        pass

    container: Any = Container()
    container.name = name
    assert "r-k2" == node_name(container)
