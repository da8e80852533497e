"""Outcome of an injection by hand, from its journal."""

from typing import Any

import pytest

from aftershock.errors import FaultError
from aftershock.harness.adhoc.inject import journal_state, outcome, remaining_s

TARGETS = {"brokers": [2], "links": [], "topics": [], "roles": {}}
SEEN = {"what": "it is paused", "asked": 1, "observed": 1, "unit": "reads", "n": 1, "ok": True}
UNSEEN = {**SEEN, "observed": 0, "ok": False}


def lines(*told: tuple[str, float, Any]) -> list[dict[str, Any]]:
    """Journal lines of ``pause-1``: state, second, witness or reason."""
    made = []
    for state, t_s, more in told:
        line = {"fault": "pause-1", "state": state, "t_us": int(t_s * 1e6), "targets": TARGETS}
        made.append(line | ({"witness": more} if isinstance(more, dict) else {"why": more} if more else {}))
    return made


STORY = lines(("intended", 1, None), ("injected", 1.1, None), ("witnessed", 1.2, SEEN))
HEALED = lines(("healing", 6, None), ("healed", 7, None))


def test_a_witnessed_and_healed_fault_exits_0() -> None:
    """Exit 0, and the line names target and duration."""
    told = outcome("pause-1", [*STORY, *HEALED], stopped=False)
    assert (0, "pause-1: on node 2 for 5.0 s: witnessed, healed") == (told.exit_code, told.text)


def test_one_failed_witness_exits_2() -> None:
    """Exit 2 if any witness failed, with the figures of the first failed witness."""
    told = outcome(
        "pause-1", [*STORY, *lines(("witnessed", 2, UNSEEN), ("witnessed", 3, SEEN)), *HEALED], stopped=False
    )
    assert (2, "pause-1: on node 2 for 5.0 s: NOT witnessed (it is paused: 0 of 1 reads), healed") == (
        told.exit_code,
        told.text,
    )


def test_a_fault_without_observation_is_not_witnessed() -> None:
    """A fault that no witness observed is never a success."""
    assert 2 == outcome("pause-1", [*STORY[:2], *HEALED], stopped=False).exit_code


def test_an_action_without_inverse_is_done_not_healed() -> None:
    told = outcome("elect-1", [*STORY, *lines(("healed", 3, None))], stopped=False)
    assert (0, "elect-1: on node 2 for 2.0 s: witnessed, done") == (told.exit_code, told.text)


def test_an_interrupted_injection_exits_130() -> None:
    """Exit 130 with or without a witness, also if no target was touched yet."""
    assert (130, "pause-1: on node 2 for 5.0 s: stopped, witnessed, healed") == (
        outcome("pause-1", [*STORY, *HEALED], stopped=True).exit_code,
        outcome("pause-1", [*STORY, *HEALED], stopped=True).text,
    )
    assert (130, "the injection of pause-1 was stopped before it changed anything") == (
        outcome("pause-1", [], stopped=True).exit_code,
        outcome("pause-1", [], stopped=True).text,
    )


def test_a_failed_injection_names_reason_and_other_faults() -> None:
    """The error has the journal's reason and lists the other faults in force, which may be the cause."""
    with pytest.raises(FaultError, match="pause-1 failed: it runs not; in force now: kill-1"):
        outcome("pause-1", lines(("failed", 1, "it runs not")), stopped=False, other_faults="in force now: kill-1")


def test_status_of_an_unfinished_injection() -> None:
    """The stage is the journal's last state; the remaining time is counted only while the fault is in force."""
    assert ["resolving targets", "pause-1 witnessed"] == [journal_state([]), journal_state(STORY)]
    assert [None, 3.0, None, None] == [
        remaining_s(STORY[:1], 5_000, 3_000_000),
        remaining_s(STORY, 5_000, 3_000_000),
        remaining_s(STORY, None, 3_000_000),
        remaining_s([*STORY, *HEALED], 5_000, 3_000_000),
    ]
