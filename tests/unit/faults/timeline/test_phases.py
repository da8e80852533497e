"""Phases are computed from the journal's actual times."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from aftershock.faults.timeline.timeline import Marks, phases
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


S = 1_000_000
MARKS = Marks(0, 10 * S, 20 * S, 60 * S)
BEFORE = [("warmup", None, 0, 10), ("steady", None, 10, 20)]
KILL = "{id: dead, at: 0s, for: 8s, kind: kill, broker: 1}"
MOVE = "{id: turn, at: 0s, kind: reassign, topic: orders, rotate: 1}"


def lines(fault: str, **times: float) -> list[dict[str, Any]]:
    return [{"fault": fault, "state": state, "t_us": int(second * S)} for state, second in times.items()]


def cut(journal: list[dict[str, Any]], *faults: str) -> list[tuple[str, str | None, float, float]]:
    rows = phases(journal, MARKS, timeline_of(*faults))
    assert all(row.block == 0 for row in rows)
    return [(row.name, row.fault, row.start_us / S, row.end_us / S) for row in rows]


def test_from_intended_to_healed() -> None:
    """A fault with `for` lasts from its intent to its verified heal; recovery is the rest."""
    journal = lines("dead", intended=21, injected=22, witnessed=23, healing=29, healed=33)
    assert cut(journal, KILL) == [*BEFORE, ("fault", "dead", 21, 33), ("recovery", None, 33, 60)]


def test_without_for() -> None:
    """The window of a fault without `for` ends timing.fault after the end of its action."""
    journal = lines("turn", intended=21, injected=24, witnessed=24.5, healed=24.6)
    assert cut(journal, MOVE) == [*BEFORE, ("fault", "turn", 21, 29), ("recovery", None, 29, 60)]


def test_overlaps_and_gaps() -> None:
    """Windows may overlap; recovery is all time that no window covers."""
    journal = [
        *lines("dead", intended=21, healed=30),
        *lines("turn", intended=25, injected=26),
        *lines("b", intended=40, healed=45),
    ]
    second = "{id: b, at: 30s, for: 4s, kind: kill, broker: 2}"
    assert cut(journal, KILL, MOVE, second) == [
        *BEFORE,
        ("fault", "dead", 21, 30),
        ("fault", "turn", 25, 31),
        ("recovery", None, 31, 40),
        ("fault", "b", 40, 45),
        ("recovery", None, 45, 60),
    ]


def test_resolution_failed() -> None:
    """A fault that failed before it changed anything has no window."""
    assert cut(lines("dead", failed=21), KILL) == BEFORE


def test_never_healed() -> None:
    """A fault that was never healed lasts to the end of the load, without recovery."""
    assert cut(lines("dead", intended=21, injected=22, failed=30), KILL) == [*BEFORE, ("fault", "dead", 21, 60)]


def test_failed_action_without_for() -> None:
    """An action that failed and was undone ends with its heal."""
    journal = lines("turn", intended=21, failed=25, healing=25, healed=26)
    assert cut(journal, MOVE) == [*BEFORE, ("fault", "turn", 21, 26), ("recovery", None, 26, 60)]


def test_no_faults() -> None:
    """A run without faults has warm-up and steady only."""
    assert cut([]) == BEFORE


async def test_of_a_real_execution(stage: Stage) -> None:
    """Phases of an executor's journal cover all time after the first fault without gaps."""
    await stage.clock.sleep_until_us(20 * S)
    await stage.play(KILL, "{id: turn, at: 20s, kind: reassign, topic: orders, rotate: 1}")
    rows = phases(stage.journal.as_json(), MARKS, timeline_of(KILL, MOVE))
    assert [row.name for row in rows] == ["warmup", "steady", "fault", "recovery", "fault", "recovery"]
    assert all(one.end_us == next_.start_us for one, next_ in pairwise(rows))
    assert rows[-1].as_json()["end_us"] == 60 * S
