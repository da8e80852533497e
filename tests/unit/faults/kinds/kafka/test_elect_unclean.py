"""An unclean election: only where a partition has no leader, and then whoever lives leads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aftershock.errors import AdminError

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


UNCLEAN = "{id: any, at: 1s, kind: elect, topic: orders, election: unclean}"


def orphan(stage: Stage) -> None:
    """Partition 0 has lost its last replica in sync, broker 1, which is dead; 2 and 3 live."""
    stage.world._lose(1, "exited")  # type: ignore[arg-type]
    state = stage.world._partitions["orders", 0]
    stage.world._partitions["orders", 0] = replace(state, leader=None, isr=(state.replicas[0],), leader_epoch=5)


async def test_a_live_replica_leads(stage: Stage) -> None:
    """A replica that was not in sync leads at a higher epoch; what that may cost is told to the judges."""
    orphan(stage)
    await stage.play(UNCLEAN)
    assert stage.world._partitions["orders", 0].leader == 2
    (witness,) = stage.journal.witnesses("any")
    assert (1, 1, True) == (witness.asked, witness.observed, witness.ok)
    roles = stage.line("any", "injected").targets.roles
    assert ([0], ("lost", "duplicate", "order")) == (roles["leaderless"], roles["permits"])


async def test_nobody_is_deposed(stage: Stage) -> None:
    """Every partition has a leader: there is nothing to elect, and nothing is asked for."""
    await stage.play(UNCLEAN)
    assert "replaces none" in str(stage.line("any", "failed").why)
    assert [] == stage.world.called("elect_unclean")


async def test_not_done(stage: Stage) -> None:
    """A rehearsal elects nobody and proves nothing."""
    orphan(stage)
    await stage.rehearse(UNCLEAN)
    assert [False] == [witness.ok for witness in stage.journal.witnesses("any")]
    assert [] == stage.world.called("elect_unclean")


async def test_refused(stage: Stage) -> None:
    """Kafka refuses for good: failed, with its reason, and nothing is left to undo."""
    orphan(stage)
    stage.world.broken["elect_unclean"] = AdminError("not eligible", "ELIGIBLE_LEADERS_NOT_AVAILABLE")
    await stage.play(UNCLEAN)
    assert ["intended", "failed", "healed"] == stage.journal.states("any")
    assert "not eligible" in str(stage.line("any", "failed").why)
