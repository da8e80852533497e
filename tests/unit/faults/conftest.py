from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_plan
from aftershock.faults.timeline.executor import execute
from aftershock.tests.unit.faults.fake_world import FakeWorld, JumpingClock, ListJournal

if TYPE_CHECKING:
    from aftershock.faults.timeline.timeline import Timeline


FRAME = """\
name: test
topics:
  - {name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s}
    consume: {topic: orders, group: readers}
timing: {steady: 10s, fault: 5s, recovery: 10s}
faults:
"""


checked_plan = lru_cache(maxsize=16)(load_plan)  # tests compile one plan with many seeds


def timeline_of(*faults: str, seed: int = 7, frame: str = FRAME) -> Timeline:
    """Return a checked and compiled plan with these faults, each a line of YAML."""
    checked = checked_plan(frame + ("".join(f"  - {fault}\n" for fault in faults) if faults else "  []\n"))
    return compile_plan(checked.plan, seed, checked.source, checked.slo_positions)


@dataclass
class Stage:
    """A cluster in memory, a clock that jumps, a journal, and the messages of the executor."""

    clock: JumpingClock = field(default_factory=JumpingClock)
    world: FakeWorld = field(init=False)
    journal: ListJournal = field(init=False)
    said: list[str] = field(default_factory=list)
    frame: str = FRAME

    def __post_init__(self) -> None:
        self.world = FakeWorld(self.clock)
        self.journal = ListJournal(self.clock)

    async def play(self, *faults: str, seed: int = 7) -> None:
        """Execute a plan with these faults."""
        timeline = timeline_of(*faults, seed=seed, frame=self.frame)
        await execute(timeline, self.world, self.journal, self.clock, self.said.append)

    async def rehearse(self, *faults: str) -> None:
        """Execute a plan with these faults as a rehearsal."""
        timeline = timeline_of(*faults, frame=self.frame)
        await execute(timeline, self.world, self.journal, self.clock, self.said.append, rehearse=True)

    async def play_with(self, at_ms: int, then: Any, *faults: str) -> None:
        """Execute a plan with these faults, and call ``then`` at that time."""
        playing = asyncio.create_task(self.play(*faults))
        await self.clock.sleep_until_us(at_ms * 1000)
        then()
        await playing

    async def interrupt(self, at_ms: int, *faults: str) -> None:
        """Execute a plan with these faults, and cancel it at that time."""
        playing = asyncio.create_task(self.play(*faults))
        await self.clock.sleep_until_us(at_ms * 1000)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    def all_ok(self, fault: str) -> bool:
        witnesses = self.journal.witnesses(fault)
        return bool(witnesses) and all(witness.ok for witness in witnesses)

    def line(self, fault: str, state: str) -> Any:
        return next(line for line in self.journal.lines if (line.fault, line.state) == (fault, state))


@pytest.fixture
def stage() -> Stage:
    return Stage()
