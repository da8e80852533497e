"""Killed clients: dead and silent during the fault, restarted at the heal, and refusals of invalid plans."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError, PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of
from aftershock.tests.unit.faults.fakes.clients import CONSUMER, PRODUCER, READY_US

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


KILL = "{id: dead, at: 1s, for: 4s, kind: kill_client, client: baseline}"
PRODUCER_ONLY = "{id: dead, at: 1s, for: 4s, kind: kill_client, client: orders/baseline, op: produce}"


async def test_both_are_dead_and_silent_and_come_back(stage: Stage) -> None:
    """Every worker of the arm is killed; witnesses are state and silence; the heal waits for a heartbeat."""
    await stage.play(KILL)
    assert stage.journal.states("dead") == ["intended", "injected", "witnessed", "healing", "healed"]
    assert stage.line("dead", "intended").targets.clients == (CONSUMER, PRODUCER)
    undo = {"verb": "start_clients", "args": {"clients": [CONSUMER, PRODUCER]}}
    assert stage.line("dead", "intended").undo.as_json() == undo
    assert stage.all_ok("dead")
    kinds = [witness.what for witness in stage.journal.witnesses("dead")]
    assert {
        "clients whose processes are exited, as the kernel reports",
        "clients that wrote a heartbeat or had a success during the fault",
    } == {*kinds}
    assert 8 <= len(kinds) <= 10
    assert stage.line("dead", "healed").t_us >= 5_000_000 + READY_US
    assert {client.state for client in stage.world.crew.values()} == {"running"}


async def test_one_operation_of_one_arm(stage: Stage) -> None:
    """With ``op`` only the workers of that operation are killed."""
    await stage.play(PRODUCER_ONLY)
    assert stage.world.called("kill_client") == [PRODUCER]


async def test_a_kill_without_effect(stage: Stage) -> None:
    """With an injection that does nothing, both the witness of state and the witness of silence fail."""
    stage.world._down = lambda *_: None  # type: ignore[method-assign, assignment]
    await stage.play(KILL)
    assert {witness.unit for witness in stage.journal.witnesses("dead")} == {"clients"}
    assert not any(witness.ok for witness in stage.journal.witnesses("dead"))


async def test_a_rehearsal_proves_nothing(stage: Stage) -> None:
    """No client is killed, and no witness passes."""
    await stage.rehearse(KILL)
    assert stage.world.called("kill_client") == []
    assert not any(witness.ok for witness in stage.journal.witnesses("dead"))


async def test_started_again_from_outside(stage: Stage) -> None:
    """A worker that runs again during the fault fails a witness."""

    def meddle() -> None:
        stage.world._up(PRODUCER, 0)

    await stage.play_with(3_500, meddle, KILL)
    assert not stage.all_ok("dead")
    assert stage.journal.states("dead")[-1] == "healed"


async def test_a_client_that_never_comes_back(stage: Stage) -> None:
    """A start without a heartbeat fails the heal; the error names the client and its log."""
    stage.world._up = lambda *_: None  # type: ignore[method-assign, assignment]
    with pytest.raises(FaultError, match=rf"{CONSUMER} is exited; look at the client's log"):
        await stage.play(KILL)
    assert stage.journal.states("dead")[-1] == "failed"


async def test_a_client_that_lags_is_not_back(stage: Stage) -> None:
    """A client that runs but is behind its schedule is not healed until it has caught up."""
    stage.world.late_us[PRODUCER] = 400_000

    def caught_up() -> None:
        stage.world.late_us[PRODUCER] = 300

    await stage.play_with(9_000, caught_up, KILL)
    assert stage.line("dead", "healed").t_us >= 9_000_000


async def test_without_a_run_there_are_no_clients(stage: Stage) -> None:
    """On a cluster without a run, the error says how to start clients."""
    stage.world.crew.clear()
    await stage.play(KILL)
    assert stage.journal.states("dead") == ["failed"]
    assert "no run drives this cluster, so there are no clients to target" in str(stage.journal.lines[0].why)


async def test_a_client_that_is_down_is_not_killed_again(stage: Stage) -> None:
    stage.world.crew[CONSUMER] = replace(stage.world.crew[CONSUMER], state="paused")
    await stage.play(KILL)
    assert f"the client {CONSUMER} is paused already" in str(stage.journal.lines[0].why)
    assert stage.world.called("kill_client") == []


async def test_an_interrupt_restarts_the_client(stage: Stage) -> None:
    await stage.interrupt(2_500, KILL)
    assert stage.world.called("start_client") == [CONSUMER, PRODUCER]
    assert stage.journal.states("dead")[-1] == "healed"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("client: basline", "there is no arm `basline`; did you mean `baseline`?"),
        ("client: order/baseline", "there is no arm `order/baseline`; did you mean `orders/baseline`?"),
        ("client: baseline, op: commit", "the arm `baseline` does not commit:"),
        ("client: baseline produce", "write a client as `ARM` or `WORKLOAD/ARM`"),
    ],
)
def test_unknown_arms_and_operations_are_refused(words: str, sentence: str) -> None:
    """An unknown arm or operation is refused at its position in the plan."""
    with pytest.raises(PlanError) as refused:
        timeline_of(f"{{at: 1s, for: 4s, kind: kill_client, {words}}}")
    assert sentence in str(refused.value)


def test_two_faults_on_one_client_conflict() -> None:
    """The same process can't be killed and paused at the same time; another worker of the arm can."""
    with pytest.raises(PlanError, match=f"conflicts with `dead`, which lasts until 5s on client {PRODUCER}"):
        timeline_of(PRODUCER_ONLY, "{at: 2s, for: 4s, kind: pause_client, client: baseline}")
    timeline_of(PRODUCER_ONLY, "{at: 2s, for: 4s, kind: pause_client, client: baseline, op: consume}")


def test_a_long_session_timeout_gives_a_warning() -> None:
    """The consumer's partitions are assigned only after its old session expires; the warning has a remedy."""
    (warning,) = load_plan(FRAME + f"  - {KILL}\n").warnings
    assert "killed consumers of `orders/baseline`, 45s after the kill" in warning
    assert load_plan(FRAME + f"  - {PRODUCER_ONLY}\n").warnings == ()
