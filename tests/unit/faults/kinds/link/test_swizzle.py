"""Swizzle: racks are cut off one by one and healed in another order; toxics are read back each second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.runtime.undo import perform
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


SWIZZLE = "{id: swirl, at: 1s, for: 9s, kind: swizzle, period: 1s}"


def order_of(stage: Stage, verb: str) -> list[tuple[int, str]]:
    """Return when each rack's first toxic was changed, in s, and the rack."""
    seen: dict[str, int] = {}
    for t_us, name, args in stage.world.calls:
        if name == verb:
            seen.setdefault(args[1].split(":")[1], t_us // 1_000_000)  # type: ignore[index]
    return [(t_s, rack) for rack, t_s in seen.items()]


async def test_one_by_one_and_in_another_order(stage: Stage) -> None:
    """Cuts and heals are a second apart, the last heal is at the end of `for`, and both orders are the drawn ones."""
    await stage.play(SWIZZLE)
    roles = stage.line("swirl", "intended").targets.roles
    assert [*zip((1, 2, 3), roles["cut"], strict=True)] == order_of(stage, "add_toxic")
    assert [*zip((8, 9, 10), roles["heal"], strict=True)] == order_of(stage, "remove_toxic")
    assert roles["cut"] != roles["heal"]
    assert stage.all_ok("swirl")
    assert stage.world.healthy()


async def test_silence_once_all_are_cut(stage: Stage) -> None:
    """Six client links cross the racks: none answers while all racks are cut, and all answer afterwards."""
    await stage.play(SWIZZLE)
    assert [(0, 6)] == [(w.observed, w.n) for w in stage.journal.witnesses("swirl") if w.unit == "answers"]
    assert "healed" == stage.journal.states("swirl")[-1]


@pytest.mark.parametrize("seed", range(5))
async def test_the_orders_always_differ(stage: Stage, seed: int) -> None:
    """This holds for every draw, also with two racks."""
    await stage.play(SWIZZLE.replace("kind: swizzle", "kind: swizzle, among: [c, a]"), seed=seed)
    roles = stage.line("swirl", "intended").targets.roles
    assert sorted(roles["cut"]) == sorted(roles["heal"]) == ["a", "c"]
    assert roles["cut"] == roles["heal"][::-1]


async def test_toxic_deleted_from_outside(stage: Stage) -> None:
    """A rack that is no longer cut off fails the read-back of the next second."""
    await stage.play_with(4_300, stage.world.proxies["client_a-k2"].clear, SWIZZLE)
    assert not stage.all_ok("swirl")
    assert stage.world.healthy()


async def test_toxics_without_effect(stage: Stage) -> None:
    """Toxics that exist while requests are answered fail the probe."""
    stage.world._silent = lambda _link: False  # type: ignore[method-assign]
    await stage.play(SWIZZLE)
    assert ["answers"] == [witness.unit for witness in stage.journal.witnesses("swirl") if not witness.ok]


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    """A rehearsal adds no toxic, and no witness passes."""
    await stage.rehearse(SWIZZLE)
    assert [] == stage.world.called("add_toxic")
    assert not any(witness.ok for witness in stage.journal.witnesses("swirl"))


@pytest.mark.parametrize("at_ms", [1_001, 1_500, 2_001, 5_000, 8_500, 9_001, 10_001])
async def test_interrupted(stage: Stage, at_ms: int) -> None:
    """An interruption while racks are cut, are all cut, or are healed leaves no toxic and adds none later."""
    await stage.interrupt(at_ms, SWIZZLE)
    assert stage.world.healthy()
    await stage.clock.sleep_until_us(30_000_000)
    assert stage.world.healthy()


async def test_a_schedule_that_fails(stage: Stage) -> None:
    """Toxiproxy refuses the second rack's toxics: the fault fails, and existing toxics are removed."""

    def refuse() -> None:
        stage.world.broken["add_toxic"] = OSError("Toxiproxy is gone")

    await stage.play_with(1_500, refuse, SWIZZLE)
    assert "Toxiproxy is gone" in str(stage.line("swirl", "failed").why)
    assert stage.world.healthy()


async def test_healed_by_another_process(stage: Stage) -> None:
    """The undo names every toxic that the fault may add, and a second undo changes nothing."""
    seen: list[object] = []
    await stage.play_with(5_000, lambda: seen.extend(stage.world.proxies["client_a-k2"]), SWIZZLE)
    undo = stage.line("swirl", "intended").undo
    assert {name for proxy, name in undo.args["toxics"] if proxy == "client_a-k2"} == {*seen}
    await perform(undo, stage.world, stage.clock)
    assert stage.world.healthy()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (SWIZZLE.replace("for: 9s", "for: 4s"), "takes at least 6s"),
        (SWIZZLE.replace("period: 1s", "among: [b]"), "needs two or more different racks"),
        (SWIZZLE.replace("period: 1s", "among: [a, a]"), "needs two or more different racks"),
        (SWIZZLE.replace("period: 1s", "among: [a, z]"), "the cluster has no rack `z`"),
        (SWIZZLE.replace("for: 9s, ", ""), "a swizzle needs `for`"),
    ],
)
def test_refused_by_the_check(fault: str, message: str) -> None:
    """Durations too short for both orders, and swizzles without any order, are refused."""
    with pytest.raises(PlanError, match=message):
        timeline_of(fault)
