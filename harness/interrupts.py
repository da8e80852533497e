"""Ctrl-C where half the work would be none: it waits until the clean-up is through."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed(say: Callable[[str], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block is left; they are answered by a word."""

    def answer(*_: object) -> None:
        say("still cleaning up; a few seconds more")

    before = {number: signal.signal(number, answer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
