"""Abort conditions: their grammar, and that a condition is met when it has held for its duration."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import AdminError, PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.runtime.abort import AbortConditionMet, AbortWatch, parse
from aftershock.faults.targets.values import BrokerId
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


@pytest.mark.parametrize(
    "text", ["in_sync_replicas == 0 for 5s", "offline_partitions > 2", "registered_brokers <= 1 for 1500ms"]
)
def test_it_reads_back(text: str) -> None:
    """The text of a condition is the text that was parsed."""
    assert text == str(parse(text))


@pytest.mark.parametrize(
    "text", ["", "isr == 0", "in_sync_replicas = 0", "in_sync_replicas == -1", "offline_partitions > 2 for"]
)
def test_what_is_no_condition(text: str) -> None:
    """The message shows the grammar."""
    with pytest.raises(ValueError, match="write one of in_sync_replicas"):
        parse(text)


def test_in_a_plan() -> None:
    """A plan has one or several conditions; an invalid one is reported with its location."""
    one = load_plan(FRAME.replace("faults:\n", 'abort: "offline_partitions > 0"\nfaults: []\n')).plan
    assert one.abort == ("offline_partitions > 0",)
    with pytest.raises(PlanError, match=r":9:35: `abort`: invalid abort condition `isr == 0`"):
        load_plan(FRAME.replace("faults:\n", 'abort: ["offline_partitions > 0", "isr == 0"]\nfaults: []\n'))


async def keep(stage: Stage, condition: str, until_ms: int) -> str | None:
    """Return the text of the watch at that time, or None."""
    watch = asyncio.create_task(AbortWatch([parse(condition)], ["orders"], stage.world, stage.clock).keep())
    await stage.clock.sleep_until_us(until_ms * 1000)
    watch.cancel()
    try:
        await watch
    except AbortConditionMet as met:
        return str(met)
    except asyncio.CancelledError:
        return None


async def test_met_when_it_has_lasted(stage: Stage) -> None:
    """A condition is not met before its duration, nor if it held only for a moment."""
    stage.world.states[BrokerId(2)] = "exited"
    reason = await keep(stage, "registered_brokers < 3 for 2s", 4_000)
    assert reason == "registered_brokers < 3 for 2s: registered_brokers was 2"
    assert await keep(stage, "registered_brokers < 3 for 2s", 5_500) is None
    assert await keep(stage, "registered_brokers < 2", 9_000) is None


async def test_the_fewest_in_sync(stage: Stage) -> None:
    """The partition with the smallest ISR counts."""
    await stage.world.kill(BrokerId(1))
    assert await keep(stage, "in_sync_replicas <= 2", 2_000) == "in_sync_replicas <= 2: in_sync_replicas was 2"


async def test_unknown_is_not_met(stage: Stage) -> None:
    """While Kafka does not answer, the duration does not count."""
    await stage.world.kill(BrokerId(1))
    stage.world.broken["partitions"] = AdminError("no broker answered", "NETWORK_EXCEPTION")
    assert await keep(stage, "in_sync_replicas <= 2 for 1s", 5_000) is None
