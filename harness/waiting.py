"""Waiting for what somebody else must bring about: asked again and again, with a deadline."""

import time
from collections.abc import Callable

_PERIOD_S = 0.1


def still_lacking(lacking: Callable[[], str], deadline_s: float) -> str:
    """Ask what is lacking until it is nothing (""), or ``deadline_s`` have passed; gives what is lacking then."""
    give_up_s = time.monotonic() + deadline_s
    while missing := lacking():
        if time.monotonic() > give_up_s:
            return missing
        time.sleep(_PERIOD_S)
    return ""
