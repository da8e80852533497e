"""Stop: leaders move first, the node stays down, and is healed only when it is in service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import ClusterError

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


STOP = "{id: down, at: 1s, for: 6s, kind: stop, broker: leader of orders/0}"


async def test_leaders_move_and_the_node_stays_down(stage: Stage) -> None:
    """The node leads neither of its two partitions, and the container reads back as exited each second."""
    await stage.play(STOP)
    first, *others = stage.journal.witnesses("down")
    assert (first.observed, first.n, first.unit) == (0, 2, "partitions")
    assert {witness.unit for witness in others} == {"reads"}
    assert 6 <= len(others) <= 8
    assert stage.all_ok("down")
    assert stage.world.called("kill") == []
    assert stage.line("down", "intended").undo.as_json() == {"verb": "start", "args": {"broker": 1}}
    assert 10_000_000 <= stage.line("down", "healed").t_us <= 10_400_000


async def test_leaders_that_stayed(stage: Stage) -> None:
    """A node that died instead of shutting down still leads at its exit, which fails a witness."""

    async def died(broker: object) -> None:
        stage.world.states[broker] = "exited"  # type: ignore[index]

    stage.world.stop = died  # type: ignore[method-assign, assignment]
    await stage.play(STOP)
    failed = [witness for witness in stage.journal.witnesses("down") if not witness.ok]
    assert [(witness.unit, witness.observed) for witness in failed] == [("partitions", 2)]


async def test_container_that_does_not_stop(stage: Stage) -> None:
    """A container still running after the engine reported it as stopped fails the injection, with a message."""

    async def ignored(_broker: object) -> None:
        return

    stage.world.stop = ignored  # type: ignore[method-assign, assignment]
    await stage.play(STOP)
    assert stage.journal.states("down") == ["intended", "failed", "healing", "healed"]
    assert "node 1 should be exited but is running" in str(stage.line("down", "failed").why)


async def test_killed_after_all(stage: Stage) -> None:
    """The engine's error is the reason of the failure, and the node is started again."""
    stage.world.broken["stop"] = ClusterError("k1 ended by SIGKILL, not by its own shutdown")
    await stage.play(STOP)
    assert "ended by SIGKILL" in str(stage.line("down", "failed").why)
    assert stage.world.called("start") == [1]


async def test_started_from_outside(stage: Stage) -> None:
    """A container that comes up during the fault fails the read-back."""
    await stage.play_with(3_500, lambda: stage.world._regain(1), STOP)  # type: ignore[arg-type]
    assert not stage.all_ok("down")


@pytest.mark.parametrize("at_ms", [1_001, 1_500, 4_000, 7_001])
async def test_cancelled_in_flight(stage: Stage, at_ms: int) -> None:
    """Interrupted while it shuts down or later: the stop ends first, and then it is started."""
    stop = stage.world.stop

    async def slow(broker: object) -> None:
        await stage.clock.sleep_until_us(stage.clock.now_us() + 1_500_000)
        await stop(broker)  # type: ignore[arg-type]

    stage.world.stop = slow  # type: ignore[method-assign]
    await stage.interrupt(at_ms, STOP)
    assert stage.world.healthy()
    assert [verb for _, verb, _ in stage.world.calls if verb in ("stop", "start")] == ["stop", "start"]
