"""Reassign: swaps, replaced brokers, changed replication, throttled moves, and cancelled moves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError, PlanError
from aftershock.faults.kinds.kafka import reassign
from aftershock.faults.targets.values import BrokerId, PartitionState
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


SWAP = "{id: turn, at: 1s, for: 4s, kind: reassign, topic: orders, swap: {from: 1, to: 2}}"
FEWER = "{id: turn, at: 1s, for: 4s, kind: reassign, topic: orders, replication: 2}"
MORE = "{id: turn, at: 1s, kind: reassign, topic: orders, replication: 3, throttle: 10kB/s}"
HELD = MORE.replace("at: 1s,", "at: 1s, for: 4s,")
CANCELLED = MORE.replace("throttle", "cancel_after: 1s, throttle")


def shorten(stage: Stage) -> None:
    """Reduce every partition to its first replica, so that a move has to copy data."""
    for where, state in list(stage.world._partitions.items()):
        stage.world._partitions[where] = replace(state, replicas=state.replicas[:1], isr=state.isr[:1])


def states(*replicas: tuple[int, ...]) -> list[PartitionState]:
    ids = [tuple(map(BrokerId, replica)) for replica in replicas]
    return [PartitionState("t", number, each[0], 0, each, each) for number, each in enumerate(ids)]


async def test_swap_moves_leaders_and_comes_back(stage: Stage) -> None:
    """Brokers 1 and 2 are swapped in every list; new preferred leaders lead; with `for` all is restored."""
    before, leaders = stage.world.replicas(), stage.world.leaders()
    seen: list[list[tuple[int, ...]]] = []
    await stage.play_with(3_000, lambda: seen.append(list(stage.world.replicas())), SWAP)
    assert [[tuple({1: 2, 2: 1}.get(r, r) for r in each) for each in before]] == seen
    assert (before, leaders) == (stage.world.replicas(), stage.world.leaders())
    assert stage.all_ok("turn")


async def test_fewer_replicas(stage: Stage) -> None:
    """Each partition loses its last replica and keeps its leader; the lists are restored afterwards."""
    before = stage.world.replicas()
    seen: list[list[tuple[int, ...]]] = []
    await stage.play_with(3_000, lambda: seen.append(list(stage.world.replicas())), FEWER)
    assert [[each[:2] for each in before]] == seen
    assert before == stage.world.replicas()
    assert stage.all_ok("turn")


async def test_throttled_stays_and_loses_its_throttle(stage: Stage) -> None:
    """Without `for` the move completes and stays, and every throttle setting is removed."""
    shorten(stage)
    await stage.play_with(6_000, lambda: _unthrottle(stage), MORE)
    assert {3} == {len(replicas) for replicas in stage.world.replicas()}
    assert not any("throttled" in key for own in stage.world.dynamic.values() for key in own)
    assert ["intended", "injected", "witnessed", "healing", "healed"] == stage.journal.states("turn")


def _unthrottle(stage: Stage) -> None:
    for own in stage.world.dynamic.values():
        own.pop("leader.replication.throttled.rate", None)
    stage.world._let_go()


async def test_throttled_for_a_while(stage: Stage) -> None:
    """The move is in flight with its throttle read back each second; then assignment and throttle are restored."""
    shorten(stage)
    before = stage.world.replicas()
    await stage.play(HELD)
    witnesses = stage.journal.witnesses("turn")
    assert all(witness.ok for witness in witnesses)
    assert (6, 6) == (witnesses[0].asked, witnesses[0].observed)
    assert len(witnesses) >= 5
    assert before == stage.world.replicas()
    assert stage.world.healthy()
    assert not any("throttled" in key for own in stage.world.dynamic.values() for key in own)


async def test_throttle_taken_off_from_outside(stage: Stage) -> None:
    """A throttle that is removed during the fault fails a witness."""
    shorten(stage)
    await stage.play_with(3_000, lambda: _unthrottle(stage), HELD)
    assert any(not witness.ok for witness in stage.journal.witnesses("turn"))


async def test_cancelled_midway(stage: Stage) -> None:
    """The move is cancelled in flight; replicas and settings are as before."""
    shorten(stage)
    before = stage.world.replicas()
    await stage.play(CANCELLED)
    assert [(6, 6, True), (6, 6, True)] == [(w.asked, w.observed, w.ok) for w in stage.journal.witnesses("turn")]
    assert before == stage.world.replicas()
    assert stage.world.healthy()
    assert not any("throttled" in key for own in stage.world.dynamic.values() for key in own)


async def test_cancelled_too_late(stage: Stage) -> None:
    """Without a move in flight the cancellation has no effect: its witness fails, and the heal restores the lists."""
    shorten(stage)
    before = stage.world.replicas()
    await stage.play_with(1_500, lambda: _unthrottle(stage), CANCELLED)
    assert [False, False] == [witness.ok for witness in stage.journal.witnesses("turn")]
    assert before == stage.world.replicas()


@pytest.mark.parametrize("fault", [MORE, HELD, CANCELLED])
async def test_a_rehearsal_moves_nothing(stage: Stage, fault: str) -> None:
    """No move starts, moves of others are not cancelled, and no witness passes."""
    shorten(stage)
    stage.world._moving = {("other", 0)}
    await stage.rehearse(fault)
    assert not {"reassign", "cancel_reassign", "alter_config"} & {verb for _, verb, _ in stage.world.calls}
    assert {False} == {witness.ok for witness in stage.journal.witnesses("turn")}


async def test_replace_needs_a_free_broker(stage: Stage) -> None:
    """A broker that has a replica of every partition can't replace another broker."""
    await stage.play("{id: turn, at: 1s, kind: reassign, replace: {from: 1, to: 2}}")
    assert "can't replace broker 1" in str(stage.line("turn", "failed").why)


