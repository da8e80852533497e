"""Roles: parsed when the plan is read, resolved when the fault is injected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError
from aftershock.faults.targets import roles

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("2", roles.Node(2)),  # type: ignore[arg-type]
        ("controller", roles.Controller()),
        ("leader of  orders/0", roles.Leader("orders", 0)),
        ("replica of a.b-c_d/12 in rack b", roles.Replica("a.b-c_d", 12, "b")),
        ("coordinator of readers-baseline", roles.Coordinator("readers-baseline")),
        ("transaction coordinator of  a-b-produce", roles.TransactionCoordinator("a-b-produce")),
        ("any broker except leader of orders/0", roles.AnyExcept(roles.Leader("orders", 0))),
    ],
)
def test_grammar(text: str, role: roles.Role) -> None:
    """Every form of the grammar."""
    assert roles.parse(text) == role


@pytest.mark.parametrize(
    "text",
    ["", "leader", "leader of orders", "leader of orders/x", "-1", "any broker except any broker except 1", "1 2"],
)
def test_no_role(text: str) -> None:
    """An invalid role is refused with a sentence."""
    with pytest.raises(ValueError, match=r"is not a role: write|excludes no particular broker"):
        roles.parse(text)


@pytest.mark.parametrize(
    ("text", "broker"),
    [
        ("2", 2),
        ("controller", 3),
        ("leader of orders/1", 2),
        ("replica of orders/0 in rack c", 3),
        ("coordinator of readers-baseline", 2),
        ("transaction coordinator of orders-baseline-produce", 2),
    ],
)
async def test_resolved(stage: Stage, text: str, broker: int) -> None:
    """Each role resolves to its current broker."""
    assert await roles.resolve(text, stage.world, {}, "broker") == broker


@pytest.mark.parametrize(("drawn", "broker"), [(0.0, 1), (0.49, 1), (0.5, 3), (0.999, 3)])
async def test_any_is_drawn(stage: Stage, drawn: float, broker: int) -> None:
    """The drawn number selects one of the sorted remaining ids."""
    assert await roles.resolve("any broker except 2", stage.world, {"any.broker": drawn}, "broker") == broker


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9", "no node 9; its nodes are 1, 2, 3"),
        ("leader of orders/99", "no partition orders/99"),
        ("leader of nowhere/0", "no partition nowhere/0"),
        ("replica of orders/0 in rack z", "no replica in rack z"),
    ],
)
async def test_a_role_without_holder(stage: Stage, text: str, why: str) -> None:
    """A role without a holder raises FaultError with a message."""
    with pytest.raises(FaultError, match=why):
        await roles.resolve(text, stage.world, {}, "broker")


async def test_offline_partition_has_no_leader(stage: Stage) -> None:
    """With all replicas lost the role has no target, and the message says so."""
    for broker in (1, 2, 3):
        stage.world._lose(broker, "exited")  # type: ignore[arg-type]
    with pytest.raises(FaultError, match="orders/0 has no leader now"):
        await roles.resolve("leader of orders/0", stage.world, {}, "broker")
