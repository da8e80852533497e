"""How a shell tells what happens to it: an event's name and its details, for ``events.jsonl``."""

from typing import Protocol


class Tell(Protocol):
    """Called on the loop's thread; must not wait and must not raise."""

    def __call__(self, event: str, **details: object) -> None:
        """``event`` happened now. Details are JSON's own types."""
