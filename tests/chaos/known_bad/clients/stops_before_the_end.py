"""Fetches nothing more from eight seconds after a change of leaders on.

A background task that ended with the change, whose result is needed later. The last fault is over by then, and
nothing but the end of the run follows.
"""

from math import inf

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.fetcher import Fetcher
from aftershock.workloads.kafka.rules.subscription_state import Position

LASTS_MS = 8_000.0


def plant() -> None:
    follow, step = Position.follow, Fetcher.step
    moved, stops_at_ms = [], []

    def follow_and_note(self, leader):
        has_moved = follow(self, leader)
        moved.extend([leader] * has_moved)
        return has_moved

    def step_or_stop(self, now_ms):
        if moved and not stops_at_ms:
            stops_at_ms.append(now_ms + LASTS_MS)
        return inf if stops_at_ms and now_ms > stops_at_ms[0] else step(self, now_ms)

    put(Position, "follow", follow_and_note)
    put(Fetcher, "step", step_or_stop)


BAD = KnownBad("leaders moved", "obligation/consume", "the longest stall", plant, also=frozenset({"integrity/lost"}))
