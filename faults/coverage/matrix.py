"""The coverage as text: a line a kind, with each role that it can hit, how often it did and how long ago.

::

    kill      controller NEVER · follower 2x, 1 d · leader 3x, 0 d
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from aftershock.faults.coverage.cell import Cell
from aftershock.faults.coverage.tally import NOTHING, Tally, together


def matrix(cells: Iterable[Cell], tallies: Mapping[Cell, Tally], today: date) -> str:
    """Of all cells that there are, phases and workloads taken together; without a newline at the end."""
    by_fault: dict[str, dict[str, list[Tally]]] = {}
    for cell in sorted(cells):
        by_fault.setdefault(cell.fault, {}).setdefault(cell.role, []).append(tallies.get(cell, NOTHING))
    width = max(map(len, by_fault), default=0)
    return "\n".join(f"{fault:<{width}}  {_row(roles, today)}" for fault, roles in by_fault.items())


def _row(roles: Mapping[str, Sequence[Tally]], today: date) -> str:
    return " · ".join(f"{role} {together(of_it).word(today)}" for role, of_it in roles.items())


def missing(cells: Iterable[Cell], tallies: Mapping[Cell, Tally], today: date) -> dict[str, list[Cell]]:
    """The cells that were never exercised, and those whose evidence is stale: by ``NEVER`` and ``STALE``."""
    found: dict[str, list[Cell]] = {"NEVER": [], "STALE": []}
    for cell in sorted(cells):
        word = tallies.get(cell, NOTHING).word(today).partition(",")[0]
        if word in found:
            found[word].append(cell)
    return found
