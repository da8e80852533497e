"""Verification of undos: an effect remains while the fault is in force, and none once it is undone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aftershock.faults.runtime.undo import perform, remaining_effect
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


FAULTS = {
    "remove_toxics": 'kind: latency, link: "client(a) <-> broker", delay: 50ms',
    "enable_proxies": 'kind: refuse, link: "client(*) -> broker"',
    "redirect_proxies": 'kind: misroute, link: "client(a) -> broker(1)", with: 2',
    "start": "kind: kill, broker: 1",
    "resume": "kind: pause, broker: 2",
    "restore_assignment": "kind: reassign, topic: orders, rotate: 1",
    "restore_settings": "kind: config, topic: orders, set: {min.insync.replicas: 1}",
    "all_of": "kind: cpu_quota, broker: 2, cpus: 0.2",
    "reopen_log_dir": "kind: disk_full, broker: 2",
    "start_clients": "kind: kill_client, client: baseline",
    "resume_clients": "kind: pause_client, client: baseline",
}


@pytest.mark.parametrize("verb", FAULTS)
async def test_effect_remains_until_undone(stage: Stage, verb: str) -> None:
    """An effect remains while the fault lasts, none after its undo; and the journal holds the expected verb."""
    stage.frame = FRAME.replace("name: test\n", "name: test\ncluster: {disks: {count: 2}}\n")
    said: list[str | None] = []

    async def look() -> None:
        await stage.clock.sleep_until_us(5_000_000)
        undo = stage.line("it", "intended").undo
        assert undo.verb == verb
        said.append(await remaining_effect(undo, stage.world))
        await perform(undo, stage.world, stage.clock)
        await stage.clock.sleep_until_us(9_000_000)
        said.append(await remaining_effect(undo, stage.world))

    await asyncio.gather(look(), stage.play(f"{{id: it, at: 1s, for: 20s, {FAULTS[verb]}}}"))
    assert said[0]
    assert said[1] is None
