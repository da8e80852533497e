"""Unclean election: in a partition without a leader, a live replica that was not in sync becomes leader."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aftershock.errors import AdminError

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


UNCLEAN = "{id: any, at: 1s, kind: elect, topic: orders, election: unclean}"


def orphan(stage: Stage) -> None:
    """Partition 0 lost its last in-sync replica, the dead broker 1; brokers 2 and 3 live."""
    stage.world._lose(1, "exited")  # type: ignore[arg-type]
    state = stage.world._partitions["orders", 0]
    stage.world._partitions["orders", 0] = replace(state, leader=None, isr=(state.replicas[0],), leader_epoch=5)


async def test_a_live_replica_leads(stage: Stage) -> None:
    """The replica leads at a higher epoch, and the journal names the partition for the integrity checks."""
    orphan(stage)
    await stage.play(UNCLEAN)
    assert stage.world._partitions["orders", 0].leader == 2
    (witness,) = stage.journal.witnesses("any")
    assert (1, 1, True) == (witness.asked, witness.observed, witness.ok)
    roles = stage.line("any", "injected").targets.roles
    assert ([0], ("lost", "duplicate", "order")) == (roles["leaderless"], roles["permits"])


async def test_partitions_with_leaders_are_left_alone(stage: Stage) -> None:
    """If every partition has a leader, no election is requested."""
    await stage.play(UNCLEAN)
    assert "an unclean election elects only where there is no leader" in str(stage.line("any", "failed").why)
    assert [] == stage.world.called("elect_unclean")


async def test_a_rehearsal_elects_no_leader(stage: Stage) -> None:
    """No witness passes."""
    orphan(stage)
    await stage.rehearse(UNCLEAN)
    assert [False] == [witness.ok for witness in stage.journal.witnesses("any")]
    assert [] == stage.world.called("elect_unclean")


async def test_refused(stage: Stage) -> None:
    """Kafka refuses permanently: the step fails with Kafka's reason, without an undo."""
    orphan(stage)
    stage.world.broken["elect_unclean"] = AdminError("not eligible", "ELIGIBLE_LEADERS_NOT_AVAILABLE")
    await stage.play(UNCLEAN)
    assert ["intended", "failed", "healed"] == stage.journal.states("any")
    assert "not eligible" in str(stage.line("any", "failed").why)
