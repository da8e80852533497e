"""What can't be taken back: records deleted, a topic created anew, partitions added. Each is seen, or says it isn't."""

from __future__ import annotations

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
ADD = "{id: it, at: 1s, kind: add_partitions, topic: orders, to: 8}"
DONE = ["intended", "injected", "witnessed", "healed"]


@pytest.mark.parametrize(
    ("how", "start"), [("", 100), (", share: 0.5", 50), (", before: 30", 30), (", before: 900", 100)]
)
async def test_records_deleted(stage: Stage, how: str, start: int) -> None:
    """To the end, a share of each partition, or up to an offset, but never beyond the end; every leader says so."""
    await stage.play(DELETE.replace("orders}", f"orders{how}}}"))
    assert {(start, 100)} == set(stage.world.logs.values())
    (witness,) = stage.journal.witnesses("it")
    assert (6, 6, True) == (witness.asked, witness.observed, witness.ok)
    assert DONE == stage.journal.states("it")
    assert ("lost",) == stage.line("it", "injected").targets.roles["permits"]


async def test_nothing_to_delete(stage: Stage) -> None:
    """An empty topic: the fault says that there is nothing to do."""
    stage.world.logs = dict.fromkeys(stage.world.logs, (100, 100))
    await stage.play(DELETE)
    assert "holds no records to delete" in str(stage.line("it", "failed").why)


async def test_topic_created_anew(stage: Stage) -> None:
    """Its id is another; replicas and settings are those of before, and its records are gone."""
    replicas = stage.world.replicas()
    await stage.play(RECREATE)
    assert NEW_ID == stage.world.ids["orders"]
    assert replicas == stage.world.replicas()
    assert {"min.insync.replicas": "2"} == stage.world.dynamic["topic", "orders"]
    assert {(0, 0)} == set(stage.world.logs.values())
    assert stage.all_ok("it")
    assert DONE == stage.journal.states("it")


async def test_a_death_between_the_two(stage: Stage) -> None:
    """The runner died while there was no topic: the undo of the first line, from another process, creates it, once."""
    replicas = stage.world.replicas()
    await stage.play(RECREATE)
    assert "nothing" == stage.line("it", "injected").undo.verb
    first = next(line for line in stage.journal.lines if line.undo.verb == "create_topic")
    await stage.world.delete_topic("orders")
    for _ in range(2):
        await perform(Undo(**json.loads(json.dumps(first.undo.as_json()))), stage.world, stage.clock)
    assert replicas == stage.world.replicas()
    assert {"min.insync.replicas": "2"} == stage.world.dynamic["topic", "orders"]


async def test_partitions_added(stage: Stage) -> None:
    """As many as asked for, all led."""
    await stage.play(ADD)
    (witness,) = stage.journal.witnesses("it")
    assert (8, 8, True) == (witness.asked, witness.observed, witness.ok)
    assert DONE == stage.journal.states("it")


@pytest.mark.parametrize("fault", [DELETE, RECREATE, ADD])
async def test_not_done(stage: Stage, fault: str) -> None:
    """A rehearsal changes nothing, and nothing is proven."""
    logs, replicas = dict(stage.world.logs), stage.world.replicas()
    await stage.rehearse(fault)
    assert (logs, replicas, ID) == (stage.world.logs, stage.world.replicas(), stage.world.ids["orders"])
    assert [False] == [witness.ok for witness in stage.journal.witnesses("it")]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("{at: 1s, kind: delete_records, topic: orders, share: 0.5, before: 3}", "not both; remove one"),
        ("{at: 1s, kind: recreate_topic, topic: __consumer_offsets}", "is internal to Kafka"),
        ("{at: 1s, kind: add_partitions, topic: orders, to: 6}", "Kafka can only add"),
        ("{at: 1s, for: 3s, kind: add_partitions, topic: orders, to: 9}", "because it has no inverse"),
    ],
)
def test_refused_in_a_plan(fault: str, sentence: str) -> None:
    """What the plan alone shows to be wrong."""
    with pytest.raises(PlanError, match=sentence):
        timeline_of(fault)
