"""Members that leave their group and return, and members in reserve that join and leave."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.targets.values import GroupMember
from aftershock.faults.timeline.compile import compile_checked
from aftershock.tests.unit.faults.conftest import FRAME
from aftershock.tests.unit.faults.fakes.clients import CONSUMER

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


LEAVE = "{id: gone, at: 1s, for: 5s, kind: leave, client: baseline}"
JOIN = "{id: more, at: 1s, for: 5s, kind: join, client: baseline}"
LISTED = "clients that the coordinator of their group lists as members"
NEW = f"{CONSUMER}-2"
GROUP_OF_THREE = FRAME.replace("group: readers", "group: readers, members: 3")


def reserve(stage: Stage) -> None:
    """Add a consumer in reserve."""
    member = replace(stage.world.crew[CONSUMER], name=NEW, number=2, reserve=True, state="exited")
    stage.world.crew[NEW] = member
    stage.world.grouped.add(NEW)
    stage.world._silent_since_us[NEW] = -(10**9)


async def test_a_consumer_leaves_and_returns(stage: Stage) -> None:
    """The coordinator lists it no more, its process is gone, and the heal ends when it is a member again."""
    await stage.play(LEAVE)
    assert stage.world.called("leave_client") == [CONSUMER]
    assert stage.all_ok("gone")
    first = stage.journal.witnesses("gone")[0]
    assert (LISTED, 0, 0) == (first.what, first.asked, first.observed)
    assert ["intended", "injected", "witnessed", "healing", "healed"] == list(
        dict.fromkeys(stage.journal.states("gone"))
    )
    assert "running" == stage.world.crew[CONSUMER].state


async def test_members_leave_and_return_one_after_the_other(stage: Stage) -> None:
    """At most one is away at a time; each is listed again before the next leaves."""
    stage.frame, crew = GROUP_OF_THREE, stage.world.crew
    for number in (2, 3):
        name = f"{CONSUMER}-{number}"
        crew[name] = replace(crew[CONSUMER], name=name, number=number)
        stage.world.grouped.add(name)
    order: list[tuple[str, str]] = []
    away: list[int] = []
    called = stage.world._called

    async def recorded(verb: str, argument: object) -> None:
        await called(verb, argument)
        away.append(sum(client.state == "exited" for client in crew.values()))
        if verb in ("leave_client", "start_client"):
            order.append((verb, str(argument)))

    stage.world._called = recorded  # type: ignore[method-assign]
    await stage.play("{id: roll, at: 1s, kind: roll_members, client: baseline, pause: 1s}")
    names = sorted(name for name in crew if name.startswith(CONSUMER))
    assert order == [(verb, name) for name in names for verb in ("leave_client", "start_client")]
    assert max(away) == 1
    assert stage.all_ok("roll")
    assert [(3, 3), (3, 3)] == [(w.asked, w.observed) for w in stage.journal.witnesses("roll")]


async def test_a_coordinator_that_keeps_the_member(stage: Stage) -> None:
    """A member that is still listed fails the witness."""

    async def listed(_worker: str) -> bool | None:
        return True

    stage.world.in_group = listed  # type: ignore[method-assign, assignment]
    await stage.play(LEAVE)
    assert [LISTED] == [witness.what for witness in stage.journal.witnesses("gone") if not witness.ok]


async def test_a_member_in_reserve_joins_and_leaves(stage: Stage) -> None:
    """It is a member while the fault lasts, and exits at the heal."""
    reserve(stage)
    await stage.play(JOIN)
    assert stage.all_ok("more")
    assert [(LISTED, 1, 1)] * 2 == [(w.what, w.asked, w.observed) for w in stage.journal.witnesses("more")]
    assert [NEW] == stage.world.called("start_client") == stage.world.called("leave_client")
    assert "exited" == stage.world.crew[NEW].state


async def test_members_in_reserve_are_no_targets_of_other_faults(stage: Stage) -> None:
    """An arm's selector skips them until they have joined."""
    reserve(stage)
    await stage.play(LEAVE)
    assert [CONSUMER] == stage.world.called("leave_client")


async def test_nobody_in_reserve(stage: Stage) -> None:
    """The injection fails and says how many are in reserve."""
    await stage.play(JOIN)
    assert "0 members of baseline are in reserve, and 1 should join" in str(stage.line("more", "failed").why)


def test_the_compiler_holds_members_in_reserve() -> None:
    """As many as may be present at once; those that leave again can join again."""
    plan = FRAME.replace("group: readers", "group: readers, members: 2") + (
        "  - {repeat: 3, every: 20s, fault: {id: more, for: 5s, kind: join, client: baseline, members: 2}}\n"
        "  - {id: stay, at: 1s, kind: join, client: baseline}\n"
    )
    checked = load_plan(plan)
    assert {"baseline": 3} == compile_checked(checked, 7).workloads[0]["consume"]["reserve"]


async def test_a_member_that_does_not_poll_is_expelled(stage: Stage) -> None:
    """It runs, the coordinator lists it no more at the end, and lists it again after the heal."""
    await stage.play("{id: busy, at: 1s, for: 310s, kind: evict, client: baseline}")
    assert stage.all_ok("busy")
    assert LISTED == stage.journal.witnesses("busy")[-1].what
    assert [CONSUMER] == stage.world.called("stop_polling") == stage.world.called("resume_polling")
    assert "healed" == stage.journal.states("busy")[-1]


