"""A flood: its topic and rate, a witness from the logs, and a heal that ends it and deletes the topic."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.runtime.record import Undo
from aftershock.faults.runtime.undo import perform, remaining_effect
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


TOPIC = "aftershock-flood-it"


def fault(words: str = "rate: 10MB/s", lasts: str = "8s") -> str:
    return f"{{id: it, at: 0s, for: {lasts}, kind: flood, {words}}}"


@pytest.mark.parametrize(
    ("words", "brokers"),
    [("rate: 10MB/s", (1, 2, 3)), ("rate: 1MB/s, broker: leader of orders/1, replication: 2", (2,))],
)
async def test_a_flood_of_some_brokers(stage: Stage, words: str, brokers: tuple[int, ...]) -> None:
    """Each target leads one partition of the topic, whose logs grow; afterwards nothing is left."""
    seen = []
    await stage.play_with(5_000, lambda: seen.extend(stage.world.floods.values()), fault(words))
    assert ["intended", "injected", "witnessed", "healing", "healed"] == stage.journal.states("it")
    assert stage.all_ok("it")
    assert {"bytes/s"} == {witness.unit for witness in stage.journal.witnesses("it")}
    assert brokers == stage.line("it", "intended").targets.brokers
    ((load, _),) = seen
    assert (TOPIC, len(brokers)) == (load.topic, load.partitions)
    assert load.for_ms > 8_000  # a bound for a heal that never comes
    assert not stage.world.floods
    assert TOPIC not in stage.world.ids


async def test_a_flood_that_brokers_hardly_take_is_none(stage: Stage) -> None:
    stage.world.flood_share = 0.01
    await stage.play(fault())
    assert not any(witness.ok for witness in stage.journal.witnesses("it"))


async def test_a_rehearsal_floods_nothing(stage: Stage) -> None:
    await stage.rehearse(fault())
    assert not any(witness.ok for witness in stage.journal.witnesses("it"))
    assert [] == stage.world.called("create_topic")


async def test_another_process_heals(stage: Stage) -> None:
    """The undo of the first journal line deletes the topic, also twice, and without a producer of its own."""
    await stage.play(fault())
    first = next(line for line in stage.journal.lines if line.undo.verb == "end_flood")
    undo = Undo(**json.loads(json.dumps(first.undo.as_json())))
    await stage.world.create_topic(TOPIC, {0: (1,)}, {})  # type: ignore[dict-item]
    assert "still exists" in str(await remaining_effect(undo, stage.world))
    for _ in range(2):
        await perform(undo, stage.world, stage.clock)
    assert await remaining_effect(undo, stage.world) is None


async def test_a_topic_that_exists_is_not_used(stage: Stage) -> None:
    await stage.world.create_topic(TOPIC, {0: (1,)}, {})  # type: ignore[dict-item]
    await stage.play(fault())
    assert ["failed"] == stage.journal.states("it")
    assert TOPIC in stage.world.ids


@pytest.mark.parametrize(
    ("words", "lasts", "message"),
    [
        ("record_size: 100", "8s", "`rate` is missing here"),
        ("rate: 400MB/s", "20s", "the flood would write 8.0 GB, and 4 GB are allowed"),
        ("rate: 1MB/s, replication: 5", "8s", "the cluster has 3 brokers"),
        ("rate: 1MB/s, broker: 9", "8s", "9"),
        ("rate: 10", "8s", "rate"),
    ],
)
def test_impossible_floods_are_refused(words: str, lasts: str, message: str) -> None:
    with pytest.raises(PlanError) as refused:
        timeline_of(fault(words, lasts))
    assert message in str(refused.value)
