"""What a node's container is asked of the engine."""

from typing import Any, cast

import pytest
from docker.errors import APIError

from aftershock.harness.cluster.node import ContainerUsage, KafkaNode

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
