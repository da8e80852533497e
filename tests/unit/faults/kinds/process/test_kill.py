"""Kill: the node is dead until the heal, and healed only when it is in service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import AdminError
from aftershock.faults.kinds.process.kill import Kill

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


KILL = "{id: dead, at: 1s, for: 6s, kind: kill, broker: leader of orders/0}"
CRASH = "{id: dead, at: 1s, for: 6s, kind: kill, broker: leader of orders/0, host: stays}"
VANISH = "{id: dead, at: 1s, for: 6s, kind: kill, broker: leader of orders/0, host: silent}"


async def test_roles_of_the_victim(stage: Stage) -> None:
    """The journal has the victim's leaderships, whether it was the controller, its rack, and the plan's role."""
    await stage.play(KILL)
    targets = stage.line("dead", "intended").targets
    assert targets.brokers == (1,)
    assert targets.roles == {"asked": "leader of orders/0", "leads": {"orders": 2}, "controller": False, "rack": "a"}


async def test_role_is_resolved_at_injection(stage: Stage) -> None:
    """Two successive kills of the leader affect two brokers: the first kill moved the leader."""
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


async def test_an_unnoticed_kill_is_healed_only_when_the_node_answers(stage: Stage) -> None:
    """The cluster never fenced the node, so registration and ISR look healthy while the node is dead."""
    stage.world.unnoticed = True
    await stage.play(KILL)
    assert stage.line("dead", "healed").t_us >= 10_000_000


async def test_kill_that_does_not_take(stage: Stage) -> None:
    """A container still running after SIGKILL fails the injection, with a message."""

    async def ignored(_broker: object) -> None:
        return

    stage.world.kill = ignored  # type: ignore[method-assign, assignment]
    await stage.play(KILL)
    assert stage.journal.states("dead") == ["intended", "failed", "healing", "healed"]
    assert "node 1 should be exited but is running" in str(stage.line("dead", "failed").why)


async def test_started_from_outside(stage: Stage) -> None:
    """A container started during the fault fails a witness."""

    def meddle() -> None:
        stage.world._regain(1)  # type: ignore[arg-type]

    await stage.play_with(3_500, meddle, KILL)
    oks = [witness.ok for witness in stage.journal.witnesses("dead")]
    assert oks[:2] == [True, True]
    assert False in oks


async def test_refusals_of_a_failover_are_waited_out(stage: Stage) -> None:
    """The step waits while Kafka refuses to name the leader."""
    stage.world.broken["partitions"] = AdminError("no controller at the moment", "NOT_CONTROLLER")
    await stage.play_with(3_000, stage.world.broken.clear, KILL)
    assert stage.all_ok("dead")
    assert 3_000_000 <= stage.line("dead", "intended").t_us <= 3_400_000


async def test_refusals_without_end(stage: Stage) -> None:
    """If Kafka keeps refusing, the step fails with its message after a deadline."""
    stage.world.broken["partitions"] = AdminError("no controller at the moment", "NOT_CONTROLLER")
    await stage.play(KILL)
    assert stage.line("dead", "failed").why == "no controller at the moment"


async def test_controller_unknown(stage: Stage) -> None:
    """During an election the controller is unknown; that is recorded, and the node is killed."""
    stage.world.broken["controller"] = AdminError("no leader", "LEADER_NOT_AVAILABLE")
    await stage.play(KILL)
    assert stage.line("dead", "intended").targets.roles["controller"] is None
    assert stage.all_ok("dead")


async def test_a_host_that_stays_refuses_connections(stage: Stage) -> None:
    await stage.play(CRASH)
    assert [1] == stage.world.called("crash")
    assert [] == stage.world.called("kill")
    assert {"refusals"} == {witness.unit for witness in stage.journal.witnesses("dead")}
    assert stage.all_ok("dead")
    assert {"verb": "start", "args": {"broker": 1}} == stage.line("dead", "intended").undo.as_json()
    assert stage.world.healthy()


async def test_a_host_that_is_gone_after_all_fails_the_witness(stage: Stage) -> None:
    """Nobody refuses a connection to it; the process is dead nevertheless."""
    stage.world.fragile_hosts = True
    await stage.play(CRASH)
    assert not any(witness.ok for witness in stage.journal.witnesses("dead"))


async def test_a_rehearsal_finds_no_refusal(stage: Stage) -> None:
    await stage.rehearse(CRASH)
    assert not any(witness.ok for witness in stage.journal.witnesses("dead"))
    assert [] == stage.world.called("crash")


async def test_a_silent_host_closes_no_connection(stage: Stage) -> None:
    """Each rack's clients have a connection to the node from before its death."""
    await stage.play(VANISH)
    assert [1] == stage.world.called("vanish")
    first, *later = stage.journal.witnesses("dead")
    assert (3, 3.0, "connections") == (first.asked, first.observed, first.unit)
    assert {"reads"} == {witness.unit for witness in later}
    assert stage.all_ok("dead")
    assert len(stage.world.called("dial")) == stage.world.hung_up
    assert {"verb": "start", "args": {"broker": 1}} == stage.line("dead", "intended").undo.as_json()
    assert stage.world.healthy()


async def test_a_node_that_closes_its_connections_is_no_silent_host(stage: Stage) -> None:
    stage.world.fragile_hosts = True
    await stage.play(VANISH)
    assert [False, True] == [witness.ok for witness in stage.journal.witnesses("dead")][:2]


async def test_a_rehearsal_finds_no_silence(stage: Stage) -> None:
    await stage.rehearse(VANISH)
    assert not any(witness.ok for witness in stage.journal.witnesses("dead"))
    assert [] == stage.world.called("vanish")


@pytest.mark.parametrize("words", [CRASH, VANISH])
async def test_no_host_outlives_its_node(stage: Stage, words: str) -> None:
    stage.world.hosts = False
    await stage.play(words)
    assert "launch it with `cluster: {hosts: true}`" in str(stage.line("dead", "failed").why)
    assert [] == [*stage.world.called("crash"), *stage.world.called("vanish")]


def test_only_a_host_that_is_gone_needs_no_container_of_its_own() -> None:
    assert () == Kill(broker="1").cluster_needs()
    assert ("hosts",) == Kill(broker="1", host="stays").cluster_needs()
    assert ("hosts",) == Kill(broker="1", host="silent").cluster_needs()
