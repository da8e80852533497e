"""Takes the newest of the batches that wait for a partition first.

A stack in place of the queue. Without idempotence and with several requests in flight a retried record may come late;
but each of these records was sent once.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.rules.accumulator import RecordAccumulator


def plant() -> None:
    take = RecordAccumulator._take

    def take_the_newest(self, queue, node_id):
        queue.batches.rotate(1)
        return take(self, queue, node_id)

    put(RecordAccumulator, "_take", take_the_newest)


BAD = KnownBad("no idempotence, and the network is slow", "integrity/order", "records", plant)
