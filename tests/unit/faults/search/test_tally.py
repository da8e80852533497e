"""Tallies of the coverage ledger's lines."""

from dataclasses import replace
from datetime import date, timedelta

from aftershock.faults.search.coverage import STALE_AFTER, Cell, CoverageLine, matrix, tally_cells, uncovered_cells

TODAY = date(2026, 11, 22)
KILL = Cell("kill", "leader", "steady", "confluent produce acks=all")
CUT = Cell("cut", "rack", "recovering", "reference commit")
LINE = CoverageLine(TODAY, "r1", 7, 0, KILL, exercised=True, why="", verdict="PASS", recovered_s=3.5)


def test_never_stale_and_how_often() -> None:
    """Fourteen nights are fresh, fifteen are stale; a failed attempt doesn't exercise the cell."""
    old, edge = TODAY - STALE_AFTER - timedelta(days=1), TODAY - STALE_AFTER
    lines = [replace(LINE, night=old), replace(LINE, cell=CUT, exercised=False)]
    found = tally_cells(lines, TODAY)
    assert "STALE, 15 d" == found[KILL].word(TODAY)
    assert ("NEVER", 1) == (found[CUT].word(TODAY), found[CUT].tried)
    fresh = tally_cells([*lines, replace(LINE, night=edge)], TODAY)[KILL]
    assert ("2x, 14 d", 1) == (fresh.word(TODAY), fresh.fresh)


def test_the_matrix() -> None:
    """The matrix has a line for each kind, with all its roles; phases and workloads are summed."""
    late = KILL._replace(phase="recovering")
    cells, found = [KILL, late, CUT], tally_cells([LINE], TODAY)
    assert "cut   rack NEVER\nkill  leader 1x, 0 d" == matrix(cells, found, TODAY)
    assert {"NEVER": [CUT, late], "STALE": []} == uncovered_cells(cells, found, TODAY)
