"""What a known-bad client is: the reference client with one defect, and the check that has to see it.

A module of ``clients`` is one: its name is that of its arm in the plans, its first line says what it does, the rest of
its docstring which bug of the world it is like, and ``BAD`` the rest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

_CLIENTS = "aftershock.tests.chaos.known_bad.clients"
_HOME = Path(__file__).parent


@dataclass(frozen=True)
class KnownBad:
    """``plant`` puts the defect into this process.

    ``fault`` is what brings it out, in words; ``caught`` the check that must FAIL, with ``says`` in its reason;
    ``also`` may, for the same cause.
    """

    fault: str
    caught: str
    says: str
    plant: Callable[[], None]
    also: frozenset[str] = frozenset()
    what: str = ""


def put(owner: object, name: str, new: object) -> None:
    """``new`` in the place of what ``owner`` has by that name; AttributeError where it has nothing: a stale defect."""
    getattr(owner, name)
    setattr(owner, name, new)


@cache
def known_bad() -> Mapping[str, KnownBad]:
    """All of them, by the names of their arms."""
    return {name: _read(name) for name in sorted(module.name for module in iter_modules([str(_HOME / "clients")]))}


def plan(name: str) -> Path:
    """The plan that brings some of them out."""
    return _HOME / f"{name}.yaml"


def plant(arm: str) -> None:
    """Put the defect that an arm is named for into this process; none into one that is named for none."""
    if (_HOME / "clients" / f"{arm}.py").exists():
        _read(arm).plant()


def _read(name: str) -> KnownBad:
    module = import_module(f"{_CLIENTS}.{name}")
    bad: KnownBad = module.BAD
    return KnownBad(**{**vars(bad), "what": str(module.__doc__).partition("\n")[0]})
