"""An answer's rows as text: a table for people, JSON or CSV for programs. Rows are taken one by one, never all at once.

A table needs to know its widest cells, so it shows the first thousand rows and says so.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

TABLE_ROWS_MAX = 1000
CELL_MAX = 80


def as_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Lines of a table with its head; numbers stand to the right, null is left empty."""
    shown = list(islice(iter(rows), TABLE_ROWS_MAX + 1))
    cells = [[_cell(value) for value in row] for row in shown[:TABLE_ROWS_MAX]]
    widths = [max(len(cell) for cell in column) for column in zip(names, *cells, strict=True)]
    yield "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip()
    yield "  ".join("-" * width for width in widths)
    for row, texts in zip(shown, cells, strict=False):
        yield "  ".join(map(_aligned, row, texts, widths)).rstrip()
    if len(shown) > TABLE_ROWS_MAX:
        yield f"… the first {TABLE_ROWS_MAX} rows; --csv or --json gives all"


def as_json(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Lines of a JSON array, an object a row."""
    before = "["
    for row in rows:
        yield before + json.dumps(dict(zip(names, map(_plain, row), strict=True)), default=str)
        before = ","
    yield "]" if before == "," else "[]"


def as_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Lines of CSV with a head; null is an empty field, an array is JSON."""
    yield _csv_line(names)
    for row in rows:
        yield _csv_line([_text(value) for value in row])


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def _aligned(value: Any, text: str, width: int) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return text.rjust(width) if number else text.ljust(width)


def _cell(value: Any) -> str:
    text = " ".join(_text(value).split())
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def _text(value: Any) -> str:
    if value is None:
        return ""
    plain = _plain(value)
    return json.dumps(plain, default=str) if isinstance(plain, (list, dict)) else str(value)


def _plain(value: Any) -> Any:
    """Spark's rows as objects, its arrays and maps as they are, down to the last."""
    if hasattr(value, "asDict"):
        return {name: _plain(part) for name, part in value.asDict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return {str(key): _plain(part) for key, part in value.items()} if isinstance(value, dict) else value
