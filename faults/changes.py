"""Changes to a plan from the command line: ``--set timing.steady=5s``, applied before the plan is checked.

A key is a path of names joined by dots; an entry of a list is named by its ``id``, its ``name`` or its index. Below
``config`` and ``settings`` the rest is one key, as Kafka's own names have dots. The value is YAML, as in the plan.
"""

from collections.abc import Iterable
from typing import Any

from aftershock.errors import PlanError
from aftershock.faults.document import Document, Loc, load

_DOTTED = ("config", "settings")


def apply_changes(document: Document, changes: Iterable[str]) -> None:
    """Change the document's data in place. Raises PlanError with every change that can't be understood."""
    problems: list[str] = []
    for change in changes:
        try:
            _apply(document, change)
        except PlanError as error:
            problems += error.problems
    if problems:
        raise PlanError(problems)


def _apply(document: Document, change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise PlanError([f"--set {change}: write KEY=VALUE, like timing.steady=5s or workloads.0.produce.rate=80/s"])
    value = load(f"value: {text}", f"--set {key}").data["value"]
    steps = _steps(key)
    loc: Loc = ()
    here: Any = document.data
    for step in steps[:-1]:
        found = _found(here, step, change)
        if isinstance(here, dict):
            here.setdefault(found, {})
        loc, here = (*loc, found), here[found]
    last = _found(here, steps[-1], change)
    here[last] = value
    document.moved((*loc, last), f"--set {key}")


def _steps(key: str) -> list[str]:
    steps = key.split(".")
    dotted = next((place for place, step in enumerate(steps) if step in _DOTTED), len(steps)) + 1
    return [*steps[:dotted], *([".".join(steps[dotted:])] if steps[dotted:] else [])]


def _found(here: Any, step: str, change: str) -> str | int:
    """The key or index that ``step`` names here."""
    if isinstance(here, dict):
        return step
    if isinstance(here, list):
        named = (i for i, it in enumerate(here) if isinstance(it, dict) and step in (it.get("id"), it.get("name")))
        index = next(named, int(step) if step.isdecimal() and int(step) < len(here) else None)
        if index is not None:
            return index
    raise PlanError(
        [f"--set {change}: the plan has nothing called `{step}` there; say a key, an id, a name or an index"]
    )
