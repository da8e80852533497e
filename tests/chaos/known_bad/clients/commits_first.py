"""Commits the records of a poll before they are processed.

A client that dies in between loses them (librdkafka#4534 reports offsets that are stored before the application is
done).
"""

import asyncio

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters.reference import POLL_MS, ReferenceConsumer

WORK_S = 0.05


def plant() -> None:
    async def commit_and_read(self):
        while True:
            batches = await self._consumer.poll(POLL_MS)
            if batches:
                await self._consumer._group._partitions.commits.finish()
                await asyncio.sleep(WORK_S)
            for fetched in batches:
                await self._take(fetched)
            self._receiving.idle()

    put(ReferenceConsumer, "_read", commit_and_read)


BAD = KnownBad("none is needed", "integrity/commit_ahead", "commits", plant)
