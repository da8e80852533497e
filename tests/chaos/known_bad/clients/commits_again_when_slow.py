"""Commits the offsets of a slow commit again a second later, after newer offsets, and tells nobody.

It takes a late response for a lost one. A commit in flight on a connection that ended may reach the coordinator late;
no connection ended here, and the coordinator is the same.
"""

import asyncio
import time

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.commit_request_manager import AutoCommit

SLOW_S, LATER_S = 0.3, 1.0


def plant() -> None:
    commit, repeats = AutoCommit._commit, set()

    async def repeat(self, offsets):
        await asyncio.sleep(LATER_S)
        await self._store.commit(offsets)

    async def commit_and_repeat(self, offsets, *, before_revocation):
        began_s = time.monotonic()
        await commit(self, offsets, before_revocation=before_revocation)
        if time.monotonic() - began_s > SLOW_S:
            again = asyncio.create_task(repeat(self, offsets))
            repeats.add(again)
            again.add_done_callback(repeats.discard)

    put(AutoCommit, "_commit", commit_and_repeat)


BAD = KnownBad(
    "answers to OffsetCommit are late", "integrity/backward", "commits", plant, also=frozenset({"integrity/lost"})
)