async def test_churn_makes_the_drawn_changes(stage: Stage) -> None:
    """The same seed makes the same changes, one member always stays, and all are members at the end."""
    stage.frame, crew = GROUP_OF_THREE, stage.world.crew
    for number in (2, 3):
        name = f"{CONSUMER}-{number}"
        crew[name] = replace(crew[CONSUMER], name=name, number=number)
        stage.world.grouped.add(name)
    present: list[int] = []
    called = stage.world._called

    async def watched(name: str, argument: object) -> None:
        await called(name, argument)
        present.append(sum(client.op == "consume" and client.state == "running" for client in crew.values()))

    stage.world._called = watched  # type: ignore[method-assign]
    await stage.play("{id: busy, at: 1s, for: 20s, kind: churn, client: baseline, every: 2s, away: 2}")
    assert stage.all_ok("busy")
    last = stage.journal.witnesses("busy")[-1]
    assert ("changes of the group's members", True) == (last.what, last.observed >= 4)
    assert {1, 2} <= {*present} <= {1, 2, 3}
    assert {"running"} == {client.state for client in crew.values()}


async def test_a_group_of_one_cannot_churn(stage: Stage) -> None:
    """Its only member must stay."""
    stage.frame = GROUP_OF_THREE
    await stage.play("{id: busy, at: 1s, for: 20s, kind: churn, client: baseline}")
    assert "baseline has one member, so its group can't churn" in str(stage.line("busy", "failed").why)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("{kind: leave, at: 1s, for: 5s, client: baseline, op: produce}", "only consumers and services are members"),
        ("{kind: join, at: 1s, client: baseline member 1}", "`join` starts new members: name an arm"),
        ("{kind: leave, at: 1s, client: baseline}", "a leave needs `for`"),
        (
            "{kind: evict, at: 1s, for: 9s, client: baseline}",
            "leaves its group only 300s after its last poll: lengthen `for`",
        ),
        ("{kind: churn, at: 1s, for: 9s, client: baseline}", "have one member and can't churn: raise `members`"),
    ],
)
def test_bad_plans(fault: str, said: str) -> None:
    """Each gives a sentence."""
    with pytest.raises(PlanError, match=said):
        load_plan(FRAME + f"  - {fault}\n")


FRAME_OF_SERVICE = (
    FRAME.replace("consume: {topic: orders, group: readers}", "pipe: PIPE")
    .replace(
        "pipe: PIPE",
        """pipe: {from: orders, to: billed, group: biller, members: 2}
    arms: {baseline: {client: service, command: [billing]}}""",
    )
    .replace("topics:\n", "topics:\n  - {name: billed, partitions: 6, replication: 3}\n")
)
SERVICES = "orders-baseline-pipe-1", "orders-baseline-pipe-2"
EVICT = "{id: removed, at: 1s, for: 4s, kind: evict, client: baseline member 1}"


def serve(stage: Stage) -> None:
    """Let the consumer be two processes of a service."""
    stage.frame, crew = FRAME_OF_SERVICE, stage.world.crew
    consumer = crew.pop(CONSUMER)
    for number, name in enumerate(SERVICES, 1):
        crew[name] = replace(consumer, name=name, op="pipe", number=number)
        stage.world.grouped.add(name)
        stage.world.members.append(GroupMember(name, f"id {number}", None, frozenset()))


async def test_an_administrator_removes_a_process_of_a_service(stage: Stage) -> None:
    """Its member is listed no more, and it joins as another."""
    serve(stage)
    await stage.play(EVICT)
    assert [SERVICES[0]] == stage.world.called("evict_client")
    assert ["id 1+", "id 2"] == [member.id for member in stage.world.members]
    assert stage.all_ok("removed")
    assert {(0, 0, 1)} == {(w.asked, w.observed, w.n) for w in stage.journal.witnesses("removed")}
    assert [] == stage.world.called("stop_polling")


async def test_a_coordinator_that_keeps_a_removed_member(stage: Stage) -> None:
    serve(stage)

    async def nothing(worker: str) -> frozenset[str]:
        return frozenset(member.id for member in stage.world.members if member.client == worker)

    stage.world.evict_client = nothing  # type: ignore[method-assign, assignment]
    await stage.play(EVICT)
    assert not any(witness.ok for witness in stage.journal.witnesses("removed"))


@pytest.mark.parametrize(
    "fault",
    [
        EVICT,
        "{id: removed, at: 1s, for: 9s, kind: zombie, client: baseline member 1}",
        "{id: removed, at: 1s, for: 9s, kind: churn, client: baseline}",
        "{id: removed, at: 1s, kind: roll_members, client: baseline}",
    ],
)
async def test_processes_that_cannot_be_told_apart(stage: Stage, fault: str) -> None:
    """The injection fails before anything is done."""
    serve(stage)
    stage.world.grouped.clear()
    await stage.play(fault)
    assert "it can't be told which member of its group is orders-baseline-pipe-1" in str(
        stage.line("removed", "failed").why
    )
    assert {"running"} == {client.state for client in stage.world.crew.values()}


async def test_a_service_leaves_whether_or_not_it_can_be_told(stage: Stage) -> None:
    """Its processes suffice; without knowing its members, nothing is said of them."""
    serve(stage)
    stage.world.grouped.clear()
    await stage.play(LEAVE)
    assert stage.all_ok("gone")
    assert LISTED not in [witness.what for witness in stage.journal.witnesses("gone")]
