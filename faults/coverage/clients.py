"""The night's matrix: fault x client, how it went and how long recovery took. Markdown, for a step summary.

Of each pair counts what is not stale: the worst verdict, and the median time until the client was calm again with the
number of runs behind it. A pair that was not exercised in these nights says so.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from statistics import median

from aftershock.faults.coverage.cell import Cell
from aftershock.faults.coverage.line import Line
from aftershock.faults.coverage.matrix import missing
from aftershock.faults.coverage.tally import STALE_AFTER, tallies

_SHOWN = 10


def summary(cells: Sequence[Cell], lines: Sequence[Line], today: date) -> str:
    """The matrix of all cells that there are, and which of them lack evidence; a newline at its end."""
    clients = sorted({_client(cell) for cell in cells})
    faults = list(dict.fromkeys(cell.fault for cell in sorted(cells)))
    rows = [[f"`{fault}`", *(_pair(lines, fault, client, today) for client in clients)] for fault in faults]
    table = [["fault", *clients], ["---"] * (len(clients) + 1), *rows]
    drawn = "".join(f"| {' | '.join(row)} |\n" for row in table)
    return f"{drawn}\n{_lacking(cells, lines, today)}"


def _client(cell: Cell) -> str:
    return cell.workload.partition(" ")[0]


def _pair(lines: Iterable[Line], fault: str, client: str, today: date) -> str:
    of_it = [line for line in lines if line.exercised and (line.cell.fault, _client(line.cell)) == (fault, client)]
    fresh = [line for line in of_it if today - line.night <= STALE_AFTER]
    if not fresh:
        return "STALE" if of_it else "NEVER"
    verdict = "FAIL" if any(line.verdict == "FAIL" for line in fresh) else "PASS"
    by_run = {line.run_id: line.recovered_s for line in fresh if line.recovered_s is not None}
    return (
        f"{verdict}, {median(by_run.values()):.1f} s (n={len(by_run)})" if by_run else f"{verdict}, recovery not seen"
    )


def _lacking(cells: Sequence[Cell], lines: Sequence[Line], today: date) -> str:
    found = missing(cells, tallies(lines, today), today)
    told = [f"{len(cells)} cells of fault, role, phase and workload"]
    told += [f"{len(of_it)} {word}{_some(of_it)}" for word, of_it in found.items() if of_it]
    return "; ".join(told) + ".\n"


def _some(cells: Sequence[Cell]) -> str:
    shown = ", ".join(" / ".join(cell) for cell in cells[:_SHOWN])
    return f" ({shown}{', …' if len(cells) > _SHOWN else ''})"
