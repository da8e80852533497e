"""What a budget pays for."""

import pytest

from aftershock.errors import AftershockError
from aftershock.harness.labs.kip.runner import allot, plan_within_budget
from aftershock.harness.labs.kip.trials import Planned, Trial
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.statement import Judged, Role

LONG, SHORT, WHOLE = (
    Planned("long", "demo", 40, 6.0, 60.0),
    Planned("short", "demo", 10, 20.0, 60.0),
    Planned("whole", "demo", None, 0.0, 300.0),
)
PARTS = (LONG, SHORT, WHOLE)


def test_without_a_budget() -> None:
    """All of it, as the trial wants it."""
    found = allot(PARTS, None)
    assert {LONG: 40, SHORT: 10, WHOLE: None} == found.blocks
    assert 300 + 260 + 300 == found.takes_s


@pytest.mark.parametrize("budget_s", [300, 420, 600, 700, 859])
def test_never_over_the_budget(budget_s: float) -> None:
    """What is run fits; what is shortened has six blocks at least; what has none is whole or left out."""
    found = allot(PARTS, budget_s)
    assert found.takes_s <= budget_s
    assert all(blocks is None or 6 <= blocks <= (part.blocks or 0) for part, blocks in found.blocks.items())


def test_shortened_alike() -> None:
    """With all parts in, each gets about the same share of what it wants beyond six."""
    found = allot((LONG, SHORT), 396)
    assert {LONG: 22, SHORT: 7} == found.blocks


def test_the_first_ones_come_first() -> None:
    """Where not all fit, the later ones are left out, and one that fits behind them is still taken."""
    cheap = Planned("cheap", "demo", 6, 1.0, 10.0)
    found = allot((LONG, WHOLE, cheap), 112)
    assert {LONG: 6, cheap: 6} == found.blocks


def trial(kip: int, *parts: Planned, deciding: int = 9) -> Trial:
    """Its first ``deciding`` parts are claimed on, the others reported."""
    roles: list[Role] = ["claim" if place < deciding else "report" for place in range(len(parts))]
    claims = [Claim("", "", "", (part.name,), _never, role=role) for role, part in zip(roles, parts, strict=True)]
    return Trial(kip, "", tuple(claims), parts, lambda _: ())


def test_half_of_a_pair_is_not_run() -> None:
    """What is read only beside a part that doesn't fit leaves its time to others."""
    half, other, alone = (Planned(name, "demo", None, 0.0, 100.0) for name in ("half", "other", "alone"))
    pair = Claim("", "", "", ("half", "other"), _never, role="report")
    single = Claim("", "", "", ("alone",), _never, role="report")
    asked = Trial(951, "", (pair, single), (half, other, alone), lambda _: ())
    assert {alone: None} == plan_within_budget([asked], 150.0).blocks
    assert {half: None, other: None} == plan_within_budget([asked], 250.0).blocks
    assert {half: None, other: None, alone: None} == plan_within_budget([asked], None).blocks


def _never(parts: Parts) -> Judged:
    raise AssertionError(parts)


def test_too_small() -> None:
    """A budget that pays for nothing is refused, with one that would do."""
    with pytest.raises(AftershockError, match=r"budget of 1m is too small for any part .* use --budget 2m or more"):
        plan_within_budget([trial(1, *PARTS)], 60)


def test_in_turn() -> None:
    """Of several trials the first parts come first, so that a small budget asks each KIP its main question."""
    found = plan_within_budget([trial(1, LONG, SHORT), trial(2, WHOLE)], 400)
    assert [LONG, WHOLE] == list(found.blocks)
    assert {SHORT: "budget 6.67m"} == found.left_out


def test_what_decides_comes_first() -> None:
    """What is only reported gets what the claims leave, not before."""
    found = plan_within_budget([trial(1, LONG, SHORT, deciding=1)], 300 + 60 + 119)
    assert ({LONG: 40}, {SHORT: "budget 7.98m"}) == (found.blocks, found.left_out)
    assert {LONG: 40, SHORT: 6} == plan_within_budget([trial(1, LONG, SHORT, deciding=1)], 300 + 60 + 120).blocks
