"""Reassign: leaders or replicas move, are read back, and are restored with `for`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


ROTATE = "{id: turn, at: 1s, kind: reassign, topic: orders, rotate: 1}"
ROTATE_BACK = "{id: turn, at: 1s, for: 5s, kind: reassign, topic: orders, rotate: 1}"
MOVE = "{id: turn, at: 1s, kind: reassign, topic: orders, move: {from: 1, to: 2}}"


async def test_rotation_moves_every_leader(stage: Stage) -> None:
    """Each replica list is rotated left by one, and its new first replica leads."""
    before = stage.world.replicas()
    await stage.play(ROTATE)
    assert stage.world.replicas() == [replicas[1:] + replicas[:1] for replicas in before]
    assert stage.world.leaders() == [replicas[1] for replicas in before]
    (witness,) = stage.journal.witnesses("turn")
    assert (witness.asked, witness.observed, witness.ok) == (6, 6, True)


async def test_rotation_of_one_partition(stage: Stage) -> None:
    """Only the named partition moves, is witnessed, and is restored; leaders of the others keep their epochs."""
    before, states = stage.world.replicas(), dict(stage.world._partitions)
    seen: list[list[tuple[int, ...]]] = []
    one = ROTATE_BACK.replace("rotate: 1", "partition: 2, rotate: 1")
    await stage.play_with(3_000, lambda: seen.append(list(stage.world.replicas())), one)
    rotated = before[2][1:] + before[2][:1]
    assert seen == [[*before[:2], rotated, *before[3:]]]
    assert stage.world.replicas() == before
    moved = {
        where for where, state in stage.world._partitions.items() if state.leader_epoch != states[where].leader_epoch
    }
    assert moved == {("orders", 2)}
    assert [(witness.asked, witness.ok) for witness in stage.journal.witnesses("turn")] == [(1, True), (1, True)]


async def test_partition_that_vanished(stage: Stage) -> None:
    """The message names the partition, not the topic."""
    for where in [where for where in stage.world._partitions if where[1] == 2]:
        del stage.world._partitions[where]
    await stage.play(ROTATE.replace("rotate: 1", "partition: 2, rotate: 1"))
    assert "the topic orders has no partition 2" in str(stage.line("turn", "failed").why)


async def test_restored_after_for(stage: Stage) -> None:
    """With `for` both the assignment and the leaders are as before."""
    replicas, leaders = stage.world.replicas(), stage.world.leaders()
    await stage.play(ROTATE_BACK)
    assert (stage.world.replicas(), stage.world.leaders()) == (replicas, leaders)
    assert stage.all_ok("turn")
    assert stage.journal.states("turn") == ["intended", "injected", "witnessed", "healing", "healed"]


async def test_assignment_changed_from_outside(stage: Stage) -> None:
    """Partitions moved back during the fault fail the witness at its end."""
    before = dict(stage.world._partitions)
    await stage.play_with(3_000, lambda: stage.world._partitions.update(before), ROTATE_BACK)
    assert [witness.ok for witness in stage.journal.witnesses("turn")] == [True, False]


async def test_stuck_move_is_cancelled_and_restored(stage: Stage) -> None:
    """A move that never ends: failed after the deadline, cancelled, and the old assignment in force."""
    before = stage.world.replicas()
    stage.world.stuck_moves = True
    await stage.play(ROTATE)
    assert stage.journal.states("turn") == ["intended", "failed", "healing", "healed"]
    assert "6 of 6 partitions are not yet reassigned" in str(stage.line("turn", "failed").why)
    assert len(stage.world.called("cancel_reassign")) == 1
    assert stage.world.replicas() == before
    assert stage.world.healthy()


async def test_interrupted_in_flight(stage: Stage) -> None:
    """Interrupted while the move is in flight: cancelled and restored, too."""
    stage.world.stuck_moves = True
    await stage.interrupt(5_000, ROTATE)
    assert len(stage.world.called("cancel_reassign")) == 1
    assert stage.world.healthy()


async def test_a_move_without_free_broker(stage: Stage) -> None:
    """With three replicas on three brokers no move is possible, and the message says so."""
    await stage.play(MOVE)
    assert stage.journal.states("turn") == ["failed"]
    assert "has the requested replicas already" in str(stage.line("turn", "failed").why)


async def test_move_replaces_one_broker(stage: Stage) -> None:
    """With two replicas each, only the partitions that lack the target change, in the source's place."""
    for where, state in list(stage.world._partitions.items()):
        short = state.replicas[:2]
        stage.world._partitions[where] = type(state)(*where, short[0], 0, short, short)
    before = stage.world.replicas()
    await stage.play(MOVE)
    expected = [tuple(2 if r == 1 else r for r in replicas) if 2 not in replicas else replicas for replicas in before]
    assert stage.world.replicas() == expected
    assert stage.line("turn", "injected").targets.roles == {"from": 1, "to": 2}
    (witness,) = stage.journal.witnesses("turn")
    assert (witness.asked, witness.observed, witness.ok) == (2, 2, True)


async def test_unknown_topic(stage: Stage) -> None:
    """A topic that vanished between check and injection is a failed step with a sentence."""
    stage.world._partitions.clear()
    await stage.play(ROTATE)
    assert "no topic orders" in str(stage.line("turn", "failed").why)


ROTATE_AGAIN = "{id: turn, at: 1s, for: 5s, kind: reassign, topic: orders, partition: 2, rotate: 1, every: 2s}"


async def test_repeated_rotation(stage: Stage) -> None:
    """The leader moves every two seconds, each move has a witness, and the heal restores the first leader."""
    before, leaders, seen = stage.world.replicas(), stage.world.leaders(), []
    await stage.play_with(4_500, lambda: seen.append(stage.world.leaders()), ROTATE_AGAIN)
    assert seen == [[*leaders[:2], before[2][2], *leaders[3:]]]  # the third replica, after two of the three rotations
    assert [(witness.asked, witness.ok) for witness in stage.journal.witnesses("turn")] == [(1, True)] * 3
    assert (stage.world.replicas(), stage.world.leaders()) == (before, leaders)


async def test_repeated_rotation_that_gets_stuck(stage: Stage) -> None:
    """A rotation that does not end fails the fault, and the first assignment is restored."""
    before = stage.world.replicas()
    await stage.play_with(2_500, lambda: setattr(stage.world, "stuck_moves", True), ROTATE_AGAIN)
    assert "1 of 1 partitions are not yet reassigned" in str(stage.line("turn", "failed").why)
    assert stage.world.replicas() == before
