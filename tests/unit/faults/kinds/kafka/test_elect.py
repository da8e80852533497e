"""Elect: preferred leaders are restored; an election without effect fails its witness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftershock.errors import AdminError

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


KILL = "{id: dead, at: 0s, for: 4s, kind: kill, broker: 1}"
ELECT = "{id: home, at: 12s, kind: elect, topic: orders}"


async def test_leaders_go_home(stage: Stage) -> None:
    """After a kill two partitions are led by others; the election brings both back at a higher epoch."""
    await stage.play(KILL, ELECT)
    assert stage.world.leaders() == [replicas[0] for replicas in stage.world.replicas()]
    (witness,) = stage.journal.witnesses("home")
    assert (witness.asked, witness.observed, witness.ok) == (2, 2, True)
    assert stage.journal.states("home") == ["intended", "injected", "witnessed", "healed"]


async def test_nothing_to_elect(stage: Stage) -> None:
    """All leaders are preferred already, so the fault has no effect and its witness fails."""
    await stage.play(ELECT)
    (witness,) = stage.journal.witnesses("home")
    assert (witness.observed, witness.ok) == (0, False)


async def test_preferred_replica_is_dead(stage: Stage) -> None:
    """The preferred leader stays dead: the step fails after the deadline without an undo."""
    stage.world._lose(1, "exited")  # type: ignore[arg-type]
    await stage.play(ELECT)
    assert stage.journal.states("home") == ["intended", "failed", "healed"]
    assert "2 of 6 partitions are not led by their preferred replica" in str(stage.line("home", "failed").why)


async def test_refused_for_a_while(stage: Stage) -> None:
    """Kafka refuses the election at first, and the request is repeated."""
    stage.world.broken["elect_preferred"] = AdminError("not now", "ELECTION_NOT_NEEDED")
    await stage.play_with(13_000, stage.world.broken.clear, KILL, ELECT)
    assert stage.all_ok("home")
