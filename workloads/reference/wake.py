"""A sleeper that anything may wake."""

import asyncio
import math


class Wake:
    """Calling it wakes whoever waits, or the next who will: nothing that happened before the wait is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self) -> None:
        """Wake."""
        self._event.set()

    async def wait(self, timeout_ms: float) -> None:
        """Until woken, at most ``timeout_ms`` (infinite: for as long as it takes). For one waiter at a time."""
        try:
            async with asyncio.timeout(None if timeout_ms == math.inf else timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()
