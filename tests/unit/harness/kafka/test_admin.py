"""Waiting for a condition: it ends when nothing is missing, and otherwise reports what is missing."""

from itertools import count

from aftershock.harness.kafka.admin import still_lacking


def test_waiting_ends_when_nothing_is_missing() -> None:
    """The condition is polled until its result is empty, and not once more."""
    answers = iter(["k1", "k1", ""])
    assert "" == still_lacking(lambda: next(answers), 60)
    assert [] == list(answers)


def test_the_deadline_reports_the_last_result() -> None:
    asked = count()
    assert still_lacking(lambda: f"{next(asked)} asked", 0.25) == f"{next(asked) - 1} asked"
