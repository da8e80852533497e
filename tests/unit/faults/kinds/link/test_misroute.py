"""Misroute: the other broker answers, by its own account; and after the heal the right one does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError, PlanError
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


CROSSED = '{id: lost, at: 1s, for: 5s, kind: misroute, link: "client(a) -> broker(1)", with: 2}'
BEFORE = [["client_a-k1", "b1:91"], ["client_a-k2", "b2:91"]]


async def test_crossed_and_straight_again(stage: Stage) -> None:
    """Both proxies lead where the other did; the undo, known before, leads them back."""
    turned: dict[str, str] = {}
    await stage.play_with(3_300, lambda: turned.update(stage.world.turned), CROSSED)
    assert turned == {"client_a-k1": "b2:91", "client_a-k2": "b1:91"}
    undo = stage.line("lost", "intended").undo.as_json()
    assert undo == {"verb": "redirect_proxies", "args": {"upstreams": BEFORE}}
    assert [(w.observed, w.n) for w in stage.journal.witnesses("lost") if w.unit == "links"] == [(2, 2), (2, 2)]
    assert stage.all_ok("lost")
    assert stage.world.straight()


async def test_every_rack_crosses_its_own(stage: Stage) -> None:
    """`*` crosses three pairs, each within its rack."""
    await stage.play(CROSSED.replace("client(a)", "client(*)"))
    assert len(stage.line("lost", "injected").targets.links) == 6
    assert {w.n for w in stage.journal.witnesses("lost") if w.unit == "links"} == {6}
    assert stage.all_ok("lost")
    assert stage.world.straight()


async def test_rehearsed(stage: Stage) -> None:
    """The right brokers answer, so no witness speaks."""
    await stage.rehearse(CROSSED)
    assert stage.world.called("redirect") == []
    assert not any(witness.ok for witness in stage.journal.witnesses("lost"))


async def test_a_redirection_without_effect(stage: Stage) -> None:
    """Toxiproxy says it leads elsewhere, and the same broker answers."""

    async def itself(link: object) -> object:
        return link.broker  # type: ignore[attr-defined]

    stage.world.node_behind = itself  # type: ignore[method-assign, assignment]
    await stage.play(CROSSED)
    assert [w.ok for w in stage.journal.witnesses("lost") if w.unit == "links"] == [False, False]


async def test_turned_back_by_somebody_else(stage: Stage) -> None:
    """The read-back names the proxy."""
    await stage.play_with(3_300, stage.world.turned.clear, CROSSED)
    failed = [witness for witness in stage.journal.witnesses("lost") if not witness.ok]
    assert {witness.unit for witness in failed} == {"proxies", "links"}
    assert "client_a-k" in failed[0].what


async def test_a_heal_that_does_not_take(stage: Stage) -> None:
    """The wrong broker still answers: failed, and it says which."""
    turn = stage.world.redirect

    async def once(proxy: str, upstream: str) -> None:
        if stage.clock.now_us() < 5_000_000:
            await turn(proxy, upstream)

    stage.world.redirect = once  # type: ignore[method-assign]
    with pytest.raises(FaultError, match="broker 2 answers behind client_a-k1"):
        await stage.play(CROSSED)


async def test_a_dead_broker_is_left_out(stage: Stage) -> None:
    """Nobody answers behind one of the two: the other one vouches, and the heal doesn't wait for the dead."""
    await stage.play(CROSSED, "{id: dead, at: 3s, for: 8s, kind: kill, broker: 2}")
    assert stage.all_ok("lost")
    assert stage.journal.states("lost")[-1] == "healed"


@pytest.mark.parametrize("at_ms", [1_001, 3_000, 5_999])
async def test_cancelled_in_flight(stage: Stage, at_ms: int) -> None:
    """Whenever it is interrupted, every proxy leads where it did."""
    await stage.interrupt(at_ms, CROSSED)
    assert stage.world.straight()
    assert stage.journal.states("lost")[-1] == "healed"


async def test_both_ends_turn_out_to_be_one(stage: Stage) -> None:
    """A role that the same broker plays: nothing to cross, and nothing touched."""
    await stage.play(CROSSED.replace("with: 2", "with: leader of orders/0"))
    assert "can't be swapped" in str(stage.line("lost", "failed").why)
    assert stage.world.called("redirect") == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (CROSSED.replace("with: 2", "with: 1"), "use another broker"),
        (CROSSED.replace("client(a) -> broker(1)", "client(a) -> broker"), "use `client"),
        (CROSSED.replace("client(a) -> broker(1)", "replication(a) -> broker(2)"), "use `client"),
        (CROSSED.replace("with: 2", "with: 9"), "no node 9"),
    ],
)
def test_refused_by_the_check(fault: str, said: str) -> None:
    """Crossings of one link with itself, of no link, and of links that aren't clients'."""
    with pytest.raises(PlanError, match=said):
        timeline_of(fault)


def test_two_on_one_link() -> None:
    """One's heal would lead the other's proxy home."""
    with pytest.raises(PlanError, match="conflicts with `lost`"):
        timeline_of(CROSSED, CROSSED.replace("id: lost, at: 1s", "id: too, at: 2s").replace("with: 2", "with: 3"))
