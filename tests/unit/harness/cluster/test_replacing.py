"""Which container stands for a node: its own by name, else the last that was replaced."""

from typing import Any

import pytest

from aftershock.harness.cluster.node import current_container, node_name


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
