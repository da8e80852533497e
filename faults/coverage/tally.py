"""How often each cell was exercised, and how long ago: what is drawn next hangs on it, and what is reported."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from aftershock.faults.coverage.cell import Cell
from aftershock.faults.coverage.line import Line

STALE_AFTER = timedelta(days=14)


@dataclass(frozen=True)
class Tally:
    """Of one cell. ``exercised``: in how many runs, of those that are not stale ``fresh``; ``tried``: in vain."""

    exercised: int = 0
    fresh: int = 0
    tried: int = 0
    latest: date | None = None

    def word(self, today: date) -> str:
        """``NEVER``, ``STALE``, or how often and how long ago: ``3x, 2 d``."""
        if self.latest is None:
            return "NEVER"
        if not self.fresh:
            return f"STALE, {(today - self.latest).days} d"
        return f"{self.exercised}x, {(today - self.latest).days} d"


NOTHING = Tally()


def tallies(lines: Iterable[Line], today: date) -> Mapping[Cell, Tally]:
    """Of every cell that the ledger knows. Attempts in vain count for as long as what was exercised."""
    found: dict[Cell, list[Line]] = {}
    for line in lines:
        found.setdefault(line.cell, []).append(line)
    return {cell: _tally(of_it, today) for cell, of_it in found.items()}


def _tally(lines: list[Line], today: date) -> Tally:
    nights = [line.night for line in lines if line.exercised]
    fresh = sum(today - night <= STALE_AFTER for night in nights)
    tried = sum(not line.exercised and today - line.night <= STALE_AFTER for line in lines)
    return Tally(len(nights), fresh, tried, max(nights, default=None))


def together(tallies: Iterable[Tally]) -> Tally:
    """Of several cells, as one."""
    listed = list(tallies)
    latest = max((each.latest for each in listed if each.latest), default=None)
    exercised, fresh, tried = (sum(getattr(each, name) for each in listed) for name in ("exercised", "fresh", "tried"))
    return Tally(exercised, fresh, tried, latest)
