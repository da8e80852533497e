"""Undo: plain data, a closed set of verbs, idempotent, from any process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError
from aftershock.faults.runtime.record import Undo
from aftershock.faults.runtime.undo import perform

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


FAULTS = (
    '{id: slow, at: 0s, for: 60s, kind: latency, link: "client(a) <-> broker", delay: 50ms}',
    "{id: dead, at: 1s, for: 60s, kind: kill, broker: 1}",
    "{id: frozen, at: 1s, for: 60s, kind: pause, broker: 2}",
    "{id: gone, at: 0s, for: 60s, kind: cut, rack: c}",
    '{id: shut, at: 0s, for: 60s, kind: refuse, link: "client(*) -> broker"}',
    '{id: lost, at: 0s, for: 60s, kind: misroute, link: "client(*) -> broker(1)", with: 2}',
    '{id: still, at: 0s, for: 60s, kind: stall, link: "client(a) <-> broker"}',
    "{id: down, at: 1s, for: 60s, kind: stop, broker: 1}",
    "{id: turn, at: 0s, for: 60s, kind: reassign, topic: orders, rotate: 1}",
)


@pytest.mark.parametrize("fault", FAULTS)
async def test_from_the_journal_alone(stage: Stage, fault: str) -> None:
    """The undo of the first line, through JSON and back, heals the fault; a second undo changes nothing."""
    broken: list[bool] = []

    async def heal_from_outside() -> None:
        await stage.clock.sleep_until_us(5_000_000)
        broken.append(stage.world.healthy() and stage.world.replicas()[0] == (1, 2, 3))
        undo = Undo(**json.loads(json.dumps(stage.journal.lines[0].undo.as_json())))
        await perform(undo, stage.world, stage.clock)
        await perform(undo, stage.world, stage.clock)
        assert stage.world.healthy()
        assert stage.world.replicas()[0] == (1, 2, 3)

    import asyncio  # noqa: PLC0415 -- here it reads with its use

    await asyncio.gather(stage.play(fault), heal_from_outside())
    assert broken == [False]


async def test_unknown_verb(stage: Stage) -> None:
    """A verb of a later version is refused, with the remedy."""
    with pytest.raises(FaultError, match="heal with the version that wrote the journal"):
        await perform(Undo("untangle"), stage.world, stage.clock)  # type: ignore[arg-type]


async def test_all_toxics_are_tried(stage: Stage) -> None:
    """A toxic that can't be removed doesn't stop the removal of others; the error names every failure."""
    await stage.play_with(3_000, lambda: None, FAULTS[0].replace("60s", "4s"))
    stage.world.broken["remove_toxic"] = FaultError("toxiproxy is gone")
    undo = stage.journal.lines[0].undo
    with pytest.raises(FaultError, match=r"^(toxiproxy is gone; ){5}toxiproxy is gone$"):
        await perform(undo, stage.world, stage.clock)
