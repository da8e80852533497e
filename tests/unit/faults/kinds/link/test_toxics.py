"""What holds for every kind that is one toxic on links: it shows, it can't be faked, and it heals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError, PlanError
from aftershock.faults.targets.values import Toxic
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


SAID = {
    "bandwidth": ("rate: 10kB/s", Toxic("", "bandwidth", "upstream", {"rate": 10})),
    "stall": ("", Toxic("", "bandwidth", "upstream", {"rate": 0})),
    "blackhole": ("timeout: 1s", Toxic("", "timeout", "upstream", {"timeout": 1000})),
    "reset": ("timeout: 300ms", Toxic("", "reset_peer", "upstream", {"timeout": 300})),
    "slice": (
        "average_size: 100, delay: 5ms",
        Toxic("", "slicer", "upstream", {"average_size": 100, "size_variation": 0, "delay": 5000}),
    ),
    "limit_data": ("bytes: 5kB", Toxic("", "limit_data", "upstream", {"bytes": 5000})),
    "slow_close": ("delay: 400ms", Toxic("", "slow_close", "upstream", {"delay": 400})),
}
EVERY = pytest.mark.parametrize("kind", SAID)


def fault(kind: str, link: str = "client(a) -> broker(2)") -> str:
    said = SAID[kind][0]
    return f'{{id: it, at: 1s, for: 6s, kind: {kind}, link: "{link}"{", " + said if said else ""}}}'


def measured(stage: Stage) -> list[bool]:
    """Whether each measuring vouched; the read-backs left out."""
    return [witness.ok for witness in stage.journal.witnesses("it") if witness.unit != "toxics"]


@EVERY
async def test_the_toxic_shows_at_both_ends_and_is_gone_after(stage: Stage, kind: str) -> None:
    """The toxic as Toxiproxy wants it, two measurings that vouch, read-backs in between, and all healed."""
    seen: list[Toxic] = []
    await stage.play_with(3_300, lambda: seen.extend(stage.world.proxies["client_a-k2"].values()), fault(kind))
    assert [SAID[kind][1]] == [Toxic("", each.type, each.stream, each.attributes) for each in seen]
    assert measured(stage) == [True, True]
    assert sum(witness.unit == "toxics" for witness in stage.journal.witnesses("it")) >= 5
    assert stage.all_ok("it")
    assert stage.journal.states("it") == ["intended", "injected", "witnessed", "healing", "healed"]
    assert stage.world.healthy()


@EVERY
async def test_both_streams_of_every_link(stage: Stage, kind: str) -> None:
    """`<->` puts a toxic on both streams of all three links, and all of them vouch."""
    await stage.play(fault(kind, "client(a) <-> broker"))
    assert len(stage.world.called("add_toxic")) == 6
    assert stage.all_ok("it")
    assert measured(stage) == [True, True]


@EVERY
async def test_a_rehearsal_vouches_for_nothing(stage: Stage, kind: str) -> None:
    """Nothing was done, so no measuring and no read-back may say that it was; and nobody is left on the line."""
    await stage.rehearse(fault(kind))
    assert stage.world.called("add_toxic") == []
    assert not any(witness.ok for witness in stage.journal.witnesses("it"))
    assert len(stage.world.called("dial")) == stage.world.hung_up


@EVERY
async def test_a_toxic_without_effect(stage: Stage, kind: str) -> None:
    """A toxic that is there but does nothing is found out by what becomes of our connections."""
    real = stage.world.add_toxic

    async def tame(proxy: str, toxic: Toxic) -> None:
        await real(proxy, Toxic(toxic.name, "noop", toxic.stream, toxic.attributes | {"rate": 1}))

    stage.world.add_toxic = tame  # type: ignore[method-assign]
    await stage.play(fault(kind))
    assert measured(stage)
    assert not any(measured(stage))


@EVERY
async def test_a_toxic_deleted_by_somebody_else(stage: Stage, kind: str) -> None:
    """The read-back names the proxy, and the last measuring vouches no more."""
    await stage.play_with(3_300, stage.world.proxies["client_a-k2"].clear, fault(kind))
    failed = [witness for witness in stage.journal.witnesses("it") if not witness.ok]
    assert "client_a-k2" in failed[0].what
    assert measured(stage) == [True, False]


@EVERY
async def test_one_link_of_three_without_it(stage: Stage, kind: str) -> None:
    """Two that are hit don't vouch for the third."""
    await stage.play_with(3_300, stage.world.proxies["client_a-k3"].clear, fault(kind, "client(a) -> broker"))
    assert measured(stage) == [True, False]


