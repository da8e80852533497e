"""Refuse: proxies are disabled and connections refused, and connections are accepted after the heal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


LINK = '{id: shut, at: 1s, for: 6s, kind: refuse, link: "client(a) -> broker"}'
RACKS = '{id: shut, at: 1s, for: 6s, kind: refuse, link: "rack(a) ARROW rack(b)"}'


async def test_refused_and_read_back(stage: Stage) -> None:
    """Two probes are refused on all three links, the proxies are read back each second, and all are enabled at
    the end.
    """
    await stage.play(LINK)
    proxies = ["client_a-k1", "client_a-k2", "client_a-k3"]
    assert stage.world.called("disable") == stage.world.called("enable") == proxies
    witnesses = stage.journal.witnesses("shut")
    assert [(witness.observed, witness.asked) for witness in witnesses if witness.unit == "links"] == [(3, 3), (3, 3)]
    assert 6 <= sum(witness.unit == "proxies" for witness in witnesses) <= 9
    assert stage.all_ok("shut")
    assert stage.line("shut", "intended").undo.as_json() == {"verb": "enable_proxies", "args": {"proxies": proxies}}


@pytest.mark.parametrize(
    ("arrow", "shut"),
    [
        ("->", ("controller_a-k2", "replication_a-k2")),
        ("<->", ("controller_a-k2", "controller_b-k1", "replication_a-k2", "replication_b-k1")),
    ],
)
async def test_one_way_refuses_the_connections_of_the_source(stage: Stage, arrow: str, shut: tuple[str, ...]) -> None:
    """One way between racks disables the links dialled by the source, not those dialled by the other side."""
    await stage.play(RACKS.replace("ARROW", arrow))
    assert stage.line("shut", "injected").targets.links == shut
    assert stage.all_ok("shut")
    assert [witness.n for witness in stage.journal.witnesses("shut") if witness.unit == "links"] == [0, 0]


async def test_enabled_from_outside(stage: Stage) -> None:
    """The read-back fails and names the proxy, and the last probe connects and fails."""
    await stage.play_with(3_300, lambda: stage.world.shut.discard("client_a-k2"), LINK)
    failed = [witness for witness in stage.journal.witnesses("shut") if not witness.ok]
    assert {witness.unit for witness in failed} == {"proxies", "links"}
    assert "client_a-k2 is enabled" in failed[0].what


async def test_silence_is_no_refusal(stage: Stage) -> None:
    """A link without any answer is another fault than a refusal."""

    async def swallowed(proxy: str) -> None:
        stage.world.silent_links.add(proxy)

    async def opened(proxy: str) -> None:
        stage.world.silent_links.discard(proxy)

    stage.world.disable = swallowed  # type: ignore[method-assign]
    stage.world.enable = opened  # type: ignore[method-assign]
    await stage.play(LINK)
    asked = [witness for witness in stage.journal.witnesses("shut") if witness.unit == "links"]
    assert [witness.ok for witness in asked] == [False, False]


async def test_disabled_already(stage: Stage) -> None:
    """A proxy that is already disabled fails the step without a change, and stays disabled."""
    stage.world.shut.add("client_a-k3")
    await stage.play(LINK)
    assert "client_a-k3 is disabled already" in str(stage.line("shut", "failed").why)
    assert stage.world.called("disable") == stage.world.called("enable") == []


async def test_a_proxy_that_stays_disabled(stage: Stage) -> None:
    """Every proxy is enabled again if possible, and the failed heal is in the journal."""
    stage.world.broken["enable"] = FaultError("toxiproxy is gone")
    with pytest.raises(FaultError, match=r"shut could not be healed: (toxiproxy is gone; ){2}toxiproxy is gone"):
        await stage.play(LINK)
    assert len(stage.world.called("enable")) == 3


@pytest.mark.parametrize("at_ms", [1_050, 1_500, 4_000, 7_001])
async def test_cancelled_in_flight(stage: Stage, at_ms: int) -> None:
    """An interruption during injection, hold or heal leaves no proxy disabled."""
    disable = stage.world.disable

    async def slow(proxy: str) -> None:
        await stage.clock.sleep_until_us(stage.clock.now_us() + 300_000)
        await disable(proxy)

    stage.world.disable = slow  # type: ignore[method-assign]
    await stage.interrupt(at_ms, LINK)
    assert stage.world.healthy()
    assert stage.journal.states("shut")[-1] == "healed"


async def test_a_cut_that_outlasts_the_refusal(stage: Stage) -> None:
    """The cut starts on disabled proxies and continues: the refusal's heal doesn't wait for the cut."""
    await stage.play(LINK, '{id: gone, at: 4s, for: 8s, kind: cut, link: "client(a) -> broker"}')
    assert stage.all_ok("shut")
    assert stage.all_ok("gone")
    assert stage.line("shut", "healed").t_us < 8_000_000
    assert stage.world.healthy()
