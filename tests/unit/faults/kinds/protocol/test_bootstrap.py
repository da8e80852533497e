"""Lost bootstrap addresses: the rule, witnesses of connections, and the count of those of clients alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


WAYS = {
    "closed": "brokers: [1, 2]",
    "silent": "brokers: [1], connection: silent",
    "elsewhere": "brokers: [1, 3], to: 2",
}


def fault(words: str) -> str:
    return f"{{id: bad, at: 0s, for: 5s, kind: lose_bootstrap, {words}}}"


@pytest.mark.parametrize("way", WAYS)
async def test_the_addresses_are_lost_and_come_back(stage: Stage, way: str) -> None:
    """The harness asks at both ends, and its own connections are not the clients'."""
    await stage.play(fault(WAYS[way]))
    assert ["intended", "injected", "witnessed", "healing", "healed"] == stage.journal.states("bad")
    assert stage.all_ok("bad")
    asked = [witness for witness in stage.journal.witnesses("bad") if witness.unit == "addresses"]
    assert 2 == len(asked)
    assert {asked[0].asked} == {witness.observed for witness in asked}
    (counted, *_) = [witness for witness in stage.journal.witnesses("bad") if witness.unit == "requests"]
    assert 1 == counted.observed
    assert stage.world.healthy()


@pytest.mark.parametrize("way", WAYS)
async def test_addresses_that_still_lead_to_their_brokers(stage: Stage, way: str) -> None:
    stage.world.ineffective = True
    await stage.play(fault(WAYS[way]))
    asked = [witness for witness in stage.journal.witnesses("bad") if witness.unit == "addresses"]
    assert [(0, False), (0, False)] == [(witness.observed, witness.ok) for witness in asked]


async def test_a_rehearsal_fails_its_witnesses(stage: Stage) -> None:
    await stage.rehearse(fault(WAYS["closed"]))
    assert stage.journal.witnesses("bad")
    assert not [witness for witness in stage.journal.witnesses("bad") if witness.ok]


async def test_one_rack(stage: Stage) -> None:
    await stage.play(fault("brokers: [1], rack: b"))
    assert {("b", 1)} == set(stage.world.called("ask_bootstrap"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("brokers: []", "brokers"),
        ("brokers: [1, 7]", "the cluster has no broker 7: use 1, 2, 3"),
        ("brokers: [1], to: 9", "the cluster has no broker 9"),
        ("brokers: [1, 2, 3]", "leave out a broker"),
        ("brokers: [1, 2], to: 2", "leads there anyway"),
        ("brokers: [1], to: 2, connection: silent", "is not silent"),
        ("brokers: [1], rack: z", "z"),
    ],
)
def test_impossible_addresses_are_refused(words: str, message: str) -> None:
    with pytest.raises(PlanError) as refused:
        timeline_of(fault(words))
    assert message in str(refused.value)
