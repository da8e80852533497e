"""Waiting ends when nothing is lacking any more, and otherwise says what is."""

from itertools import count

from aftershock.harness.kafka.admin import still_lacking


def test_it_ends_when_nothing_lacks() -> None:
    """Asked until the answer is empty, and not once more."""
    answers = iter(["k1", "k1", ""])
    assert "" == still_lacking(lambda: next(answers), 60)
    assert [] == list(answers)


def test_what_lacks_at_the_deadline_is_told() -> None:
    """The last answer, not the first."""
    asked = count()
    assert still_lacking(lambda: f"{next(asked)} asked", 0.25) == f"{next(asked) - 1} asked"
