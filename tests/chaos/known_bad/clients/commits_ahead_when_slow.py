"""Commits the records of a poll before they are processed while its coordinator is slow.

It saves the time of the response, and has processed the records when the response comes. A client that dies in
between loses them.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.commit_request_manager import AutoCommit, CommittedOffsets
from aftershock.workloads.kafka.consumer.consumer import Consumer

SLOW_US = 300_000


def plant() -> None:
    commit, polled, poll = CommittedOffsets.commit, AutoCommit.polled, Consumer.poll
    took_us = [0]

    async def commit_and_time(self, offsets, **details):
        receipt = await commit(self, offsets, **details)
        took_us[0] = receipt.took_us if receipt else 0
        return receipt

    def polled_unless_slow(self, now_ms):
        if took_us[0] < SLOW_US:
            polled(self, now_ms)

    async def poll_and_commit(self, timeout_ms):
        batches = await poll(self, timeout_ms)
        if batches and took_us[0] >= SLOW_US and not self._group._partitions.commits._tasks:
            self._group._partitions.commits.begin()
        return batches

    put(CommittedOffsets, "commit", commit_and_time)
    put(AutoCommit, "polled", polled_unless_slow)
    put(Consumer, "poll", poll_and_commit)


BAD = KnownBad("answers to OffsetCommit are late", "integrity/commit_ahead", "commits", plant)
