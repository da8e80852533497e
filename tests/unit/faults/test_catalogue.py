"""The catalogue says of every kind what it does, takes, proves and heals, in the words of a plan."""

from __future__ import annotations

import re

import pytest

from aftershock.faults.catalogue import catalogue
from aftershock.faults.kinds import KINDS


def entry(kind: str) -> dict[str, str]:
    """The rows of one kind, by their first word."""
    block = next(block for block in catalogue().split("\n\n") if block.startswith(f"{kind}: "))
    return dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in block.splitlines()[1:])  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_listed(kind: str) -> None:
    """Each field of each kind but those that all faults have, and then `for`, proof and heal."""
    common = {"kind", "id", "at", "for_"}
    fields = [name for name in KINDS[kind].model_fields if name not in common]
    assert [*fields, "for", "proof", "heal"] == list(entry(kind))
    assert all(entry(kind).values())


def test_types_and_defaults() -> None:
    """Durations carry their unit, choices and bounds are spelled out, what must be there is called needed."""
    assert "DURATION; needed" == entry("latency")["delay"]
    assert "DURATION; default 500ms" == entry("latency")["every"]
    assert entry("cut")["ways"].startswith("both | in | out; default both; ")
    assert "number from 1 to 8; optional" == entry("reassign")["rotate"]
    assert "{from: ROLE, to: ROLE}; optional" == entry("reassign")["move"]
    assert "ROLE; needed" == entry("kill")["broker"]


def test_for() -> None:
    """Whether `for` is needed is what the plan's check holds a fault to."""
    words = {"needed": "needed", "optional": "may be given", "refused": "refused"}
    for kind, fault in KINDS.items():
        assert entry(kind)["for"].startswith(words[fault.for_rule])


def test_the_words_are_explained() -> None:
    """ROLE, LINK and DURATION, which the rows use, are defined at the end."""
    assert ["LINK", "ROLE", "DURATION"] == [line.split()[0] for line in catalogue().split("\n\n")[-1].splitlines()]
