"""Something that happened at a moment of the run, in words."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Moment:
    """``who`` is the client it is told of, None for the run and its faults."""

    at_us: int
    text: str
    who: str | None = None

    @property
    def said(self) -> str:
        """The text, with whose it is."""
        return f"{self.who}: {self.text}" if self.who else self.text
