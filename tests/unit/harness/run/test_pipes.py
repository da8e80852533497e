"""When services have caught up after the load, and what is recorded of their groups."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import ClusterError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.targets.values import GroupMember
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.run import pipes as module
from aftershock.harness.run.pipes import PERIOD_US, SETTLED_US, GroupRecorder, PipeArm, in_turn, settle
from aftershock.harness.world.group_members import MemberOwners, read_owners

ARM = PipeArm("billing", "ours", "orders", "billed", "biller")
IDLE_US = 30_000_000


class Home:
    """Records events as a run directory does."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def event(self, t_us: int, event: str, **details: Any) -> None:
        self.events.append({"t_us": t_us, "event": event} | json.loads(json.dumps(details)))


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.us = 0

    def now_us(self) -> int:
        return self.us

    async def sleep_until_us(self, until_us: int) -> None:
        self.us = max(self.us, until_us)


async def settled(
    monkeypatch: pytest.MonkeyPatch, history: list[tuple[int, int | None]], arm: PipeArm = ARM
) -> tuple[dict[str, Any], int]:
    """Return the event of a service, and the time, if polls find (outputs, committed) one after the other."""
    home, clock = Home(), Clock()

    def poll() -> tuple[int, int | None]:
        return history[min(clock.us // PERIOD_US, len(history) - 1)]

    async def ends(names: Iterable[str]) -> Mapping[str, Mapping[int, int]]:
        assert {"orders", "billed"} == set(names)
        return {"orders": {0: 10, 1: 0}, "billed": {0: poll()[0]}}

    def committed(_admin: object, _group: str) -> dict[tuple[str, int], int]:
        at = poll()[1]
        if at is None:
            raise ClusterError("no coordinator")
        return {("orders", 0): at, ("other", 0): 5} if at else {}

    monkeypatch.setattr(module, "committed_offsets", committed)
    await settle([arm], None, ends, home, clock, IDLE_US)  # type: ignore[arg-type]
    (event,) = home.events
    return event, clock.us


async def test_a_service_that_has_committed_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must also have written nothing for a while: an output may follow the commit."""
    event, us = await settled(monkeypatch, [(7, 5), (9, 8), (10, 10)])
    assert (False, True, []) == (event["idle"], event["commits"], event["positions"])
    assert us == 2 * PERIOD_US + SETTLED_US


async def test_a_service_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    event, us = await settled(monkeypatch, [(7, 5), (8, 6)])
    assert (True, True, [["orders", 0, 6, 10]]) == (event["idle"], event["commits"], event["positions"])
    assert us == PERIOD_US + IDLE_US


async def test_a_service_that_works_on_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_LIMIT_US", 10 * PERIOD_US)
    event, us = await settled(monkeypatch, [(number, 1) for number in range(100)])
    assert (False, [["orders", 0, 1, 10]]) == (event["idle"], event["positions"])
    assert us == 10 * PERIOD_US


@pytest.mark.parametrize("arm", [ARM, PipeArm("billing", "ours", "orders", "billed", "")])
async def test_a_service_that_commits_nothing(monkeypatch: pytest.MonkeyPatch, arm: PipeArm) -> None:
    event, _ = await settled(monkeypatch, [(7, 0), (10, 0)], arm)
    assert (True, False, []) == (event["idle"], event["commits"], event["positions"])


async def test_an_answer_that_is_missing_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that is down for a moment doesn't make a service one that commits nothing."""
    event, _ = await settled(monkeypatch, [(9, 9), (9, None), (10, 10)])
    assert (False, True, []) == (event["idle"], event["commits"], event["positions"])


def test_changes_of_owners_are_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the last time at which the former owners were seen, and what was committed then."""
    polls: list[tuple[dict[str, list[tuple[str, int]]] | None, dict[tuple[str, int], int]]] = [
        ({"a": [("orders", 0), ("orders", 1)]}, {}),
        ({"a": [("orders", 0), ("orders", 1)]}, {("orders", 0): 4}),
        (None, {}),
        ({"a": [("orders", 0)], "b": [("orders", 1)]}, {("orders", 0): 9}),
    ]
    home, clock = Home(), Clock()
    recorder = object.__new__(GroupRecorder)
    recorder._home, recorder._clock, recorder._seen = home, clock, {}  # type: ignore[assignment]
    recorder._spool, recorder._groups = tmp_path, {"biller": MemberOwners(("one",))}

    def members(_admin: object, _group: str) -> tuple[GroupMember, ...]:
        owned = polls[clock.us // PERIOD_US][0]
        if owned is None:
            raise ClusterError("no coordinator")
        return tuple(GroupMember("any", name, None, frozenset(places)) for name, places in owned.items())

    monkeypatch.setattr(module, "members", members)
    monkeypatch.setattr(module, "committed_offsets", lambda *_: polls[clock.us // PERIOD_US][1])
    for number in range(len(polls)):
        clock.us = number * PERIOD_US
        recorder._poll_group(None, "biller")  # type: ignore[arg-type]
    assert {"a": [], "b": []} == read_owners(tmp_path, "biller")  # no process was seen to start
    first, second = home.events
    assert [["orders", 0, "a"], ["orders", 1, "a"]] == first["owners"]
    assert [["orders", 0, "a"], ["orders", 1, "b"]] == second["owners"]
    assert (PERIOD_US, [["orders", 0, 4]]) == (second["since_us"], second["offsets"])


FAULTS = """
faults:
  - {kind: %s, client: ours, at: 2s, for: 60s}
"""


@pytest.mark.parametrize("kind", ["zombie", "join", "churn", "evict", "leave", "kill_client"])
def test_processes_start_one_after_the_other_if_a_fault_tells_them_apart(kind: str) -> None:
    plan = """
name: billing
topics:
  - {name: orders, partitions: 6, replication: 3}
  - {name: billed, partitions: 6, replication: 3}
workloads:
  - name: billing
    produce: {topic: orders, rate: 60/s, keys: 200}
    pipe: {from: orders, to: billed, group: biller, members: 2}
    arms: {ours: {client: service, command: [python3, b.py]}, other: {client: service, command: [python3, b.py]}}
"""
    timeline = compile_checked(load_plan(plan + FAULTS % kind), 0)
    names = ("billing-ours-pipe-1", "billing-ours-pipe-2")
    if kind == "join":  # the third is in reserve
        assert {"ours": 1} == timeline.workloads[0]["pipe"]["reserve"]
    assert ([] if kind in ("leave", "kill_client") else [names]) == in_turn(timeline)
