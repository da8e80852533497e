"""Irreversible topic faults: deleted records, recreated topics and added partitions, with their witnesses."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.runtime.record import Undo
from aftershock.faults.runtime.undo import perform
from aftershock.tests.unit.faults.conftest import timeline_of
from aftershock.tests.unit.faults.fakes.kafka import ID, NEW_ID

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


DELETE = "{id: it, at: 1s, kind: delete_records, topic: orders}"
RECREATE = "{id: it, at: 1s, kind: recreate_topic, topic: orders}"
ABSENT = "{id: it, at: 1s, for: 5s, kind: recreate_topic, topic: orders}"
ADD = "{id: it, at: 1s, kind: add_partitions, topic: orders, to: 8}"
DONE = ["intended", "injected", "witnessed", "healed"]


@pytest.mark.parametrize(
    ("how", "start"), [("", 100), (", share: 0.5", 50), (", before: 30", 30), (", before: 900", 100)]
)
async def test_records_deleted(stage: Stage, how: str, start: int) -> None:
    """Records are deleted to the end, by a share or up to an offset, at most to the end; every leader confirms."""
    await stage.play(DELETE.replace("orders}", f"orders{how}}}"))
    assert {(start, 100)} == set(stage.world.logs.values())
    (witness,) = stage.journal.witnesses("it")
    assert (6, 6, True) == (witness.asked, witness.observed, witness.ok)
    assert DONE == stage.journal.states("it")
    assert ("lost",) == stage.line("it", "injected").targets.roles["permits"]


async def test_nothing_to_delete(stage: Stage) -> None:
    """An empty topic fails the step with the reason."""
    stage.world.logs = dict.fromkeys(stage.world.logs, (100, 100))
    await stage.play(DELETE)
    assert "holds no records to delete" in str(stage.line("it", "failed").why)


async def test_a_topic_is_recreated(stage: Stage) -> None:
    """The topic has another id, the same replicas and settings, and no records."""
    replicas = stage.world.replicas()
    await stage.play(RECREATE)
    assert NEW_ID == stage.world.ids["orders"]
    assert replicas == stage.world.replicas()
    assert {"min.insync.replicas": "2"} == stage.world.dynamic["topic", "orders"]
    assert {(0, 0)} == set(stage.world.logs.values())
    assert stage.all_ok("it")
    assert DONE == stage.journal.states("it")


async def test_a_crash_between_deletion_and_creation(stage: Stage) -> None:
    """The undo of the first journal line, in another process, creates the missing topic once."""
    replicas = stage.world.replicas()
    await stage.play(RECREATE)
    assert "nothing" == stage.line("it", "injected").undo.verb
    first = next(line for line in stage.journal.lines if line.undo.verb == "create_topic")
    await stage.world.delete_topic("orders")
    for _ in range(2):
        await perform(Undo(**json.loads(json.dumps(first.undo.as_json()))), stage.world, stage.clock)
    assert replicas == stage.world.replicas()
    assert {"min.insync.replicas": "2"} == stage.world.dynamic["topic", "orders"]


async def test_a_topic_that_appears_again_after_a_time(stage: Stage) -> None:
    """There is no such topic until the heal, which creates it with the same replicas and settings."""
    replicas = stage.world.replicas()
    seen: list[bool] = []
    await stage.play_with(4_000, lambda: seen.append("orders" in stage.world.ids), ABSENT)
    assert [False] == seen
    assert NEW_ID == stage.world.ids["orders"]
    assert replicas == stage.world.replicas()
    assert len(stage.journal.witnesses("it")) > 3
    assert stage.all_ok("it")
    assert ["intended", "injected", "witnessed", "healing", "healed"] == stage.journal.states("it")


async def test_a_topic_that_is_created_too_early(stage: Stage) -> None:
    """Another hand creates the topic during the fault: its witness fails."""
    replicas = dict(enumerate(stage.world.replicas()))
    created = []

    def create() -> None:
        created.append(asyncio.create_task(stage.world.create_topic("orders", replicas, {})))

    await stage.play_with(3_300, create, ABSENT)
    assert {True, False} == {witness.ok for witness in stage.journal.witnesses("it")}


async def test_partitions_added(stage: Stage) -> None:
    """The topic has the requested number of partitions, all with leaders."""
    await stage.play(ADD)
    (witness,) = stage.journal.witnesses("it")
    assert (8, 8, True) == (witness.asked, witness.observed, witness.ok)
    assert DONE == stage.journal.states("it")


@pytest.mark.parametrize("fault", [DELETE, RECREATE, ABSENT, ADD])
async def test_a_rehearsal_changes_nothing(stage: Stage, fault: str) -> None:
    """No witness passes."""
    logs, replicas = dict(stage.world.logs), stage.world.replicas()
    await stage.rehearse(fault)
    assert (logs, replicas, ID) == (stage.world.logs, stage.world.replicas(), stage.world.ids["orders"])
    assert {False} == {witness.ok for witness in stage.journal.witnesses("it")}


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("{at: 1s, kind: delete_records, topic: orders, share: 0.5, before: 3}", "exclude each other"),
        ("{at: 1s, kind: recreate_topic, topic: __consumer_offsets}", "Kafka's internal topic"),
        ("{at: 1s, kind: add_partitions, topic: orders, to: 6}", "has 6 partitions already"),
        ("{at: 1s, for: 3s, kind: add_partitions, topic: orders, to: 9}", "because it can't be undone"),
    ],
)
def test_refused_in_a_plan(fault: str, sentence: str) -> None:
    """These mistakes are detected from the plan alone."""
    with pytest.raises(PlanError, match=sentence):
        timeline_of(fault)
