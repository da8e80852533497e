"""The examples in the README are valid."""

import re
from pathlib import Path

from aftershock.faults.plan.check import load_plan

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PLAN, ARMS = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)


def test_the_plan_in_the_readme_is_valid() -> None:
    """The plan passes the check without warnings."""
    assert () == load_plan(PLAN).warnings


def test_the_arms_in_the_readme_are_valid() -> None:
    """The plan with these arms passes the check."""
    arms = "".join(f"    {line}\n" for line in ARMS.splitlines())
    named = PLAN.replace("for tuned", "for hints")
    assert () == load_plan(re.sub(r"    arms:.*?(?=timing:)", lambda _: arms, named, flags=re.DOTALL)).warnings
