"""Goes back five records whenever a partition gets another leader.

The position is taken from an earlier note instead of the current state.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.rules.subscription_state import Position

BACK = 5


def plant() -> None:
    follow = Position.follow

    def follow_from_before(self, leader):
        moved = follow(self, leader)
        if moved:
            self.fetch = self.fetch._replace(offset=max(0, self.fetch.offset - BACK))
        return moved

    put(Position, "follow", follow_from_before)


BAD = KnownBad("leaders move", "integrity/duplicate", "records", plant)
