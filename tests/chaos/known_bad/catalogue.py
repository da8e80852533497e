"""Known-bad clients: the reference client, or an application of confluent-kafka, with one defect; and the check that
must detect it.

Each module of ``clients`` is one client: its name is the name of its arm in the plans, the first line of its
docstring describes the defect, the rest of the docstring names a real bug like it, and ``BAD`` has the other fields.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

_CLIENTS = "aftershock.tests.chaos.known_bad.clients"
_HOME = Path(__file__).parent
OF_TWO_OWNERS = frozenset(
    {f"integrity/{name}" for name in ("backward", "co_owned", "commit_behind", "duplicate", "fenced", "order")}
)
"""Checks that may fail when two members of a group process one partition."""


@dataclass(frozen=True)
class KnownBad:
    """``plant`` puts the defect into this process.

    ``fault`` describes what triggers the defect; ``caught`` is the check that must FAIL, with ``says`` in its
    reason; the checks in ``also`` may fail for the same cause.
    """

    fault: str
    caught: str
    says: str
    plant: Callable[[], None]
    also: frozenset[str] = frozenset()
    what: str = ""


def put(owner: object, name: str, new: object) -> None:
    """Replace the attribute ``name`` of ``owner`` by ``new``; AttributeError if it doesn't exist, since the defect
    is then stale.
    """
    getattr(owner, name)
    setattr(owner, name, new)


@cache
def known_bad() -> Mapping[str, KnownBad]:
    """Return all known-bad clients by the names of their arms."""
    return {name: _read(name) for name in sorted(module.name for module in iter_modules([str(_HOME / "clients")]))}


def plan(name: str) -> Path:
    """Return the plan that triggers some of the defects."""
    return _HOME / f"{name}.yaml"


def plant(arm: str) -> None:
    """Plant the defect that an arm is named for in this process; an arm with another name gets none."""
    if (_HOME / "clients" / f"{arm}.py").exists():
        _read(arm).plant()


def _read(name: str) -> KnownBad:
    module = import_module(f"{_CLIENTS}.{name}")
    bad: KnownBad = module.BAD
    return KnownBad(**{**vars(bad), "what": str(module.__doc__).partition("\n")[0]})
