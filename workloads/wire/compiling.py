"""Functions that are written by a program: what ``dataclasses`` does for ``__init__``, for our encoder and decoder.

A message has a few dozen fields and a run has millions of messages. Straight-line code for each struct costs a third of
a loop over its fields. Only kio's class definitions get into the text, never a byte of a message.
"""

from collections.abc import Callable
from typing import Any


class Function:
    """A function in the making: its lines, and the objects that they speak of."""

    def __init__(self, head: str) -> None:
        self._lines = [f"def function{head}:"]
        self._names: dict[str, Any] = {}

    def bind(self, thing: object) -> str:
        """A name for ``thing`` that lines may use."""
        name = f"_{len(self._names)}"
        self._names[name] = thing
        return name

    def add(self, *lines: str) -> None:
        """Append lines of the body, indented against its first."""
        self._lines += (f"    {line}" for line in lines)

    def made(self) -> Callable[..., Any]:
        """The function itself."""
        made: dict[str, Any] = {}
        exec("\n".join(self._lines), self._names, made)  # noqa: S102  # our own text: see above
        function: Callable[..., Any] = made["function"]
        return function
