"""Misroute: the other broker answers with its own id, and after the heal the right broker does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError, PlanError
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


CROSSED = '{id: lost, at: 1s, for: 5s, kind: misroute, link: "client(a) -> broker(1)", with: 2}'
BEFORE = [["client_a-k1", "b1:91"], ["client_a-k2", "b2:91"]]


async def test_proxies_are_crossed_and_restored(stage: Stage) -> None:
    """Each of two proxies leads to the other's broker; the undo, known before injection, restores them."""
    turned: dict[str, str] = {}
    await stage.play_with(3_300, lambda: turned.update(stage.world.turned), CROSSED)
    assert turned == {"client_a-k1": "b2:91", "client_a-k2": "b1:91"}
    undo = stage.line("lost", "intended").undo.as_json()
    assert undo == {"verb": "redirect_proxies", "args": {"upstreams": BEFORE}}
    assert [(w.observed, w.n) for w in stage.journal.witnesses("lost") if w.unit == "links"] == [(2, 2), (2, 2)]
    assert stage.all_ok("lost")
    assert stage.world.straight()


async def test_every_rack_crosses_its_own_proxies(stage: Stage) -> None:
    """`*` crosses three pairs, each within its rack."""
    await stage.play(CROSSED.replace("client(a)", "client(*)"))
    assert len(stage.line("lost", "injected").targets.links) == 6
    assert {w.n for w in stage.journal.witnesses("lost") if w.unit == "links"} == {6}
    assert stage.all_ok("lost")
    assert stage.world.straight()


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    """The right brokers answer, so no witness passes."""
    await stage.rehearse(CROSSED)
    assert stage.world.called("redirect") == []
    assert not any(witness.ok for witness in stage.journal.witnesses("lost"))


async def test_a_redirection_without_effect(stage: Stage) -> None:
    """Toxiproxy reports another upstream, but the same broker answers."""

    async def itself(link: object) -> object:
        return link.broker  # type: ignore[attr-defined]

    stage.world.node_behind = itself  # type: ignore[method-assign, assignment]
    await stage.play(CROSSED)
    assert [w.ok for w in stage.journal.witnesses("lost") if w.unit == "links"] == [False, False]


async def test_a_redirection_undone_from_outside(stage: Stage) -> None:
    """The read-back fails and names the proxy."""
    await stage.play_with(3_300, stage.world.turned.clear, CROSSED)
    failed = [witness for witness in stage.journal.witnesses("lost") if not witness.ok]
    assert {witness.unit for witness in failed} == {"proxies", "links"}
    assert "client_a-k" in failed[0].what


async def test_a_heal_without_effect(stage: Stage) -> None:
    """The wrong broker still answers: the heal fails and names the broker."""
    turn = stage.world.redirect

    async def once(proxy: str, upstream: str) -> None:
        if stage.clock.now_us() < 5_000_000:
            await turn(proxy, upstream)

    stage.world.redirect = once  # type: ignore[method-assign]
    with pytest.raises(FaultError, match="broker 2 answers behind client_a-k1"):
        await stage.play(CROSSED)


async def test_a_dead_broker_is_left_out(stage: Stage) -> None:
    """One of two brokers is dead: the other's probe is the witness, and the heal doesn't wait for the dead broker."""
    await stage.play(CROSSED, "{id: dead, at: 3s, for: 8s, kind: kill, broker: 2}")
    assert stage.all_ok("lost")
    assert stage.journal.states("lost")[-1] == "healed"


@pytest.mark.parametrize("at_ms", [1_001, 3_000, 5_999])
async def test_cancelled_in_flight(stage: Stage, at_ms: int) -> None:
    """An interruption at any time leaves every proxy at its own broker."""
    await stage.interrupt(at_ms, CROSSED)
    assert stage.world.straight()
    assert stage.journal.states("lost")[-1] == "healed"


async def test_both_ends_resolve_to_one_broker(stage: Stage) -> None:
    """There is nothing to cross, so the step fails without any change."""
    await stage.play(CROSSED.replace("with: 2", "with: leader of orders/0"))
    assert "can't be swapped" in str(stage.line("lost", "failed").why)
    assert stage.world.called("redirect") == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (CROSSED.replace("with: 2", "with: 1"), "use another broker"),
        (CROSSED.replace("client(a) -> broker(1)", "client(a) -> broker"), "use `client"),
        (CROSSED.replace("client(a) -> broker(1)", "replication(a) -> broker(2)"), "use `client"),
        (CROSSED.replace("with: 2", "with: 9"), "no node 9"),
    ],
)
def test_refused_by_the_check(fault: str, message: str) -> None:
    """Crossings of a link with itself, of no link, and of links that are not client links are refused."""
    with pytest.raises(PlanError, match=message):
        timeline_of(fault)


def test_two_misroutes_of_one_link_conflict() -> None:
    """The heal of one would restore the other's proxy."""
    with pytest.raises(PlanError, match="conflicts with `lost`"):
        timeline_of(CROSSED, CROSSED.replace("id: lost, at: 1s", "id: too, at: 2s").replace("with: 2", "with: 3"))
