"""The clock of the shells: what the rules are told as ``now_ms``."""

from time import monotonic


def monotonic_ms() -> float:
    """Milliseconds of the monotonic clock, which is also the event loop's."""
    return monotonic() * 1000
