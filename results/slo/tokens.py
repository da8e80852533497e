"""The words of one text with their columns, and the error that says where it stopped making sense."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

_TOKEN = re.compile(
    r"\s*(?:(?P<token><=|>=|==|[<>()*]|[0-9]+(?:\.[0-9]+)?\s+(?:us|ms|s|%)(?![A-Za-z0-9_.-])|[A-Za-z0-9_./%-]+)"
    r"|(?P<bad>\S))"
)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class SloSyntaxError(ValueError):
    """The text is not an SLO. ``column`` (from 1) is where in the text it stopped making sense."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


class Tokens:
    """The tokens of one text, taken one at a time. A number and its unit are one token, whatever stands between."""

    def __init__(self, text: str) -> None:
        self._length = len(text.rstrip())
        self._tokens = _split(text)
        self._next = 0

    @property
    def column(self) -> int:
        """Where the next token begins; just after the text at its end."""
        return self._tokens[self._next][1] if self._next < len(self._tokens) else self._length + 1

    def peek(self, ahead: int = 0) -> str:
        """The next token, or the one ``ahead`` of it; an empty string after the end."""
        place = self._next + ahead
        return self._tokens[place][0] if place < len(self._tokens) else ""

    def take(self) -> str:
        """The next token, which is passed."""
        token = self.peek()
        self._next += 1
        return token

    def fail(self, message: str, column: int | None = None) -> NoReturn:
        """Raises SloSyntaxError at the next token, or at ``column``."""
        raise SloSyntaxError(message, column or self.column)

    def one_of(self, words: Sequence[str], what: str) -> str:
        """The next token, which must be one of ``words``; the error names the nearest."""
        if self.peek() not in words:
            near = get_close_matches(self.peek(), words, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"write {' or '.join(words)}"
            self.fail(f"{what} expected, {self.seen()}; {hint}")
        return self.take()

    def accept(self, word: str) -> bool:
        """Whether the next token is ``word``, which then is passed."""
        accepted = self.peek() == word
        self._next += accepted
        return accepted

    def name(self, what: str) -> str:
        """The next token, which must be a name."""
        if not is_name(self.peek()):
            self.fail(f"the name of {what} expected, {self.seen()}")
        return self.take()

    def seen(self) -> str:
        """What stands here, for an error."""
        return f"got {self.peek()!r}" if self.peek() else "but the text ends here"


def is_name(token: str) -> bool:
    """Whether it can be the name of an arm or a fault."""
    return bool(_NAME.fullmatch(token))


def _split(text: str) -> list[tuple[str, int]]:
    found = list(_TOKEN.finditer(text))
    bad = next((token for token in found if token["bad"]), None)
    if bad:
        raise SloSyntaxError(f"unexpected {bad['bad']!r} in an SLO; take it out", bad.start("bad") + 1)
    return [("".join(token["token"].split()), token.start("token") + 1) for token in found]
