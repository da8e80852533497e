"""Asking until there is an answer: what a connection or a broken answer costs is a back-off, never the question."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from aftershock.errors import ProtocolError
from aftershock.workloads.rules.backoff import Backoff

A = TypeVar("A")


async def until_answered(attempt: Callable[[], Awaitable[A]], backoff: Backoff) -> A:
    """What ``attempt`` gives, tried again after a back-off for as long as it raises OSError or ProtocolError."""
    failures = count()
    while True:
        try:
            return await attempt()
        except (OSError, ProtocolError):
            await asyncio.sleep(backoff.ms(next(failures)) / 1000)
