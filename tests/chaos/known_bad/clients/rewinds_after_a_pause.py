"""Resets its positions to the last committed offsets after its process stood still.

It reports the resets, as a client must. But it has kept its partitions, and no position was out of range: at-least-once
lets a member begin at the last commit only with a new assignment.
"""

import time

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.commit_request_manager import CommittedOffsets
from aftershock.workloads.kafka.consumer.consumer import Consumer
from aftershock.workloads.kafka.rules.subscription_state import FetchPosition

STOOD_STILL_S = 1.5


def plant() -> None:
    commit, poll = CommittedOffsets.commit, Consumer.poll
    last, polled_s = {}, []

    async def commit_and_note(self, offsets, **details):
        receipt = await commit(self, offsets, **details)
        last.update(offsets)
        return receipt

    async def rewind_and_poll(self, timeout_ms):
        now_s = time.monotonic()
        if polled_s and now_s - polled_s[0] > STOOD_STILL_S:
            for tp, committed in last.items():
                leader = self._shared.metadata.leader(tp)
                reset_from = self._shared.positions.position(tp)
                self._shared.positions.seek(tp, FetchPosition(committed.offset, leader=leader))
                details = {"topic": tp.topic, "partition": tp.partition, "offset": reset_from.offset}
                self._shared.on_event("position_reset", **details)
        polled_s[:] = [now_s]
        return await poll(self, timeout_ms)

    put(CommittedOffsets, "commit", commit_and_note)
    put(Consumer, "poll", rewind_and_poll)


BAD = KnownBad("a member stands still for less than its session", "integrity/duplicate", "records", plant)
