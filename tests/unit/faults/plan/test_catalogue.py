"""The catalogue documents every kind: effect, parameters, witness, heal and permanent effects."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from aftershock.faults.kinds.fault import FAMILIES
from aftershock.faults.kinds.registry import BUILT_IN, KINDS
from aftershock.faults.plan.catalogue import WIDTH, WORDS, catalogue, entries, page
from aftershock.faults.plan.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME

DOCS = Path(__file__).parents[4] / "docs"


def facts_of(kind: str) -> dict[str, str]:
    """Return the facts about one kind by their label."""
    (entry,) = entries([KINDS[kind]])
    return dict((*entry.parameters, *entry.rows))


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_listed(kind: str) -> None:
    """Every field of each kind except the common ones is listed, then `for`, proof, heal and exposure."""
    common = {"kind", "id", "at", "for"}
    fields = [field.alias or name for name, field in KINDS[kind].model_fields.items()]
    left = ["leaves"] if KINDS[kind].permanent_effect else []
    assert [*(name for name in fields if name not in common), "for", "proof", "heal", *left, "met by"] == list(
        facts_of(kind)
    )
    assert all(facts_of(kind).values())


def test_every_kind_is_printed_once_in_its_family() -> None:
    """Families and kinds keep their order, and no line is wider than the page."""
    lines = catalogue().splitlines()
    named = [match[1] for line in lines if (match := re.match(r"([a-z_]+): ", line))]
    assert list(KINDS) == named
    headings = [above for above, line in pairwise(lines) if line and set(line) == {"="}]
    families = {kind.family for kind in KINDS.values()}
    assert [f"{family} faults".lower() for family in FAMILIES if family in families] == [
        heading.lower() for heading in headings[:-1]
    ]
    assert max(map(len, lines)) <= WIDTH


def test_types_and_defaults() -> None:
    """Durations have units, choices and bounds are listed, and required parameters are marked as needed."""
    assert "DURATION; needed" == facts_of("latency")["delay"]
    assert facts_of("latency")["every"].startswith("DURATION; default 500ms")
    assert facts_of("cut")["ways"].startswith("both | in | out; default both; ")
    assert "integer from 1 to 8; optional" == facts_of("reassign")["rotate"]
    assert "{from: ROLE, to: ROLE}; optional" == facts_of("reassign")["move"]
    assert "ROLE; needed" == facts_of("kill")["broker"]


def test_for() -> None:
    """The text about `for` matches the rule that the plan's check applies."""
    words = {"needed": "needed", "optional": "optional: with a duration, the heal restores", "refused": "refused"}
    for kind, fault in KINDS.items():
        assert facts_of(kind)["for"].startswith(words[fault.for_rule])


def test_the_words_are_explained() -> None:
    """The type names in capitals are defined at the end."""
    assert list(WORDS) == [
        line.split()[0] for line in catalogue().split("\n\n")[-1].splitlines() if not line.startswith(" ")
    ]


def test_the_page_is_what_the_code_prints() -> None:
    """docs/FAULTS.md is up to date; run `make docs` after a change to a kind."""
    assert (DOCS / "FAULTS.md").read_text(encoding="utf-8") == page()


def test_the_page_has_every_kind_of_ours() -> None:
    """Every kind has exactly one section."""
    assert list(BUILT_IN) == re.findall(r"^### `(\w+)`$", page(), re.MULTILINE)


def test_the_plans_on_the_page_are_valid() -> None:
    """The plans on the page pass the check."""
    blocks = re.findall(r"```yaml\nfaults:\n(.*?)```", page(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        load_plan(FRAME + block)
