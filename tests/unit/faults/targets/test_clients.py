"""Client selectors: parsed when the plan is read, resolved when the fault is injected."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError
from aftershock.faults.sections.workloads import Workload
from aftershock.faults.targets.clients import Selector, parse, planned_workers, select_clients, with_op
from aftershock.faults.targets.values import ClientProcess, GroupMember

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage

MEMBERS = [f"orders-mine-consume-{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("mine", Selector(None, "mine", None)),
        ("orders/mine consume", Selector("orders", "mine", "consume")),
        ("mine member 3", Selector(None, "mine", "consume", number=3)),
        ("orders/mine producer 2", Selector("orders", "mine", "produce", number=2)),
        ("any  member of orders/mine", Selector("orders", "mine", "consume", drawn=True)),
        ("member of mine that owns orders/0", Selector(None, "mine", "consume", owns=("orders", 0))),
    ],
)
def test_grammar(text: str, selector: Selector) -> None:
    """Every form of the grammar."""
    assert selector == parse(text)


@pytest.mark.parametrize("text", ["Mine", "mine member 0", "mine member", "any member", "member of mine"])
def test_no_selector(text: str) -> None:
    """An invalid selector is refused."""
    with pytest.raises(ValueError, match=text):
        parse(text)


def test_an_operation_is_added_only_to_an_arm() -> None:
    """A selector of members already has its operation."""
    assert ["mine", "mine consume", "mine member 3"] == [
        with_op("mine", None),
        with_op("mine", "consume"),
        with_op("mine member 3", "consume"),
    ]


def test_workers_that_a_plan_determines() -> None:
    """Several producers and members have numbers; a number beyond them selects nothing."""
    produce = {"topic": "orders", "rate": "9/s", "producers": 2}
    workload = Workload.model_validate(
        {
            "name": "orders",
            "produce": produce,
            "consume": {"topic": "orders", "group": "g", "members": 3},
            "arms": {"mine": {}},
        }
    )
    producers = {"orders-mine-produce-1", "orders-mine-produce-2"}

    def planned(text: str) -> set[str]:
        return planned_workers(parse(text), [workload])

    assert producers | {*MEMBERS} == planned("mine")
    assert {"orders-mine-produce-2"} == planned("mine producer 2")
    assert {"orders-mine-consume-3"} == planned("mine member 3")
    assert set() == planned("mine member 4")
    assert {*MEMBERS} == planned("any member of mine") == planned("member of mine that owns orders/0")


async def test_members_at_the_injection(stage: Stage) -> None:
    """By number, by draw among the running members, and by the partition that the coordinator has assigned."""
    members = [
        ClientProcess(name, "orders", "mine", "consume", "a", "running", number)
        for number, name in enumerate(MEMBERS, 1)
    ]
    world = stage.world
    world.crew = {member.name: member for member in [replace(members[0], state="exited"), *members[1:]]}
    world.members = [
        GroupMember(name, name, 4, frozenset({("orders", number)})) for number, name in enumerate(MEMBERS[1:])
    ]

    async def selected(text: str, draw: float = 0.0) -> list[str]:
        return [client.name for client in await select_clients(text, world, {"client": draw})]

    assert MEMBERS[2:] == await selected("mine member 3")
    assert [MEMBERS[1:2], MEMBERS[2:]] == [await selected("any member of mine", draw) for draw in (0.0, 0.99)]
    assert MEMBERS[2:] == await selected("member of mine that owns orders/1")
    with pytest.raises(FaultError, match="no member of mine owns orders/7 now"):
        await selected("member of mine that owns orders/7")
    with pytest.raises(FaultError, match="no client matches `mine member 4`; the clients are: orders-mine-consume-1,"):
        await selected("mine member 4")
