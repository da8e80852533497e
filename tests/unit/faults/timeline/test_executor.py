"""Executor: journal first, everything is healed in any case."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError
from aftershock.faults.timeline import executor

if TYPE_CHECKING:
    from aftershock.faults.runtime.record import Undo
    from aftershock.tests.unit.faults.conftest import Stage


LATENCY = '{id: slow, at: 1s, for: 10s, kind: latency, link: "client(a) <-> broker", delay: 50ms}'
KILL = "{id: dead, at: 2s, for: 6s, kind: kill, broker: leader of orders/0}"
PAUSE = "{id: frozen, at: 3s, for: 6s, kind: pause, broker: 2}"
ROTATE = "{id: turn, at: 1s, for: 9s, kind: reassign, topic: orders, rotate: 1}"
STAY = "{id: stay, at: 1s, kind: reassign, topic: orders, rotate: 1}"
CUT = "{id: gone, at: 1s, for: 8s, kind: cut, rack: b}"
REFUSE = '{id: shut, at: 1s, for: 8s, kind: refuse, link: "client(a) -> broker"}'
STOP = "{id: down, at: 2s, for: 6s, kind: stop, broker: leader of orders/0}"
RESTART = "{id: again, at: 2s, kind: restart, broker: 1}"
LASTING = [LATENCY, CUT, REFUSE, KILL, STOP, PAUSE, ROTATE]
FULL_STORY = ["intended", "injected", "witnessed", "healing", "healed"]


@pytest.mark.parametrize("fault", LASTING)
async def test_full_story(stage: Stage, fault: str) -> None:
    """Every kind with `for` goes through all states in order, is witnessed, and leaves the cluster healthy."""
    await stage.play(fault)
    name = stage.journal.lines[0].fault
    assert stage.journal.states(name) == FULL_STORY
    assert stage.all_ok(name)
    assert stage.world.healthy()


@pytest.mark.parametrize("fault", [*LASTING, RESTART, STAY])
async def test_a_rehearsal_does_nothing_and_sees_nothing(stage: Stage, fault: str) -> None:
    """A rehearsal has the same times and targets, changes nothing, and all its witnesses fail."""
    await stage.rehearse(fault)
    name = stage.journal.lines[0].fault
    assert stage.journal.states(name) == ["intended", "injected", "witnessed", "healed"]
    assert not any(witness.ok for witness in stage.journal.witnesses(name))
    links = ("add_toxic", "remove_toxic", "disable", "enable")
    done = (*links, "kill", "stop", "start", "pause", "resume", "reassign", "elect_preferred")
    assert [] == [call for verb in done for call in stage.world.called(verb)]
    assert {"nothing"} == {line.undo.verb for line in stage.journal.lines}


async def test_a_rehearsed_fault_has_the_window_of_a_real_one(stage: Stage) -> None:
    """A rehearsal's fault lasts from `at` to `at` + `for`, so that objectives have the same windows."""
    await stage.rehearse(KILL)
    assert (2_000_000, 8_000_000) == (stage.line("dead", "intended").t_us, stage.line("dead", "healed").t_us)


async def test_journal_before_harm(stage: Stage) -> None:
    """When the kill reaches the engine, the journal holds its intent and its undo already."""
    seen: list[tuple[str, str]] = []
    kill = stage.world.kill

    async def watched(broker: object) -> None:
        seen.extend((line.state, line.undo.verb) for line in stage.journal.lines)
        await kill(broker)  # type: ignore[arg-type]

    stage.world.kill = watched  # type: ignore[method-assign]
    await stage.play(KILL)
    assert seen == [("intended", "start")]


async def test_times(stage: Stage) -> None:
    """A step begins at its `at`, counted from the call, and its heal at `at` + `for`."""
    await stage.clock.sleep_until_us(5_000_000)
    await stage.play(KILL)
    assert stage.line("dead", "intended").t_us == 7_000_000
    assert stage.line("dead", "healing").t_us == 13_000_000


@pytest.mark.parametrize(("first", "second"), list(product([4, 9], [4, 9])))
async def test_overlaps_heal_in_any_order(stage: Stage, first: int, second: int) -> None:
    """Two overlapping latencies on the same links and a kill each heal only themselves, in any order."""
    await stage.play(
        f'{{id: one, at: 1s, for: {first}s, kind: latency, link: "client(a) -> broker", delay: 50ms}}',
        f'{{id: two, at: 2s, for: {second}s, kind: latency, link: "client(a) -> broker", delay: 80ms}}',
        "{id: dead, at: 3s, for: 4s, kind: kill, broker: 2}",
    )
    for name in ("one", "two", "dead"):
        assert stage.journal.states(name) == FULL_STORY
        assert stage.all_ok(name), stage.journal.witnesses(name)
    assert stage.world.healthy()


