"""A run waits until its groups own all partitions of all their topics."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import WorkloadError
from aftershock.faults.targets.values import GroupMember
from aftershock.harness.run import drive as module
from aftershock.harness.run.drive import complete_groups
from aftershock.harness.safety.rundir import RunClock
from aftershock.tests.unit.workloads.conftest import Bench


class Coordinator:
    """The members of the group, as the coordinator tells them to the members of any workload."""

    def __init__(self, owned: dict[str, Sequence[tuple[str, int]]]) -> None:
        self._members = tuple(GroupMember(name, name, 1, frozenset(places)) for name, places in owned.items())

    async def group_members(self, _worker: str) -> tuple[GroupMember, ...]:
        return self._members


def crew(home: Path) -> list[Any]:
    """Two members of a workload with two topics, and two of another workload in the same group."""
    bench = Bench(home, "b:1", "orders")
    bench._common |= {"partitions": 2, "group": "readers", "members": 2}
    more = {"more_topics": [{"name": "returns", "topic_id": "i", "partitions": 1}]}
    audit = {"workload": "audit", "topic": "audit", "partitions": 1}
    return [
        *(bench.consume(worker=f"c{number}", **more) for number in (1, 2)),
        *(bench.consume(worker=f"a{number}", **audit) for number in (1, 2)),
    ]


WHOLE = {"c1": [("orders", 0), ("returns", 0)], "c2": [("orders", 1)], "a1": [("audit", 0)], "a2": []}


async def test_a_complete_group(tmp_path: Path) -> None:
    await complete_groups(crew(tmp_path), Coordinator(WHOLE), RunClock.starting_now())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("owned", "why"),
    [
        ({**WHOLE, "c1": [("orders", 0)]}, "own 3 of 4 partitions"),
        ({**WHOLE, "c1": [("orders", 0), ("other", 0), ("other", 1)]}, "own 3 of 4 partitions"),
        ({**WHOLE, "a1": []}, "own 3 of 4 partitions"),
        ({name: places for name, places in WHOLE.items() if name != "a2"}, "1 of 4 members"),
    ],
)
async def test_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owned: dict[str, list[tuple[str, int]]], why: str
) -> None:
    """A partition of another topic, which only a pattern matches, is no partition of the plan."""
    monkeypatch.setattr(module, "GROUPS_DEADLINE_MS", 1)
    with pytest.raises(WorkloadError, match=why):
        await complete_groups(crew(tmp_path), Coordinator(owned), RunClock.starting_now())  # type: ignore[arg-type]