def test_replace_changes_all_partitions_of_the_broker() -> None:
    """Partitions without a replica on the broker are unchanged; other replicas keep their order."""
    given = states((1, 2), (2, 3), (3, 1))
    assert {("t", 0): (4, 2), ("t", 2): (3, 4)} == reassign.replace_broker(given, BrokerId(1), BrokerId(4))


def test_more_replicas_are_spread() -> None:
    """A rack without a replica comes first; within a rack, the broker with the fewest replicas."""
    racks = {BrokerId(b): rack for b, rack in {1: "a", 2: "a", 3: "b", 4: "b"}.items()}
    wanted = reassign.change_replication(states((1,), (1,), (2,), (2,)), 2, racks)
    assert [(1, 3), (1, 4), (2, 3), (2, 4)] == list(wanted.values())


def test_fewer_replicas_stay_spread() -> None:
    """The second replica in a rack is removed first, never the preferred leader."""
    racks = {BrokerId(b): rack for b, rack in {1: "a", 2: "a", 3: "b"}.items()}
    wanted = reassign.change_replication(states((1, 2, 3), (2, 3, 1), (3, 1, 2)), 2, racks)
    assert [(1, 3), (2, 3), (3, 1)] == list(wanted.values())


def test_more_replicas_than_brokers() -> None:
    """No broker is left for another replica, so the plan is refused."""
    with pytest.raises(FaultError, match="lower `replication`"):
        reassign.change_replication(states((1,)), 2, {BrokerId(1): "a"})


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ("topic: orders", "needs exactly one of"),
        ("topic: orders, rotate: 1, replication: 2", "needs exactly one of"),
        ("rotate: 1", "needs a `topic`"),
        ("topic: orders, rotate: 1, throttle: 1MB/s", "nothing to throttle"),
        ("topic: orders, replication: 2, cancel_after: 1s", "without a throttle"),
        ("topic: orders, for: 3s, replication: 2, throttle: 1MB/s, cancel_after: 1s", "exclude each other"),
        ("partition: 0, replace: {from: 1, to: 2}", "`partition` needs a `topic`"),
        ("topic: orders, partition: 6, rotate: 1", "the topic orders has no partition 6: use 0 to 5"),
        ("topic: orders, replication: 4", "exceeds the cluster's 3 brokers"),
        ("topic: orders, swap: {from: 1, to: 1}", "name two brokers"),
    ],
)
def test_refused_in_a_plan(parameters: str, sentence: str) -> None:
    """These mistakes are detected from the plan alone."""
    with pytest.raises(PlanError, match=sentence):
        timeline_of("{at: 1s, kind: reassign, " + parameters + "}")
