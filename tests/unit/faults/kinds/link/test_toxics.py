"""Rules for every kind that adds one toxic to links: it is measured, a missing effect is detected, and it heals."""

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
    parameters = SAID[kind][0]
    return f'{{id: it, at: 1s, for: 6s, kind: {kind}, link: "{link}"{", " + parameters if parameters else ""}}}'


def measured(stage: Stage) -> list[bool]:
    """Return whether each measurement passed, without the read-backs."""
    return [witness.ok for witness in stage.journal.witnesses("it") if witness.unit != "toxics"]


@EVERY
async def test_the_toxic_is_measured_at_both_ends_and_removed(stage: Stage, kind: str) -> None:
    """The toxic has Toxiproxy's attributes, two measurements pass with read-backs in between, and the heal succeeds."""
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
    """`<->` adds a toxic to both streams of all three links, and all measurements pass."""
    await stage.play(fault(kind, "client(a) <-> broker"))
    assert len(stage.world.called("add_toxic")) == 6
    assert stage.all_ok("it")
    assert measured(stage) == [True, True]


@EVERY
async def test_a_rehearsal_fails_its_witnesses(stage: Stage, kind: str) -> None:
    """No measurement and no read-back passes, and no probe connection stays open."""
    await stage.rehearse(fault(kind))
    assert stage.world.called("add_toxic") == []
    assert not any(witness.ok for witness in stage.journal.witnesses("it"))
    assert len(stage.world.called("dial")) == stage.world.hung_up


@EVERY
async def test_a_toxic_without_effect(stage: Stage, kind: str) -> None:
    """A toxic that exists without effect is detected by the probe connections."""
    real = stage.world.add_toxic

    async def tame(proxy: str, toxic: Toxic) -> None:
        await real(proxy, Toxic(toxic.name, "noop", toxic.stream, toxic.attributes | {"rate": 1}))

    stage.world.add_toxic = tame  # type: ignore[method-assign]
    await stage.play(fault(kind))
    assert measured(stage)
    assert not any(measured(stage))


@EVERY
async def test_a_toxic_deleted_from_outside(stage: Stage, kind: str) -> None:
    """The read-back fails and names the proxy, and the last measurement fails."""
    await stage.play_with(3_300, stage.world.proxies["client_a-k2"].clear, fault(kind))
    failed = [witness for witness in stage.journal.witnesses("it") if not witness.ok]
    assert "client_a-k2" in failed[0].what
    assert measured(stage) == [True, False]


@EVERY
async def test_one_link_of_three_without_the_toxic(stage: Stage, kind: str) -> None:
    """Two affected links do not hide the third."""
    await stage.play_with(3_300, stage.world.proxies["client_a-k3"].clear, fault(kind, "client(a) -> broker"))
    assert measured(stage) == [True, False]


@EVERY
async def test_a_heal_that_fails(stage: Stage, kind: str) -> None:
    """A toxic that can't be removed makes the heal fail, and the run reports it."""
    stage.world.broken["remove_toxic"] = FaultError("toxiproxy is gone")
    with pytest.raises(FaultError, match="it could not be healed: toxiproxy is gone"):
        await stage.play(fault(kind))
    assert stage.journal.states("it")[-1] == "failed"


@EVERY
async def test_a_heal_without_effect(stage: Stage, kind: str) -> None:
    """The toxic is removed but the link does not answer: the heal fails and names the link."""
    remove = stage.world.remove_toxic

    async def in_vain(proxy: str, name: str) -> None:
        await remove(proxy, name)
        stage.world.silent_links.add(proxy)

    stage.world.remove_toxic = in_vain  # type: ignore[method-assign]
    with pytest.raises(FaultError, match="client_a-k2"):
        await stage.play(fault(kind))
    assert stage.journal.states("it")[-1] == "failed"


@EVERY
async def test_links_that_cannot_be_dialled(stage: Stage, kind: str) -> None:
    """The toxics no broker, and it says so."""
    await stage.play(fault(kind, "replication(a) -> broker"))
    assert stage.all_ok("it")
    assert any("no broker" in witness.what for witness in stage.journal.witnesses("it"))


@EVERY
async def test_a_link_whose_broker_dies_is_left_out(stage: Stage, kind: str) -> None:
    """A kill of one link's broker does not fail the fault; the measurements of the other links decide."""
    await stage.play(fault(kind, "client(a) -> broker"), "{id: dead, at: 3s, for: 8s, kind: kill, broker: 2}")
    assert stage.all_ok("it")
    assert stage.journal.states("it")[-1] == "healed"


@EVERY
@pytest.mark.parametrize("at_ms", [1_005, 1_500, 4_000, 6_999])
async def test_cancelled_in_flight(stage: Stage, kind: str, at_ms: int) -> None:
    """An interruption during injection, hold or heal leaves no toxic."""
    add = stage.world.add_toxic

    async def slow(proxy: str, toxic: Toxic) -> None:
        await stage.clock.sleep_until_us(stage.clock.now_us() + 100_000)
        await add(proxy, toxic)

    stage.world.add_toxic = slow  # type: ignore[method-assign]
    await stage.interrupt(at_ms, fault(kind, "client(a) <-> broker"))
    assert stage.world.healthy()


@EVERY
def test_for_is_required(kind: str) -> None:
    """Toxics do not end by themselves."""
    with pytest.raises(PlanError, match=f"a {kind} needs `for`"):
        timeline_of(fault(kind).replace("for: 6s, ", ""))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("kind: bandwidth, rate: 0kB/s", "`rate` must be at least"),
        ("kind: bandwidth, rate: 1500B/s", "`rate` is not valid"),
        ("kind: bandwidth, rate: 100", "is not a bandwidth: give bytes per second"),
        ("kind: blackhole, timeout: 6s", "fault ends before a connection is closed"),
        ("kind: reset, timeout: 6s", "fault ends before a connection can be reset"),
        ("kind: slow_close, delay: 6s", "fault ends before a delayed close"),
        ("kind: slice, average_size: 1", "`average_size` must be at least"),
        ("kind: limit_data, bytes: 0", "`bytes` must be at least"),
    ],
)
def test_impossible_parameters(words: str, message: str) -> None:
    """Values that are impossible or can't be measured are refused before anything starts."""
    with pytest.raises(PlanError, match=message):
        timeline_of(f'{{at: 1s, for: 6s, link: "client(a) -> broker", {words}}}')


async def test_two_limits_on_one_link(stage: Stage) -> None:
    """Limits that don't hide each other have a passing witness each."""
    await stage.play(fault("slice"), fault("slow_close").replace("id: it", "id: other"))
    assert stage.all_ok("it")
    assert stage.all_ok("other")


def test_two_rates_on_one_link_conflict() -> None:
    """The lower rate would hide the other."""
    with pytest.raises(PlanError, match="conflicts with `it`"):
        timeline_of(fault("bandwidth"), fault("stall").replace("id: it", "id: other"))
