"""Kill: dead means dead, stays dead, and is back only when it is in service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftershock.errors import AdminError

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


KILL = "{id: dead, at: 1s, for: 6s, kind: kill, broker: leader of orders/0}"


async def test_roles_of_the_victim(stage: Stage) -> None:
    """The journal says what the victim led, whether it was the controller, its rack, and what was asked for."""
    await stage.play(KILL)
    targets = stage.line("dead", "intended").targets
    assert targets.brokers == (1,)
    assert targets.roles == {"asked": "leader of orders/0", "leads": {"orders": 2}, "controller": False, "rack": "a"}


async def test_role_is_resolved_at_injection(stage: Stage) -> None:
    """Two kills of the leader one after the other hit two brokers: the first one moved the leader."""
    await stage.play(
        "{id: one, at: 0s, for: 4s, kind: kill, broker: leader of orders/0}",
        "{id: two, at: 2s, for: 4s, kind: kill, broker: leader of orders/0}",
    )
    assert stage.line("one", "injected").targets.brokers == (1,)
    assert stage.line("two", "injected").targets.brokers == (2,)


async def test_healed_when_in_service(stage: Stage) -> None:
    """`healed` waits for registration and the ISR: three seconds of boot after the start."""
    await stage.play(KILL)
    assert stage.line("dead", "healing").t_us == 7_000_000
    assert 10_000_000 <= stage.line("dead", "healed").t_us <= 10_400_000
    assert all(broker in state.isr for state in await stage.world.partitions() for broker in state.replicas)


async def test_a_death_that_nobody_noticed_is_no_service(stage: Stage) -> None:
    """Registered and in every ISR all along, as the cluster sees it: healed is only a node that answers again."""
    stage.world.unnoticed = True
    await stage.play(KILL)
    assert stage.line("dead", "healed").t_us >= 10_000_000


async def test_kill_that_does_not_take(stage: Stage) -> None:
    """A container still running after SIGKILL is a failed injection, in words."""

    async def ignored(_broker: object) -> None:
        return

    stage.world.kill = ignored  # type: ignore[method-assign, assignment]
    await stage.play(KILL)
    assert stage.journal.states("dead") == ["intended", "failed", "healing", "healed"]
    assert "its container is running" in str(stage.line("dead", "failed").why)


async def test_raised_from_the_dead(stage: Stage) -> None:
    """Somebody starts the container during the fault: a witness fails."""

    def meddle() -> None:
        stage.world._regain(1)  # type: ignore[arg-type]

    await stage.play_with(3_500, meddle, KILL)
    oks = [witness.ok for witness in stage.journal.witnesses("dead")]
    assert oks[:2] == [True, True]
    assert False in oks


async def test_refusals_of_a_failover_are_waited_out(stage: Stage) -> None:
    """Kafka refuses to name the leader for a while: the step strikes as soon as it answers."""
    stage.world.broken["partitions"] = AdminError("no controller at the moment", "NOT_CONTROLLER")
    await stage.play_with(3_000, stage.world.broken.clear, KILL)
    assert stage.all_ok("dead")
    assert 3_000_000 <= stage.line("dead", "intended").t_us <= 3_400_000


async def test_refusals_without_end(stage: Stage) -> None:
    """Kafka refuses for good: the step fails with Kafka's words after a deadline."""
    stage.world.broken["partitions"] = AdminError("no controller at the moment", "NOT_CONTROLLER")
    await stage.play(KILL)
    assert stage.line("dead", "failed").why == "no controller at the moment"


async def test_controller_unknown(stage: Stage) -> None:
    """In the middle of an election nobody can say who is the controller; that is recorded, and the kill goes on."""
    stage.world.broken["controller"] = AdminError("no leader", "LEADER_NOT_AVAILABLE")
    await stage.play(KILL)
    assert stage.line("dead", "intended").targets.roles["controller"] is None
    assert stage.all_ok("dead")
