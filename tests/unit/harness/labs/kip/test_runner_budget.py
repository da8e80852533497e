"""Selection and lengths of a trial's parts within a time budget."""

import pytest

from aftershock.errors import AftershockError
from aftershock.harness.labs.kip.runner import allot, plan_within_budget
from aftershock.harness.labs.kip.trials import Planned, Trial
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.statement import Judged, Role

LONG, SHORT, WHOLE = (
    Planned("long", "demo", 60.0, (), 40, 6.0),
    Planned("short", "demo", 60.0, (), 10, 20.0),
    Planned("whole", "demo", 300.0),
)
PARTS = (LONG, SHORT, WHOLE)


def test_without_budget_all_parts_run_in_full() -> None:
    found = allot(PARTS, None)
    assert {LONG: 40, SHORT: 10, WHOLE: None} == found.blocks
    assert 300 + 260 + 300 == found.takes_s


@pytest.mark.parametrize("budget_s", [300, 420, 600, 700, 859])
def test_parts_never_exceed_the_budget(budget_s: float) -> None:
    """The selected parts fit; a shortened part has at least six blocks; a part without blocks is whole or left out."""
    found = allot(PARTS, budget_s)
    assert found.takes_s <= budget_s
    assert all(blocks is None or 6 <= blocks <= (part.blocks or 0) for part, blocks in found.blocks.items())


def test_parts_are_shortened_by_the_same_share() -> None:
    """If all parts fit, each gets about the same share of its blocks beyond six."""
    found = allot((LONG, SHORT), 396)
    assert {LONG: 22, SHORT: 7} == found.blocks


def test_earlier_parts_take_precedence() -> None:
    """If not all parts fit, later parts are left out, but a still later part that fits is taken."""
    cheap = Planned("cheap", "demo", 10.0, (), 6, 1.0)
    found = allot((LONG, WHOLE, cheap), 112)
    assert {LONG: 6, cheap: 6} == found.blocks


def trial(kip: int, *parts: Planned, deciding: int = 9) -> Trial:
    """A trial whose first ``deciding`` parts have claims; the other parts are only reported."""
    roles: list[Role] = ["claim" if place < deciding else "report" for place in range(len(parts))]
    claims = [Claim("", "", "", (part.name,), _never, role=role) for role, part in zip(roles, parts, strict=True)]
    return Trial(kip, "", tuple(claims), parts, lambda _: ())


def test_a_part_without_its_counterpart_is_not_run() -> None:
    """A part that is compared with a part that doesn't fit leaves its time to other parts."""
    half, other, alone = (Planned(name, "demo", 100.0) for name in ("half", "other", "alone"))
    pair = Claim("", "", "", ("half", "other"), _never, role="report")
    single = Claim("", "", "", ("alone",), _never, role="report")
    asked = Trial(951, "", (pair, single), (half, other, alone), lambda _: ())
    assert {alone: None} == plan_within_budget([asked], 150.0).blocks
    assert {half: None, other: None} == plan_within_budget([asked], 250.0).blocks
    assert {half: None, other: None, alone: None} == plan_within_budget([asked], None).blocks


def _never(parts: Parts) -> Judged:
    raise AssertionError(parts)


def test_a_budget_too_small_for_any_part_is_refused() -> None:
    """The error names a budget that would do."""
    with pytest.raises(
        AftershockError, match=r"budget of 1m is too small for any run of a trial, .* use --budget 2m or more"
    ):
        plan_within_budget([trial(1, *PARTS)], 60)


def test_several_trials_take_turns() -> None:
    """The first parts of all trials come first, so that a small budget tests each KIP's main claim."""
    found = plan_within_budget([trial(1, LONG, SHORT), trial(2, WHOLE)], 400)
    assert [LONG, WHOLE] == list(found.blocks)
    assert {SHORT: "budget 6.67m"} == found.left_out


def test_parts_with_claims_come_before_reported_parts() -> None:
    found = plan_within_budget([trial(1, LONG, SHORT, deciding=1)], 300 + 60 + 119)
    assert ({LONG: 40}, {SHORT: "budget 7.98m"}) == (found.blocks, found.left_out)
    assert {LONG: 40, SHORT: 6} == plan_within_budget([trial(1, LONG, SHORT, deciding=1)], 300 + 60 + 120).blocks