@EVERY
async def test_a_heal_that_fails(stage: Stage, kind: str) -> None:
    """A toxic that can't be removed is no healed fault: the run is told so."""
    stage.world.broken["remove_toxic"] = FaultError("toxiproxy is gone")
    with pytest.raises(FaultError, match="it could not be healed: toxiproxy is gone"):
        await stage.play(fault(kind))
    assert stage.journal.states("it")[-1] == "failed"


@EVERY
async def test_a_heal_that_does_not_take(stage: Stage, kind: str) -> None:
    """The toxic is removed, and the link says nothing all the same: failed, with the link's name."""
    remove = stage.world.remove_toxic

    async def in_vain(proxy: str, name: str) -> None:
        await remove(proxy, name)
        stage.world.silent_links.add(proxy)

    stage.world.remove_toxic = in_vain  # type: ignore[method-assign]
    with pytest.raises(FaultError, match="client_a-k2"):
        await stage.play(fault(kind))
    assert stage.journal.states("it")[-1] == "failed"


@EVERY
async def test_links_that_nobody_can_dial(stage: Stage, kind: str) -> None:
    """Then the toxics read back are the witness, and it says so."""
    await stage.play(fault(kind, "replication(a) -> broker"))
    assert stage.all_ok("it")
    assert any("read back are the witness" in witness.what for witness in stage.journal.witnesses("it"))


@EVERY
async def test_a_link_whose_broker_dies_is_left_out(stage: Stage, kind: str) -> None:
    """What a kill does to one of its links is not the fault's affair; the others go on to vouch."""
    await stage.play(fault(kind, "client(a) -> broker"), "{id: dead, at: 3s, for: 8s, kind: kill, broker: 2}")
    assert stage.all_ok("it")
    assert stage.journal.states("it")[-1] == "healed"


@EVERY
@pytest.mark.parametrize("at_ms", [1_005, 1_500, 4_000, 6_999])
async def test_cancelled_in_flight(stage: Stage, kind: str, at_ms: int) -> None:
    """Half put on, in force or about to heal: whenever it is interrupted, no toxic stays."""
    add = stage.world.add_toxic

    async def slow(proxy: str, toxic: Toxic) -> None:
        await stage.clock.sleep_until_us(stage.clock.now_us() + 100_000)
        await add(proxy, toxic)

    stage.world.add_toxic = slow  # type: ignore[method-assign]
    await stage.interrupt(at_ms, fault(kind, "client(a) <-> broker"))
    assert stage.world.healthy()


@EVERY
def test_for_is_needed(kind: str) -> None:
    """None of them ends by itself."""
    with pytest.raises(PlanError, match=f"a {kind} needs `for`"):
        timeline_of(fault(kind).replace("for: 6s, ", ""))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("kind: bandwidth, rate: 0kB/s", "`rate` must be at least"),
        ("kind: bandwidth, rate: 1500B/s", "`rate` is not valid"),
        ("kind: bandwidth, rate: 100", "is not a bandwidth: give bytes per second"),
        ("kind: blackhole, timeout: 6s", "fault ends before a connection can be closed"),
        ("kind: reset, timeout: 6s", "fault ends before a connection can be reset"),
        ("kind: slow_close, delay: 6s", "fault ends before a close"),
        ("kind: slice, average_size: 1", "`average_size` must be at least"),
        ("kind: limit_data, bytes: 0", "`bytes` must be at least"),
    ],
)
def test_impossible_parameters(words: str, said: str) -> None:
    """What could not be, or never be seen, is refused before anything starts."""
    with pytest.raises(PlanError, match=said):
        timeline_of(f'{{at: 1s, for: 6s, link: "client(a) -> broker", {words}}}')


async def test_two_limits_on_one_link(stage: Stage) -> None:
    """Limits of sorts that don't hide each other vouch side by side."""
    await stage.play(fault("slice"), fault("slow_close").replace("id: it", "id: other"))
    assert stage.all_ok("it")
    assert stage.all_ok("other")


def test_two_rates_on_one_link() -> None:
    """The lower one would hide the other: refused."""
    with pytest.raises(PlanError, match="conflicts with `it`"):
        timeline_of(fault("bandwidth"), fault("stall").replace("id: it", "id: other"))
