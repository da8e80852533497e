"""Flap: proxies are disabled and enabled on the compiler's schedule, witnessed in each phase, and enabled at
the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError, PlanError
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


FLAP = '{id: flaps, at: 1s, for: 7s, kind: flap, link: "client(a) -> broker", down: 1s, up: 2s}'
PROXIES = ["client_a-k1", "client_a-k2", "client_a-k3"]


async def test_proxies_are_disabled_and_enabled_in_turns(stage: Stage) -> None:
    """Proxies are disabled at 1, 4 and 7 s and enabled at 3 and 6 s; each round has a witness of both phases."""
    await stage.play(FLAP)
    shut_us = [at_us for at_us, verb, args in stage.world.calls if (verb, args) == ("disable", "client_a-k2")]
    assert [round(at_us / 1e6) for at_us in shut_us] == [1, 4, 7]
    assert [(w.observed, w.asked) for w in stage.journal.witnesses("flaps")] == [(6, 6), (6, 6), (3, 3)]
    assert stage.all_ok("flaps")
    assert stage.world.healthy()


async def test_the_schedule_is_drawn(stage: Stage) -> None:
    """With jitter the phases differ within it and equal the timeline's; equal seeds give equal phases."""
    fault = FLAP.replace("up: 2s", "up: 2s, jitter: 300ms")
    phases = timeline_of(fault).steps[0].draws["phases_ms"]
    assert phases == timeline_of(fault).steps[0].draws["phases_ms"]
    assert all(abs(ms - (2000 if turn % 2 else 1000)) <= 300 for turn, ms in enumerate(phases))
    assert len(set(phases)) > 2
    await stage.play(fault)
    opened_us = [at_us for at_us, verb, args in stage.world.calls if (verb, args) == ("enable", "client_a-k2")]
    assert abs(opened_us[0] - (1000 + phases[0]) * 1000) < 100_000
    assert stage.all_ok("flaps")


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    """The witnesses probe at the scheduled times and find enabled proxies that should be disabled."""
    await stage.rehearse(FLAP)
    assert stage.world.called("disable") == []
    assert [w.ok for w in stage.journal.witnesses("flaps")] == [False, False, False]


@pytest.mark.parametrize("verb", ["disable", "enable"])
async def test_a_switch_without_effect(stage: Stage, verb: str) -> None:
    """Proxies that stay enabled, or stay disabled, fail the first round."""

    async def in_vain(proxy: str) -> None:
        if verb == "enable" and stage.clock.now_us() >= 8_000_000:
            stage.world.shut.discard(proxy)

    setattr(stage.world, verb, in_vain)
    await stage.play(FLAP)
    assert not stage.journal.witnesses("flaps")[0].ok


async def test_links_that_cannot_be_dialled_are_witnessed_by_their_proxies(stage: Stage) -> None:
    await stage.play(FLAP.replace("client(a)", "replication(a)"))
    assert [(w.observed, w.asked) for w in stage.journal.witnesses("flaps")] == [(4, 4), (4, 4), (2, 2)]
    assert stage.all_ok("flaps")


async def test_a_proxy_that_stays_disabled(stage: Stage) -> None:
    """Every proxy is enabled again if possible, and the failed heal is in the journal."""
    stage.world.broken["enable"] = FaultError("toxiproxy is gone")
    with pytest.raises(FaultError, match=r"flaps could not be healed: (toxiproxy is gone; ){2}toxiproxy is gone"):
        await stage.play(FLAP)


@pytest.mark.parametrize("at_ms", [1_100, 2_500, 4_100, 7_999])
async def test_cancelled_in_flight(stage: Stage, at_ms: int) -> None:
    """A flap interrupted in either phase leaves every proxy enabled."""
    await stage.interrupt(at_ms, FLAP)
    assert stage.world.healthy()
    assert stage.journal.states("flaps")[-1] == "healed"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (FLAP.replace("up: 2s", "up: 100ms"), "`up` must be at least"),
        (FLAP.replace("up: 2s", "up: 2s, jitter: 900ms"), "lower `jitter`"),
        (FLAP.replace("down: 1s", "down: 7s"), "use `refuse`"),
    ],
)
def test_refused_by_the_check(fault: str, message: str) -> None:
    """Phases that are too short to witness, and a flap that never enables the proxy, are refused."""
    with pytest.raises(PlanError, match=message):
        timeline_of(fault)


def test_a_flap_and_a_refusal_of_one_link_conflict() -> None:
    """Both disable the same proxies, and the heal of one would end the other."""
    with pytest.raises(PlanError, match="conflicts with `flaps`"):
        timeline_of(FLAP, '{id: shut, at: 2s, for: 3s, kind: refuse, link: "client(a) -> broker(2)"}')
