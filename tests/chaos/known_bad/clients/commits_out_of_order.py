"""Repeats a commit with a lost response after newer commits were sent.

Each commit is retried on its own, whatever was committed meanwhile (KAFKA-5731: commits that overtook each other).
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.commit_request_manager import RETRIED_CODES, AutoCommit, CommittedOffsets


def plant() -> None:
    async def commit(self, offsets, **_):
        return await self._until_done(lambda: self._commit(offsets, RETRIED_CODES)) if offsets else None

    def polled(self, now_ms):
        if self._due_ms is None or now_ms >= self._due_ms:
            self._due_ms = now_ms + self._interval_ms
            self.begin()

    put(CommittedOffsets, "commit", commit)
    put(AutoCommit, "polled", polled)


BAD = KnownBad("answers to OffsetCommit are lost", "integrity/backward", "committed positions", plant)
