"""YAML documents with positions, from untrusted sources."""

from pathlib import Path

import pytest

from aftershock.errors import PlanError
from aftershock.faults.sections.document import BYTES_MAX, dump_yaml, load

GOOD = """\
name: x
list:
  - {a: 1, b: [2, 3.5]}
  - "two"
when: 2020-01-01
none: ~
yes_: true
"""


def test_plain_data() -> None:
    """The data holds only plain Python values, and dates stay text."""
    expected = {"name": "x", "list": [{"a": 1, "b": [2, 3.5]}, "two"], "when": "2020-01-01", "none": None, "yes_": True}
    assert load(GOOD).data == expected


def test_what_is_dumped_is_read_again() -> None:
    """Text that looks like numbers, dates or YAML stays text; keys keep their order; long lines are not wrapped."""
    tricky = ["2", "true", "2020-01-01", "~", "a: b", "- x", "client(a) <-> broker", "lost == 0", "#", "x" * 300]
    data = {"racks": {"b": 1, "a": 2}, "list": [{"id": text} for text in tricky], "none": None, "no": False}
    assert load(dump_yaml(data)).data == data
    assert ["b", "a"] == list(load(dump_yaml(data)).data["racks"])


@pytest.mark.parametrize(
    ("loc", "position"),
    [
        ((), "plan.yaml:1:1"),
        (("list", 0, "b", 1), "plan.yaml:3:19"),
        (("list", 1), "plan.yaml:4:5"),
        (("list", 0, "missing"), "plan.yaml:3:5"),
        (("list", 7, "x", "y"), "plan.yaml:3:3"),
        (("nowhere",), "plan.yaml:1:1"),
    ],
)
def test_positions(loc: tuple[str | int, ...], position: str) -> None:
    """Positions are line and column from 1; a missing value has the position of its nearest parent."""
    assert load(GOOD).position(loc) == position


def test_key_position() -> None:
    """A key's position differs from its value's."""
    assert load(GOOD).key_position(("list", 0, "b")) == "plan.yaml:3:12"
    assert load(GOOD).key_position(("list", 0)) == "plan.yaml:3:5"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: [1", r"plan.yaml:1:9: the plan is not valid YAML .*; correct it"),
        ("a: &x 1\nb: *x", r"plan.yaml:2:4: aliases \(`\*x`\) are not allowed"),
        ("a: 1\na: 2", r"plan.yaml:2:1: the key `a` is repeated \(first at plan.yaml:1:1\); remove either"),
        ("a: !!python/object/apply:os.system [ls]", r"plan.yaml:1:4: the YAML tag `python/object/apply:os.system`"),
        ("a: !mine 1", r"plan.yaml:1:4: the YAML tag `!mine` is not allowed in a plan; remove the tag"),
        ("a: !!binary aGk=", r"plan.yaml:1:4: the YAML tag `binary` is not allowed"),
        ("a: !!set {b}", r"plan.yaml:1:4: the YAML tag `set` is not allowed"),
        ("- 1", r"plan.yaml:1:1: a plan is a mapping"),
        ("", r"plan.yaml:1:1: a plan is a mapping"),
        ("? [1]\n: 2", r"plan.yaml:1:3: a key must be a single word"),
        ("a: \x01", r"plan.yaml:1:1: the plan is not valid YAML"),
        ("a: 1\n---\nb: 2", r"plan.yaml:2:1: the plan is not valid YAML"),
        ("a: !!int x", r"plan.yaml:1:4: `x` can't be read as a number"),
        ("a: " + "9" * 50, r"plan.yaml:1:4: `9+` is too large; give at most 9223372036854775807"),
        ("a: " + "[" * 25 + "]" * 25, r"plan.yaml:1:27: the plan is nested more than 24 levels deep"),
        ("[" * 20_000 + "]" * 20_000, r"the plan is nested more than 24 levels deep"),
        ("a: " + "x" * BYTES_MAX, r"plan.yaml: the plan exceeds the limit of 64 KiB"),
    ],
)
def test_refused(text: str, problem: str) -> None:
    """Invalid and dangerous documents are refused with position and remedy."""
    with pytest.raises(PlanError, match=problem):
        load(text)


def test_all_problems_of_form_at_once() -> None:
    """Two repeated keys are two problems."""
    with pytest.raises(PlanError) as caught:
        load("a: 1\na: 2\nb: {c: 1, c: 2}")
    assert len(caught.value.problems) == 2


def test_files(tmp_path: Path) -> None:
    """Messages use the file's name; an unreadable or binary file gives a sentence."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("a: 1")
    bad.write_bytes(b"a: \xff\xfe")
    assert load(good).position(("a",)) == "good.yaml:1:4"
    with pytest.raises(PlanError, match=r"bad.yaml: the plan is not UTF-8 text"):
        load(bad)
    with pytest.raises(PlanError, match=r"none.yaml: the plan can't be read \(No such file"):
        load(tmp_path / "none.yaml")
