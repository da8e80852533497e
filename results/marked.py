"""Markdown that a stranger's names can't break: cells and tables."""

from collections.abc import Iterable, Iterator, Sequence

from aftershock.results.shown import printable


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield _line(head)
    yield _line(["---"] * len(head))
    yield from map(_line, rows)


def cell(text: str) -> str:
    """A name from a plan must neither end a cell nor become markup."""
    for special in "\\`*_[]<>|":
        text = text.replace(special, f"\\{special}")
    return printable(text)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(cell, cells))} |\n"
