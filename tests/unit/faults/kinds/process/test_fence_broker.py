"""Fence: the broker's controller links are cut, it is fenced, and in service afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError
from aftershock.faults.plan.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


FENCE = "{id: out, at: 1s, for: 8s, kind: fence_broker, broker: 1}"


async def test_fenced_and_back(stage: Stage) -> None:
    """Only controller links out of its rack, both ways; fenced by the others' metadata, and unfenced at the end."""
    seen = []
    await stage.play_with(6_000, lambda: seen.append({p for p, t in stage.world.proxies.items() if t}), FENCE)
    assert [{"controller_a-k2", "controller_a-k3"}] == seen
    assert stage.all_ok("out")
    assert stage.world.healthy()
    assert {frozenset({1})} == {args for args in stage.world.called("registered") if args}
    targets = stage.line("out", "injected").targets
    assert ((1,), {"upstream", "downstream"}) == (targets.brokers, {n.rpartition(":")[2] for _, n in _toxics(stage)})


def _toxics(stage: Stage) -> list[tuple[str, str]]:
    return [args for _, verb, args in stage.world.calls if verb == "add_toxic"]  # type: ignore[misc]


async def test_a_rehearsal_cuts_nothing(stage: Stage) -> None:
    """The broker is not fenced, and no witness passes."""
    await stage.rehearse(FENCE)
    assert [] == stage.world.called("add_toxic")
    assert {False} == {witness.ok for witness in stage.journal.witnesses("out")}


async def test_unfenced_meanwhile(stage: Stage) -> None:
    """A removed toxic fails the witness."""

    def let_through() -> None:
        for toxics in stage.world.proxies.values():
            toxics.clear()

    await stage.play_with(6_000, let_through, FENCE)
    assert any(not witness.ok for witness in stage.journal.witnesses("out"))


async def test_a_broker_in_the_controllers_rack_is_refused(stage: Stage) -> None:
    """Nodes of one rack have no link between them."""
    await stage.play(FENCE.replace("broker: 1", "broker: 3"))
    assert "have no link to cut" in str(stage.line("out", "failed").why).replace("nodes of one rack", "")


async def test_the_default_broker_is_in_another_rack(stage: Stage) -> None:
    """Without `broker`, a broker outside the active controller's rack is chosen."""
    stage.world.active_controller = 1  # type: ignore[assignment]
    await stage.play(FENCE.replace(", broker: 1", ""))
    assert (2,) == stage.line("out", "injected").targets.brokers
    assert stage.all_ok("out")


async def test_a_toxic_that_cannot_be_removed_fails_the_heal(stage: Stage) -> None:
    gone = FaultError("toxiproxy is gone")
    with pytest.raises(FaultError, match="could not be healed"):
        await stage.play_with(6_000, lambda: stage.world.broken.update(remove_toxic=gone), FENCE)


def test_a_fence_shorter_than_a_session_gives_a_warning() -> None:
    """The broker is fenced only after its session timeout, so the fault lasts longer than the plan says."""
    warnings = load_plan(FRAME + "  - " + FENCE.replace("8s", "3s") + "\n").warnings
    assert any("after 3s without a heartbeat" in warning for warning in warnings)