async def test_failure_stops_no_other(stage: Stage) -> None:
    """A step whose injection fails is journalled and undone; the other steps are not affected."""
    stage.world.broken["pause"] = FaultError("the engine refused to pause k2")
    await stage.play(PAUSE, LATENCY)
    assert stage.journal.states("frozen") == ["intended", "failed", "healing", "healed"]
    assert stage.line("frozen", "failed").why == "the engine refused to pause k2"
    assert stage.journal.states("slow") == FULL_STORY
    assert stage.world.called("resume") == [2]


async def test_surprise_is_a_failure_too(stage: Stage) -> None:
    """An unexpected exception is journalled with its type, and the undo is performed."""
    stage.world.broken["kill"] = RuntimeError("boom")
    await stage.play(KILL, LATENCY)
    assert stage.line("dead", "failed").why == "RuntimeError: boom"
    assert stage.journal.states("slow") == FULL_STORY
    assert stage.world.healthy()


async def test_nothing_to_hit(stage: Stage) -> None:
    """A step without targets is `failed` with the reason; nothing is intended or undone."""
    stage.world.states[2] = "exited"  # type: ignore[index]
    await stage.play(PAUSE, LATENCY)
    assert stage.journal.states("frozen") == ["failed"]
    assert "exited already" in str(stage.line("frozen", "failed").why)
    assert stage.world.called("resume") == []
    assert stage.journal.states("slow") == FULL_STORY


async def test_failed_heal_is_raised_at_the_end(stage: Stage) -> None:
    """A heal that fails is journalled, raised with the fault's name, and only after all others were healed."""
    stage.world.broken["start"] = FaultError("no such container")
    with pytest.raises(FaultError, match="dead could not be healed: no such container"):
        await stage.play(KILL, LATENCY, PAUSE)
    assert stage.journal.states("dead")[-1] == "failed"
    assert [stage.journal.states(name)[-1] for name in ("slow", "frozen")] == ["healed", "healed"]


async def test_broker_that_does_not_come_back(stage: Stage) -> None:
    """A started broker that never registers is a failed heal after the deadline, with a message."""
    start = stage.world.start

    async def started_but_dying(broker: object) -> None:
        await start(broker)  # type: ignore[arg-type]
        stage.world.states[broker] = "exited"  # type: ignore[index]

    stage.world.start = started_but_dying  # type: ignore[method-assign]
    with pytest.raises(FaultError, match=r"node 1 did not come back into service: after 60 s still: the node's"):
        await stage.play(KILL)


@pytest.mark.parametrize("fault", LASTING)
@pytest.mark.parametrize("at_ms", [500, 1001, 2001, 3001, 5500, 8001, 8500])
async def test_cancelled_in_any_state(stage: Stage, fault: str, at_ms: int) -> None:
    """Cancelled before, during injection, hold or heal: every intended fault is healed."""
    await stage.interrupt(at_ms, fault)
    assert stage.world.healthy()
    for name in {line.fault for line in stage.journal.lines}:
        assert stage.journal.states(name)[-1] == "healed"


async def test_cancelled_twice(stage: Stage) -> None:
    """A second Ctrl-C while the undo is under way doesn't stop the undo."""
    playing_start = stage.world.start

    async def slow_start(broker: object) -> None:
        await stage.clock.sleep_until_us(stage.clock.now_us() + 1_000_000)
        await playing_start(broker)  # type: ignore[arg-type]

    import asyncio  # noqa: PLC0415 -- here it reads with its use

    stage.world.start = slow_start  # type: ignore[method-assign]
    playing = asyncio.create_task(stage.play(KILL))
    await stage.clock.sleep_until_us(4_000_000)
    playing.cancel()
    await stage.clock.sleep_until_us(4_500_000)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert stage.world.healthy()


async def test_undo_never_overtakes_the_harm(stage: Stage) -> None:
    """Cancelled while the kill is on its way to the engine: the kill ends first, then the start."""
    kill = stage.world.kill

    async def slow_kill(broker: object) -> None:
        await stage.clock.sleep_until_us(stage.clock.now_us() + 1_000_000)
        await kill(broker)  # type: ignore[arg-type]

    stage.world.kill = slow_kill  # type: ignore[method-assign]
    await stage.interrupt(2_500, KILL)
    assert [verb for _, verb, _ in stage.world.calls if verb in ("kill", "start")] == ["kill", "start"]
    assert stage.world.healthy()


