"""What the README shows must work as shown."""

import re
from pathlib import Path

from aftershock.faults.check import load_plan
from aftershock.faults.kinds import KINDS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_plan_in_the_readme_is_valid() -> None:
    """A reader who copies it gets no complaint, and no warning."""
    (plan,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert () == load_plan(plan).warnings


def test_the_readme_lists_every_kind() -> None:
    """The table of faults is the catalogue."""
    assert set(KINDS) == set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
