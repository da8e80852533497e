"""Resource limits and disk faults: each needs the kernel's or the broker's own evidence that it took effect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.runtime.record import Undo
from aftershock.faults.runtime.undo import perform
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


LIMITS = (
    "{id: less, at: 1s, for: 6s, kind: cpu_quota, broker: 2, cpus: 0.2}",
    "{id: less, at: 1s, for: 6s, kind: memory_limit, broker: 2, memory: 200MiB}",
)
DIRECTORIES = (
    "{id: less, at: 1s, for: 6s, kind: disk_full, broker: 2}",
    "{id: less, at: 1s, for: 6s, kind: log_dir_offline, broker: 2, disk: 2}",
)
VERBS = {"cpu_quota": "limit", "memory_limit": "limit", "disk_full": "fill", "log_dir_offline": "seal"}


@pytest.fixture(autouse=True)
def disks(stage: Stage) -> None:
    """The plans here have a cluster with two disks per broker."""
    stage.frame = FRAME.replace("name: test\n", "name: test\ncluster: {disks: {count: 2}}\n")


@pytest.mark.parametrize("fault", LIMITS + DIRECTORIES)
async def test_the_fault_takes_effect_and_is_undone(stage: Stage, fault: str) -> None:
    """It is witnessed each second and at the end, and afterwards the machine is as before."""
    await stage.play(fault)
    assert stage.all_ok("less")
    assert len(stage.journal.witnesses("less")) >= 6
    assert stage.journal.states("less") == ["intended", "injected", "witnessed", "healing", "healed"]
    assert stage.world.roomy()
    assert stage.world.healthy()


@pytest.mark.parametrize("fault", LIMITS + DIRECTORIES)
async def test_an_injection_without_effect_fails_a_witness(stage: Stage, fault: str) -> None:
    """The injection is replaced by a no-op, or the run is a rehearsal."""

    async def nothing(*_: object) -> None:
        return

    kind = fault.split("kind: ")[1].split(",", maxsplit=1)[0]
    setattr(stage.world, VERBS[kind], nothing)
    await stage.play(fault)
    assert not stage.all_ok("less")


@pytest.mark.parametrize("fault", LIMITS + DIRECTORIES)
async def test_a_rehearsal_fails_its_witnesses(stage: Stage, fault: str) -> None:
    await stage.rehearse(fault)
    assert [] == [told for told in stage.journal.witnesses("less") if told.ok]


@pytest.mark.parametrize("fault", LIMITS)
async def test_a_limit_that_is_never_reached(stage: Stage, fault: str) -> None:
    """The limit reads back, but a node that never reaches it gives no evidence."""
    stage.world.idle = True
    await stage.play(fault)
    assert [told.ok for told in stage.journal.witnesses("less")][-1] is False


async def test_both_limits_of_one_node(stage: Stage) -> None:
    """Each heal restores its own limit, whichever ends first."""
    cpu, memory = (fault.replace("id: less", f"id: {name}") for fault, name in zip(LIMITS, ("cpu", "ram"), strict=True))
    await stage.play(cpu, memory.replace("at: 1s, for: 6s", "at: 3s, for: 8s"))
    assert stage.all_ok("cpu")
    assert stage.all_ok("ram")
    assert [stage.journal.states(fault)[-1] for fault in ("cpu", "ram")] == ["healed", "healed"]
    assert stage.world.roomy()


async def test_killed_for_its_memory(stage: Stage) -> None:
    """A node killed by the kernel has reached its limit, and is started again by the heal."""
    await stage.play("{id: less, at: 1s, for: 6s, kind: memory_limit, broker: 2, memory: 100MiB}")
    assert stage.all_ok("less")
    assert "kills" in {told.unit for told in stage.journal.witnesses("less")}
    assert stage.world.healthy()


async def test_halted_by_its_disk(stage: Stage) -> None:
    """A broker without any log directory halts: that is the witness, and the heal starts the broker."""
    stop = stage.world.states
    await stage.play_with(
        3_000,
        lambda: stop.update({2: "exited"}),  # type: ignore[dict-item]
        "{id: less, at: 1s, for: 6s, kind: disk_full, broker: 2}",
    )
    assert stage.all_ok("less")
    assert "halts" in {told.unit for told in stage.journal.witnesses("less")}
    assert stage.world.healthy()


@pytest.mark.parametrize("fault", LIMITS + DIRECTORIES)
async def test_from_the_journal_alone(stage: Stage, fault: str) -> None:
    """The undo of the first journal line, through JSON and back, heals the fault; a second undo changes nothing."""
    await stage.interrupt(4_000, fault)
    undo = Undo(**json.loads(json.dumps(stage.line("less", "intended").undo.as_json())))
    await perform(undo, stage.world, stage.clock)
    calls = len(stage.world.called("stop"))
    await perform(undo, stage.world, stage.clock)
    assert stage.world.roomy()
    assert calls == len(stage.world.called("stop"))


async def test_a_limit_that_stays_fails_the_heal(stage: Stage) -> None:
    put = stage.world.limit

    async def once(*args: object) -> None:
        if not stage.world.called("limit"):
            await put(*args)  # type: ignore[arg-type]

    stage.world.limit = once  # type: ignore[method-assign, assignment]
    with pytest.raises(Exception, match="and should have Limits"):
        await stage.play(LIMITS[0])
    assert stage.journal.states("less")[-1] == "failed"


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("{at: 0s, for: 6s, kind: disk_full, broker: 2}", "set `cluster: {disks: {size: 64MB}}`"),
        (
            "{at: 0s, for: 6s, kind: log_dir_offline, broker: 2, disk: 3}",
            "1 log directories: lower `disk`",
        ),
    ],
)
def test_faults_of_missing_disks_are_refused(fault: str, sentence: str) -> None:
    """The error says how to add disks to the cluster."""
    with pytest.raises(PlanError) as refused:
        load_plan(FRAME + f"  - {fault}\n")
    assert sentence in str(refused.value)
