"""Reports a record as given up, and goes on to send it: a zombie's write.

A batch that has expired is left in its queue. Whoever was told "failed" has sent the record another way by now.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.rules.accumulator import RecordAccumulator


def plant() -> None:
    put(RecordAccumulator, "withdraw", lambda self, batch: batch in self._queue_of(batch).batches)


BAD = KnownBad(
    "its links stand still beyond the deadline, and go on",
    "integrity/phantom",
    "given them up for good",
    plant,
    also=frozenset({"obligation/produce"}),
)
