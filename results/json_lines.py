"""Files of JSON lines that only grow: a ledger in git, say, where merges join lines.

Rules: what is added is added in one write, after a torn last line on a line of its own. A line that can't be read is
named and left out; the others count.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from aftershock.errors import EvidenceError

T = TypeVar("T")


def read(
    path: Path, parsed: Callable[[dict[str, Any]], T], version: int, what: str, option: str
) -> tuple[list[T], list[str]]:
    """What could be read, and a sentence for each line that could not; nothing where there is no file yet.

    ``parsed`` raises ValueError, KeyError or TypeError for a line that is none of ``what``, ``version`` is the schema's
    that it knows; ``option`` names the file on the command line. Raises EvidenceError where the file can't be read.
    """
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as refused:
        raise EvidenceError(f"{path}: can't be read ({refused.strerror}); name another {option}") from refused
    lines, broken = [], []
    for number, text in enumerate(content.split(b"\n"), 1):
        try:
            lines += [parsed(_object(text, version))] if text.strip() else []
        except (ValueError, KeyError, TypeError) as wrong:
            why = f"{wrong} is missing" if isinstance(wrong, KeyError) else str(wrong)
            broken.append(f"{path}:{number}: not a line of {what} ({why}); mend it or take it out")
    return lines, broken


def append(path: Path, lines: Iterable[str], option: str) -> None:
    """Add lines, made of JSON without newlines. Raises EvidenceError where that can't be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * torn + "".join(f"{line}\n" for line in lines))
    except OSError as refused:
        raise EvidenceError(f"{path}: can't be written ({refused.strerror}); name another {option}") from refused


def _object(text: bytes, version: int) -> dict[str, Any]:
    said = json.loads(text)
    if not isinstance(said, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 -- a line that can't be read, like any other
    if said["schema_version"] != version:
        raise ValueError(f"schema version {said['schema_version']} is unknown here; upgrade Aftershock")
    return said
