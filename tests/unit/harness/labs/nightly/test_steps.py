"""What a budget pays for."""

import pytest

from aftershock.errors import AftershockError
from aftershock.harness.labs.nightly.night import CLOSING_S, STEPS, Step, allot, worst

SHORT, LONG, FIXED = (
    Step(name, ("x",), least, most) for name, least, most in (("a", 100, 200), ("b", 300, 900), ("c", 250, 250))
)


def test_without_a_budget_all_is_done() -> None:
    """Each as long as it wants."""
    found = allot(STEPS, None)
    assert list(STEPS) == list(found.seconds)
    assert {step: step.most_s for step in STEPS} == found.seconds
    assert not found.left_out


def test_what_is_left_over_lengthens_those_that_can_use_it() -> None:
    """In proportion to what they want, so that nobody waits for the last one; never past it."""
    found = allot([SHORT, LONG, FIXED], 650 + 350 + CLOSING_S)
    assert {SHORT: 150, LONG: 600, FIXED: 250} == found.seconds
    assert 650 + 350 + CLOSING_S == found.takes_s
    assert {SHORT: 200, LONG: 900, FIXED: 250} == allot([SHORT, LONG, FIXED], 9_000).seconds


def test_what_does_not_fit_is_left_out_with_its_reason() -> None:
    """And those after it are still tried."""
    found = allot([SHORT, LONG, FIXED], 350 + CLOSING_S)
    assert [SHORT, FIXED] == list(found.seconds)
    assert {LONG: "a budget of 7 m 50 s"} == found.left_out


def test_half_an_hour_is_worth_its_while() -> None:
    """It searches, runs what the trend is made of, and puts the KIPs on trial, within the half hour."""
    found = allot(STEPS, 1_800)
    assert {"explore", "leader-rotation", "demo", "trials"} <= {step.name for step in found.seconds}
    assert found.takes_s <= 1_800


def test_a_budget_too_small_is_a_sentence() -> None:
    """It says what to give."""
    with pytest.raises(
        AftershockError, match="a budget of 1 m 00 s is too small for any step of a night: use --budget 5m or more"
    ):
        allot(STEPS, 60)


def test_words() -> None:
    """A step's command with the night's folder, seed and time."""
    explore = STEPS[0]
    words = explore.words("runs", 7, 300.9)
    assert ["explore", "--budget", "300s", "--seed", "7", "--out", "runs"] == words[2:]


@pytest.mark.parametrize(("codes", "code"), [([], 0), ([0, 2], 2), ([2, 1, 0], 1), ([1, 3], 3), ([0, 137], 3)])
def test_the_worst(codes: list[int], code: int) -> None:
    """ERROR over FAIL over INCONCLUSIVE; what nobody knows is an ERROR."""
    assert code == worst(codes)