async def test_interrupt_does_not_wait_for_the_cluster(stage: Stage) -> None:
    """An interrupted fault is undone at once, and the journal says that its effect was not observed."""
    await stage.interrupt(4_000, KILL)
    assert stage.clock.now_us() == 4_000_000
    assert "interrupt" in str(stage.journal.lines[-1].why)


async def test_full_disk(stage: Stage) -> None:
    """A journal that can't be written during the heal raises, and the fault is healed."""
    stage.journal.full_at = frozenset({"healing"})
    with pytest.raises(OSError, match="No space left"):
        await stage.play(KILL)
    assert stage.world.healthy()


@pytest.mark.parametrize("state", ["healing", "failed"])
async def test_a_full_disk_hides_no_unhealed_fault(stage: Stage, state: str) -> None:
    """The error names both the fault that could not be healed and the full disk."""
    stage.journal.full_at = frozenset({state})
    stage.world.broken["start"] = FaultError("no such node")
    with pytest.raises(FaultError, match=r"dead could not be healed: no such node; .* No space left") as raised:
        await stage.play(KILL)
    assert isinstance(raised.value.__cause__, OSError)


async def test_full_disk_before_harm(stage: Stage) -> None:
    """If the intent can't be written, nothing is touched."""
    stage.journal.full_at = frozenset({"intended"})
    with pytest.raises(OSError, match="No space left"):
        await stage.play(KILL)
    assert stage.world.called("kill") == []


async def test_without_for_nothing_is_left_to_undo(stage: Stage) -> None:
    """A move that stays carries its undo until it is done, and then none; its last line closes it."""
    before = stage.world.replicas()
    await stage.play(STAY)
    assert stage.line("stay", "intended").undo.verb == "restore_assignment"
    assert stage.line("stay", "injected").undo.verb == "nothing"
    assert stage.journal.states("stay") == ["intended", "injected", "witnessed", "healed"]
    assert stage.world.replicas() != before


async def test_no_faults(stage: Stage) -> None:
    """A plan without faults is over at once and leaves an empty journal."""
    await stage.play()
    assert stage.journal.lines == []
    assert stage.clock.now_us() == 0


SLOW_RACK = "{id: far, at: 1s, for: 8s, kind: slow_rack, rack: b, delay: 50ms}"


@pytest.mark.parametrize("fault", [LATENCY, SLOW_RACK, CUT])
async def test_a_heal_without_effect_is_not_journalled_as_healed(stage: Stage, fault: str) -> None:
    """A toxic that is still there after its removal: the heal fails and names the toxic."""

    async def ignored(_proxy: str, _name: str) -> None:
        """Accept the request and change nothing."""

    stage.world.remove_toxic = ignored  # type: ignore[method-assign]
    with pytest.raises(FaultError, match=r"could not be healed: .*after \d+ s still: "):
        await stage.play(fault)
    name = stage.journal.lines[0].fault
    assert stage.journal.states(name)[-1] == "failed"
    assert f"has the toxic {name}:" in str(stage.journal.lines[-1].why)


VERBS = {
    LATENCY: "remove_toxics",
    REFUSE: "enable_proxies",
    KILL: "start",
    PAUSE: "resume",
    ROTATE: "restore_assignment",
    "{id: few, at: 1s, for: 8s, kind: config, topic: orders, set: {min.insync.replicas: 1}}": "restore_settings",
    "{id: tight, at: 1s, for: 8s, kind: cpu_quota, broker: 2, cpus: 0.2}": "all_of",
}


@pytest.mark.parametrize(("fault", "verb"), VERBS.items())
async def test_every_heal_is_verified(stage: Stage, monkeypatch: pytest.MonkeyPatch, fault: str, verb: str) -> None:
    """Each undo is read back by the shared verifier between ``healing`` and ``healed``."""
    verified: list[tuple[str, str]] = []

    async def verify(undo: Undo, _world: object, _clock: object) -> None:
        verified.append((undo.verb, stage.journal.lines[-1].state))

    monkeypatch.setattr(executor, "verify_undo", verify)
    await stage.play(fault)
    assert verified == [(verb, "healing")]
    assert stage.journal.lines[-1].state == "healed"
