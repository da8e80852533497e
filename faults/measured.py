"""What faults were measured to do, for the page of the catalogue: tables that the benches write beside this file.

Figures are of one host and one day, and say so. ``make bench`` takes them again, ``make docs`` puts them on the page.
"""

import json
import os
import platform
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

NAME = "measured.json"


def keep(section: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes a section's table in the place of the one before, with the day and the host."""
    path = Path(__file__).with_name(NAME)
    where = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {datetime.now(UTC).date()}"
    kept = _kept() | {section: {"measured": where, "columns": [*columns], "rows": [[*row] for row in rows]}}
    path.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", encoding="utf-8")


def tables() -> Iterator[str]:
    """The sections as Markdown."""
    for title, table in _kept().items():
        columns = table["columns"]
        yield f"### {title}\n\n{table['measured']}.\n\n"
        yield from (f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *table["rows"]))
        yield "\n"


def _kept() -> dict[str, Any]:
    found = resources.files(__package__).joinpath(NAME)
    return dict(json.loads(found.read_text(encoding="utf-8"))) if found.is_file() else {}
