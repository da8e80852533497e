"""The figures that statements are made of, and when there are none."""

from functools import partial

import pytest

from aftershock.results.trials.claim import Claim, Parts, state_claims
from aftershock.results.trials.statement import Judged, Role, below
from aftershock.tests.unit.results.trials.made import doubted, part

HALF = {"w/new": [50.0, 60, 45, 55, 50, 52], "w/old": [100.0, 120, 90, 110, 100, 104]}
WORST = "produce.latency max in fault"


def judged(parts: Parts) -> Judged:
    return below(parts["moves"].ratio("w/new", "w/old", WORST), 0.6)


def claim(role: Role = "claim") -> Claim:
    return Claim("half", "half as slow", "below 0.6", ("moves",), judged, "0.5", role)


def test_pairs() -> None:
    """Blocks are paired: where each is half of the other, so is the ratio, whatever the blocks differ by."""
    found = part("moves", HALF).ratio("w/new", "w/old", WORST)
    assert (pytest.approx(0.5), 6, "times") == (found.value, found.n, found.unit)
    assert found.p == pytest.approx(2 / 64)


def test_unproven_blocks_are_left_out() -> None:
    """A block whose fault was not witnessed counts on neither side, so five are left, which decide nothing."""
    spoilt = part("moves", HALF, checks=[doubted("witness/move-3", "witness")])
    assert 5 == spoilt.ratio("w/new", "w/old", WORST).n
    assert "inconclusive" == state_claims([claim()], {"moves": spoilt}, {})[0].word


def test_a_block_without_a_value() -> None:
    """Where all failed there is no ratio, and so no word; the p is that of the signs alone."""
    found = part("moves", HALF | {"w/old": [None, *HALF["w/old"][1:]]}).ratio("w/new", "w/old", WORST)
    assert (None, 6) == (found.value, found.n)
    assert found.p == pytest.approx(2 / 64)


def test_stated() -> None:
    """A sound part is judged by its claim; the words of the claim are kept."""
    found = state_claims([claim()], {"moves": part("moves", HALF)}, {})[0]
    assert ("half", "confirmed", "claim", "0.5") == (found.id, found.word, found.role, found.published)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({}, "not run: budget 10m"),
        ({"moves": part("moves", HALF, status="interrupted")}, "did not finish"),
        ({"moves": part("moves", HALF, checks=[doubted("harness/host", "harness")])}, "the host was starved"),
    ],
)
def test_doubts(parts: Parts, why: str) -> None:
    """What was not run, did not finish, or was measured on a starved host, leaves the claim open, with the reason."""
    found = state_claims([claim()], parts, {"moves": "budget 10m"})[0]
    assert "inconclusive" == found.word
    assert why in found.why


def test_a_doubted_part_spares_the_others() -> None:
    """A claim on a sound part is judged, whatever became of another part."""
    other = Claim("other", "", "", ("gone",), partial(_never))
    words = [each.word for each in state_claims([other, claim()], {"moves": part("moves", HALF)}, {})]
    assert ["inconclusive", "confirmed"] == words


def _never(parts: Parts) -> Judged:
    raise AssertionError(parts)
