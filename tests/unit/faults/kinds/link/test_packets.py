"""Packets below TCP: counters must show the share that was asked for, and TCP must have noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.runtime.undo import perform
from aftershock.faults.targets.values import PacketChange
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage

LOSS = '{id: lossy, at: 1s, for: 6s, kind: packet_loss, link: "client(a) <-> broker(1)", share: 5%}'


KINDS = {
    "packet_delay, delay: 50ms, jitter: 10ms": (PacketChange("delay", 1.0, 50, 10), {"ms", "%"}),
    "packet_reorder, share: 10%": (PacketChange("delay", 0.1, 10), {"reads", "%", "segments"}),
    "packet_duplicate, share: 5%": (PacketChange("duplicate", 0.05), {"reads", "%", "segments"}),
    "packet_corrupt, share: 2%": (PacketChange("corrupt", 0.02), {"reads", "%", "segments"}),
}


def fault_of(words: str) -> str:
    return f'{{id: lossy, at: 1s, for: 6s, link: "client(a) <-> broker(1)", kind: {words}}}'


@pytest.mark.parametrize(("words", "expected"), KINDS.items(), ids=lambda words: str(words).partition(",")[0])
async def test_packets_are_changed_and_tcp_notices(
    stage: Stage, words: str, expected: tuple[PacketChange, set[str]]
) -> None:
    change, units = expected
    await stage.play(fault_of(words))
    assert [change] == [args[2] for args in stage.world.called("change_packets")]
    assert stage.all_ok("lossy")
    assert units == {witness.unit for witness in stage.journal.witnesses("lossy")}
    assert {} == stage.world.packet_rules


@pytest.mark.parametrize("words", KINDS, ids=lambda words: str(words).partition(",")[0])
async def test_a_rehearsal_of_each_kind_fails_its_witnesses(stage: Stage, words: str) -> None:
    await stage.rehearse(fault_of(words))
    assert stage.journal.witnesses("lossy")
    assert not any(witness.ok for witness in stage.journal.witnesses("lossy"))


async def test_both_directions_lose_packets(stage: Stage) -> None:
    await stage.play(LOSS)
    streams = (("client_a-k1", "downstream"), ("client_a-k1", "upstream"))
    assert [("lossy", streams, PacketChange("drop", 0.05))] == stage.world.called("change_packets")
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
    assert "packets of this cluster can't be changed" in str(stage.line("lossy", "failed").why)


@pytest.mark.parametrize(
    ("share", "expected"),
    [("100%", "use the kind `cut`"), ("0%", "is not a percentage"), ("0.05", "is not a percentage")],
)
def test_refused(share: str, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        load_plan(f"{FRAME}  - {LOSS.replace('5%', share)}\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("packet_delay, delay: 50ms, jitter: 30ms", "more than half the delay"),
        ("packet_delay, delay: 1ms", "delay"),
        ("packet_reorder, share: 90%", "share"),
        ("packet_corrupt, share: 90%", "share"),
    ],
)
def test_values_without_a_measurable_effect_are_refused(words: str, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        load_plan(f"{FRAME}  - {fault_of(words)}\n")


def test_two_losses_on_one_link_conflict() -> None:
    with pytest.raises(PlanError, match="this packet_loss conflicts with `lossy`"):
        load_plan(f"{FRAME}  - {LOSS}\n  - {LOSS.replace('id: lossy', 'id: other')}\n")
