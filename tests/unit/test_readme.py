"""The examples in the README and on the page of clients are valid."""

import re
from pathlib import Path

from aftershock.faults.plan.check import load_plan

ROOT = Path(__file__).parents[2]
YAML = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
(PLAN,) = YAML.findall((ROOT / "README.md").read_text(encoding="utf-8"))
ARMS = YAML.findall((ROOT / "docs" / "CLIENTS.md").read_text(encoding="utf-8"))[0]


def test_the_plan_in_the_readme_is_valid() -> None:
    """The plan passes the check without warnings."""
    assert () == load_plan(PLAN).warnings


def test_the_arms_on_the_page_of_clients_are_valid() -> None:
    """The plan with these arms passes the check."""
    arms = "".join(f"    {line}\n" for line in ARMS.splitlines())
    named = PLAN.replace("for tuned", "for hints")
    assert () == load_plan(re.sub(r"    arms:.*?(?=timing:)", lambda _: arms, named, flags=re.DOTALL)).warnings
