"""Latency: the right streams, a drawn schedule, and a witness that measures the delay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError
from aftershock.faults.targets.values import Toxic

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


ONE_WAY = '{id: slow, at: 0s, for: 8s, kind: latency, link: "client(a) -> broker(2)", delay: 50ms}'
BOTH = '{id: slow, at: 0s, for: 8s, kind: latency, link: "client(a) <-> broker", delay: 50ms}'
JITTER = '{id: slow, at: 0s, for: 8s, kind: latency, link: "client(a) -> broker", delay: 50ms, jitter: 20ms, every: 1s}'
INNER = '{id: slow, at: 0s, for: 8s, kind: latency, link: "replication(a) -> broker", delay: 50ms}'


def rises(stage: Stage) -> list[float]:
    return [witness.observed for witness in stage.journal.witnesses("slow") if witness.unit == "ms"]


async def test_probed_at_both_ends(stage: Stage) -> None:
    """In one direction: two probes measure the 50 ms, the toxic is read back each second and removed at the end."""
    await stage.play(ONE_WAY)
    assert rises(stage) == [50.0, 50.0]
    read_backs = [witness for witness in stage.journal.witnesses("slow") if witness.unit == "toxics"]
    assert 8 <= len(read_backs) <= 11
    assert stage.all_ok("slow")
    assert stage.world.called("remove_toxic") == [("client_a-k2", "slow:client_a-k2:upstream")]


async def test_both_streams_add_up(stage: Stage) -> None:
    """`<->` adds a toxic to both streams of every link, and the witness expects their sum."""
    await stage.play(BOTH)
    assert len(stage.world.called("add_toxic")) == 6
    asked = {witness.asked for witness in stage.journal.witnesses("slow") if witness.unit == "ms"}
    assert asked == {100}
    assert stage.all_ok("slow")
    assert stage.line("slow", "injected").targets.links == ("client_a-k1", "client_a-k2", "client_a-k3")


async def test_jitter_is_the_compilers_schedule(stage: Stage) -> None:
    """Every second, each link gets the next delay of the timeline."""
    from aftershock.tests.unit.faults.conftest import timeline_of  # noqa: PLC0415 -- a helper beside the fixture

    drawn = timeline_of(JITTER).steps[0].draws["delay_ms"]
    await stage.play(JITTER)
    updates = [args for args in stage.world.called("update_toxic") if isinstance(args, tuple)]
    assert [delay for proxy, delay in updates if proxy == "client_a-k1"] == drawn[1:]
    assert len(drawn) == 8
    assert all(30 <= delay <= 70 for delay in drawn)
    assert stage.all_ok("slow")


async def test_probes_cut_short_by_an_update_do_not_count(stage: Stage) -> None:
    """The delay changes about as often as a probe takes, so most probes are cut short; the complete probes decide."""
    hasty = "delay: 80ms, jitter: 5ms, every: 100ms"
    await stage.play(JITTER.replace("delay: 50ms, jitter: 20ms, every: 1s", hasty))
    assert any(stage.world.updated_us.values())
    assert stage.all_ok("slow")


@pytest.mark.parametrize("fault", [ONE_WAY, JITTER.replace("broker", "broker(2)")])
async def test_toxic_deleted_from_outside(stage: Stage, fault: str) -> None:
    """A toxic that is deleted during the fault fails the witness, which names the proxy."""
    await stage.play_with(3_300, stage.world.proxies["client_a-k2"].clear, fault)
    failed = [witness for witness in stage.journal.witnesses("slow") if not witness.ok]
    assert failed
    assert "client_a-k2" in failed[0].what
    assert stage.journal.states("slow")[-1] == "healed"


async def test_toxic_without_effect(stage: Stage) -> None:
    """A toxic that exists without slowing requests fails the probe."""
    stage.world._trip_ms = lambda _link: 1.0  # type: ignore[method-assign, assignment]
    await stage.play(ONE_WAY)
    assert [witness.ok for witness in stage.journal.witnesses("slow") if witness.unit == "ms"] == [False, False]


async def test_a_toxic_with_lowered_latency(stage: Stage) -> None:
    """The read-back detects that the toxic's latency was lowered."""

    def weaken() -> None:
        proxy = stage.world.proxies["client_a-k2"]
        for name, toxic in proxy.items():
            proxy[name] = Toxic(name, toxic.type, toxic.stream, {"latency": 1})

    await stage.play_with(3_300, weaken, ONE_WAY)
    assert not stage.all_ok("slow")


async def test_delays_of_other_faults_do_not_count(stage: Stage) -> None:
    """A probe slowed only by another fault's toxic is no witness for this fault."""
    stage.world.proxies["client_a-k2"]["other"] = Toxic("other", "latency", "upstream", {"latency": 0})

    def other_only() -> None:
        proxy = stage.world.proxies["client_a-k2"]
        proxy["other"] = Toxic("other", "latency", "upstream", {"latency": 90})
        ours = proxy["slow:client_a-k2:upstream"]
        stage.world._trip_ms = lambda _link: 91.0  # type: ignore[method-assign, assignment]
        proxy[ours.name] = ours

    await stage.play_with(3_300, other_only, ONE_WAY)
    last = [witness for witness in stage.journal.witnesses("slow") if witness.unit == "ms"][-1]
    assert not last.ok
    assert last.observed == 0.0


async def test_links_between_brokers_are_witnessed_by_their_toxics(stage: Stage) -> None:
    """Links between brokers can't be probed, and the witness says so."""
    await stage.play(INNER)
    assert stage.all_ok("slow")
    assert stage.line("slow", "injected").targets.links == ("replication_a-k2", "replication_a-k3")
    probes = [witness for witness in stage.journal.witnesses("slow") if witness.unit == "probes"]
    assert "can't send requests over the fault's links" in probes[0].what


async def test_link_whose_broker_dies(stage: Stage) -> None:
    """A kill during a latency makes a link unmeasurable, which does not fail the latency."""
    await stage.play(BOTH, "{id: dead, at: 5s, for: 6s, kind: kill, broker: 2}")
    assert stage.all_ok("slow")


async def test_silent_link_counts_by_its_wait(stage: Stage) -> None:
    """A probe without an answer is as slow as its wait: 2 s with 50 ms required."""
    await stage.play_with(3_300, lambda: stage.world.silent_links.add("client_a-k2"), ONE_WAY)
    assert rises(stage)[-1] > 1_000
    assert stage.all_ok("slow")


async def test_a_partial_injection_is_undone(stage: Stage) -> None:
    """The second of six toxics fails: added toxics are removed, and removal of the others is requested."""
    add, count = stage.world.add_toxic, 0

    async def failing(proxy: str, toxic: Toxic) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise FaultError("toxiproxy said 500")
        await add(proxy, toxic)

    stage.world.add_toxic = failing  # type: ignore[method-assign]
    await stage.play(BOTH)
    assert stage.journal.states("slow") == ["intended", "failed", "healing", "healed"]
    assert stage.world.healthy()


async def test_any_broker_is_the_drawn_one(stage: Stage) -> None:
    """`any broker except` uses the compiler's number to choose among the sorted ids; the choice is recorded."""
    await stage.play(
        '{id: slow, at: 0s, for: 3s, kind: latency, delay: 5ms, link: "client(a) -> broker(any broker except 1)"}'
    )
    broker = stage.line("slow", "intended").targets.roles["broker"]
    assert broker in (2, 3)
    assert stage.line("slow", "intended").targets.links == (f"client_a-k{broker}",)
