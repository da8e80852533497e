"""The verdict as GitHub's workflow commands: each check that did not pass, on the line of the plan that asked for it.

Rules: FAIL and ERROR are errors, INCONCLUSIVE is a warning, what is only watched a notice; the worst come first, for
GitHub shows ten of each kind a step. Values are escaped as `actions/toolkit` does, so that no name of a plan can end a
command and begin another.
"""

import re

from aftershock.results.check import Check, Status
from aftershock.results.shown import details, printable, status, troubled
from aftershock.results.verdict import Verdict

# `demo.yaml:21:5` is a place in the plan, `tests/test_x.py:12` one in a test, whose name is a path already
_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?")


def annotations(verdict: Verdict, plan_path: str | None) -> list[str]:
    """One line for standard output a check; ``plan_path`` is the plan's file, relative to the repository's root.

    Without it (a plan that ships with us) the commands name no file, and GitHub shows them with the step.
    """
    return [_command(check, plan_path) for check in troubled(verdict)]


def _command(check: Check, plan_path: str | None) -> str:
    properties = _place(check.at, plan_path) | {"title": f"{status(check)} {check.id} ({check.subject})"}
    told = ",".join(f"{key}={_property(printable(value))}" for key, value in properties.items())
    message = "\n".join([printable(check.why), *(f"{key}: {printable(value)}" for key, value in details(check))])
    return f"::{_level(check)} {told}::{_data(message)}"


def _level(check: Check) -> str:
    if not check.gate:
        return "notice"
    return "warning" if check.status is Status.INCONCLUSIVE else "error"


def _place(at: str | None, plan_path: str | None) -> dict[str, str]:
    """Checks that no line asked for (integrity, witnesses) belong to the plan as a whole."""
    found = _PLACE.fullmatch(at or "")
    if found and found["column"] is None:
        return {"file": found["file"], "line": found["line"]}
    if plan_path is None:
        return {}
    return {"file": plan_path} | ({"line": found["line"], "col": found["column"]} if found else {})


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
