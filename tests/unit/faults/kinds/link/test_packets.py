"""Packet loss: the kernel's counters must show the share that was asked for, and TCP must have sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.runtime.undo import perform
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage

LOSS = '{id: lossy, at: 1s, for: 6s, kind: packet_loss, link: "client(a) <-> broker(1)", share: 5%}'


async def test_both_directions_lose_packets(stage: Stage) -> None:
    await stage.play(LOSS)
    streams = (("client_a-k1", "downstream"), ("client_a-k1", "upstream"))
    assert [("lossy", streams, 0.05)] == stage.world.called("drop_packets")
    assert stage.all_ok("lossy")
    units = [witness.unit for witness in stage.journal.witnesses("lossy")]
    assert ["%", "segments"] == units[-2:]
    assert units.count("reads") >= 6
    assert {} == stage.world.packet_rules


@pytest.mark.parametrize(("factor", "packets_per_s"), [(2.0, 400), (0.0, 400), (1.0, 5)])
async def test_another_share_or_too_few_packets_fail_the_witness(
    stage: Stage, factor: float, packets_per_s: int
) -> None:
    stage.world.loss_factor, stage.world.packets_per_s = factor, packets_per_s
    await stage.play(LOSS)
    (share,) = [witness for witness in stage.journal.witnesses("lossy") if witness.unit == "%"]
    assert not share.ok


async def test_rules_that_vanish_fail_the_witness(stage: Stage) -> None:
    """As if somebody had flushed the firewall."""
    await stage.play_with(3_500, stage.world.packet_rules.clear, LOSS)
    assert not all(witness.ok for witness in stage.journal.witnesses("lossy") if witness.unit == "reads")


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    await stage.rehearse(LOSS)
    assert not any(witness.ok for witness in stage.journal.witnesses("lossy"))


@pytest.mark.parametrize("at_ms", [1_001, 3_500, 6_999])
async def test_interrupted(stage: Stage, at_ms: int) -> None:
    await stage.interrupt(at_ms, LOSS)
    assert {} == stage.world.packet_rules
    await perform(stage.line("lossy", "intended").undo, stage.world, stage.clock)
    assert {} == stage.world.packet_rules


async def test_a_cluster_without_packet_control_is_refused(stage: Stage) -> None:
    stage.world.packets = False
    await stage.play(LOSS)
    assert "packets of this cluster can't be dropped" in str(stage.line("lossy", "failed").why)


@pytest.mark.parametrize(
    ("share", "expected"),
    [("100%", "use the kind `cut`"), ("0%", "is not a percentage"), ("0.05", "is not a percentage")],
)
def test_refused(share: str, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        load_plan(f"{FRAME}  - {LOSS.replace('5%', share)}\n")


def test_two_losses_on_one_link_conflict() -> None:
    with pytest.raises(PlanError, match="this packet_loss conflicts with `lossy`"):
        load_plan(f"{FRAME}  - {LOSS}\n  - {LOSS.replace('id: lossy', 'id: other')}\n")
