"""Where evidence is read from: the documents and the Parquet files of one run, by their names in its directory.

Rules: a name is ``run.json`` or ``outcomes/part-0.parquet``; whoever reads knows no path. What is broken is an
EvidenceError that calls the file by its whole name.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results import files

Part = Path | str
"""A Parquet file as Spark is told of it: a path here, or a URI of any Hadoop filesystem."""


class Source(ABC):
    """One run's evidence. What lies elsewhere than in a folder is read in ``results/spark/remote.py``."""

    @abstractmethod
    def where(self, name: str) -> str:
        """The whole name of a file, for people."""

    @abstractmethod
    def content(self, name: str) -> bytes | None:
        """A document's bytes, None where there is none."""

    @abstractmethod
    def found(self) -> list[str]:
        """The names of all Parquet files, in order; drafts, which begin with a dot or an underscore, are none."""

    @abstractmethod
    def part(self, name: str, columns: Mapping[str, str], required: Collection[str]) -> Part:
        """The Parquet file of that name, its columns checked (``files.check_columns``)."""

    def json(self, name: str) -> Any:
        """A document that must be there."""
        content = self.content(name)
        if content is None:
            raise files.missing(self.where(name))
        return files.document(self.where(name), content)

    def object(self, name: str) -> dict[str, Any]:
        """A document that must be there, and an object."""
        return files.as_object(self.where(name), self.json(name))

    def has(self, name: str) -> bool:
        """Whether there is such a document."""
        return self.content(name) is not None

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The lines of a JSONL document, none where there is no document; a torn last line is left out."""
        return files.lines(self.where(name), self.content(name) or b"")

    def whole_lines(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        """The lines of a JSONL document with their numbers; a torn one is an error."""
        return files.whole_lines(self.where(name), self.content(name) or b"")


class Folder(Source):
    """A run directory on this host."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def where(self, name: str) -> str:
        """Its path."""
        return str(self._home / name)

    def content(self, name: str) -> bytes | None:
        """The file's bytes."""
        try:
            return (self._home / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as broken:
            why = f"{self.where(name)}: not readable ({broken}); restore the file or run the plan again"
            raise EvidenceError(why) from broken

    def found(self) -> list[str]:
        """By looking into the folders."""
        return sorted(path.relative_to(self._home).as_posix() for path in self._home.glob("[!._]*/[!._]*.parquet"))

    def part(self, name: str, columns: Mapping[str, str], required: Collection[str]) -> Part:
        """Checked by its footer."""
        files.check_parquet(self._home / name, columns, required)
        return self._home / name
