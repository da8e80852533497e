"""Pauses all partitions at a rebalance and resumes the new ones only.

Under an incremental protocol a rebalance assigns the difference, so partitions that the member keeps stay paused for
good.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters import confluent


class _Pausing(confluent.Consumer):
    """Consumer that pauses what it has in each callback of a rebalance, and resumes what the callback names."""

    def subscribe(self, topics, *, on_assign, on_revoke, on_lost):
        def pause_and_revoke(consumer, partitions):
            consumer.pause(consumer.assignment())
            on_revoke(consumer, partitions)

        def resume_and_assign(consumer, partitions):
            consumer.pause(consumer.assignment())
            consumer.incremental_assign(partitions)
            consumer.resume(partitions)
            on_assign(consumer, partitions)

        super().subscribe(topics, on_assign=resume_and_assign, on_revoke=pause_and_revoke, on_lost=on_lost)


def plant() -> None:
    put(confluent, "Consumer", _Pausing)


# what waits for a member that stands still is lost
BAD = KnownBad(
    "members leave and return", "obligation/consume", "the longest stall", plant, also=frozenset({"integrity/lost"})
)
