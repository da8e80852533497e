"""Commits the position of the consumer instead of the records that it has processed.

The position is one past the record that the application is still working on: a Java consumer that calls
``commitSync()`` in the middle of its loop does the same.
"""

from confluent_kafka import TopicPartition

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters.confluent import ConfluentConsumer


def plant() -> None:
    commit = ConfluentConsumer._commit

    def commit_position(self, positions, **_):
        if positions:
            owned = [TopicPartition(*place) for place in self._receiving.owned]
            at = self._consumer.position(owned)
            positions = {(item.topic, item.partition): item.offset for item in at if item.offset >= 0}
        commit(self, positions, wait=True)

    put(ConfluentConsumer, "_commit", commit_position)


BAD = KnownBad("none is needed", "integrity/commit_ahead", "commits", plant)
