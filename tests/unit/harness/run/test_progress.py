"""Progress display: correct figures, and names that are never read as markup."""

import io

from rich.console import Console

from aftershock.harness.run import progress
from aftershock.harness.run.progress import ArmStatus, Progress, Status, p99_ms, panel, status_line

ARMS = [ArmStatus("base", 100, 97, 3, 12.0), ArmStatus("[red]x", None, 5, 0, None)]
STATUS = Status("fault", 31.4, ["kill-1"], ARMS)


def test_p99_is_nearest_rank() -> None:
    """The p99 of 1…200 ms is the 198th value; of one value, that value; of an empty window, None."""
    assert 198.0 == p99_ms([ms * 1000 for ms in range(1, 201)])
    assert 5.0 == p99_ms([5000])
    assert p99_ms([]) is None


def test_the_plain_line_has_phase_fault_and_arms() -> None:
    """Without a terminal, one line shows the phase, the faults and the arms."""
    assert "   31 s  fault: kill-1  base 97/100 ok, p99 12 ms; [red]x 5 read, p99 -" == status_line(STATUS)


def test_names_are_not_markup() -> None:
    """An arm called [red]x is shown so, on the panel and in prose."""
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(panel(STATUS))
    Progress(console).log("arm [red]x failed \x1b[2J\x9b2J")
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    assert "None" not in shown
    assert 2 == shown.count("[red]x")
    assert "x failed ?[2J?2J\n" in shown  # an arm's name must not command the terminal


def test_without_clients_there_is_no_table() -> None:
    """An injection by hand has no clients: a headline without table."""
    status = Status("pause-1 witnessed", 2.0, ["3 s left"], ())
    assert "    2 s  pause-1 witnessed: 3 s left" == status_line(status)
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(panel(status))
    assert ["2 s  pause-1 witnessed: 3 s left"] == [
        line.strip()
        for line in console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is a StringIO
    ]


DAY = Status("fault", 4321.0, ["kill-1-of-a-rather-long-name"], ARMS, 82_079.0, (9, 72), (3_660.0, 1234.4), 283_422_000)


def test_the_outlook_of_a_day_fits_a_terminal() -> None:
    """Time left, faults so far, rows on the disk and the worst minute, within 80 columns."""
    worst = "worst minute: p99 1234 ms at 1:01:00"
    assert ["22:47:59 left, 9/72 faults, 283,422,000 rows on disk", worst] == DAY.outlook
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(panel(DAY))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is a StringIO
    assert all(len(line) <= 80 for line in lines)
    assert 6 == len(lines)


def test_the_plain_line_has_the_outlook() -> None:
    assert "rows on disk  worst minute: p99 1234 ms at 1:01:00  base 97/100 ok" in status_line(DAY)
    assert [] == STATUS.outlook


def test_plain_lines_come_once_a_minute_at_most() -> None:
    """A day without a terminal gives at most 1,440 lines."""
    assert progress._PLAIN_PERIOD_S >= 60
