"""Lanes of the owners of partitions: each lane is numbered, and each number is readable on each colour."""

import re
from dataclasses import replace
from importlib import resources

import pytest

from aftershock.results.report.plots import LANES_MAX, ownership
from aftershock.results.report.svg import LINES
from aftershock.tests.unit.results.checks.slo.stage import client
from aftershock.tests.unit.results.checks.test_ownership import event, group

CONTRAST_MIN = 4.5
"""Least contrast of text (WCAG 2.2, 1.4.3)."""
MEMBERS, PARTITIONS = 8, 24


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as ``#3b82c4`` or ``#000`` (WCAG 2.2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _svg(partitions: int) -> str:
    """Return the lanes of a group of eight members; the first gives partition 0 up for the last."""
    members = replace(client("a"), members=MEMBERS)
    workers = members.workers("consume")
    owned = [range(number, partitions, MEMBERS) for number in range(MEMBERS)]
    events = [event(1, worker, "assigned", *own) for worker, own in zip(workers, owned, strict=True)]
    events += [event(20, workers[0], "revoked", 0), event(21, workers[-1], "assigned", 0)]
    (chart,) = ownership(replace(group(*events), clients=(members,)), {}, {})
    assert (partitions > LANES_MAX) == ("more partitions are in events.jsonl" in chart.caption)
    return chart.svg


@pytest.mark.parametrize("partitions", [PARTITIONS, LANES_MAX + 1])
def test_each_lane_is_numbered_by_its_owners(partitions: int) -> None:
    """The numbers, and no other text, have the class that the page writes in black."""
    svg = _svg(partitions)
    numbers = re.findall(r'<g class="on-colour"><text[^>]*>([^<]+)</text>', svg)
    expected = [str(partition % MEMBERS + 1) for partition in range(min(partitions, LANES_MAX))]
    assert sorted([*expected, str(MEMBERS)]) == sorted(numbers)
    assert svg.count("on-colour") == len(numbers)


def test_the_numbers_are_readable_on_each_colour() -> None:
    """The style sheet's own rule for them is more specific than the one for all texts of charts."""
    css = resources.files("aftershock.results.report").joinpath("page.css").read_text()
    assert "figure svg text { fill: var(--faint) !important;" in css
    (fill,) = re.findall(r"^figure svg \.on-colour text \{ fill: (#\w+) !important; \}$", css, re.MULTILINE)
    for colour, _ in LINES:
        low, high = sorted([_luminance(fill), _luminance(colour)])
        assert (high + 0.05) / (low + 0.05) >= CONTRAST_MIN, colour
