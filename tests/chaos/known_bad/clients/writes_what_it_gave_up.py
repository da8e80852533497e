"""Reports a record as failed, and sends it later: a zombie write.

An expired batch stays in its queue. The application may have sent the record another way by then.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.rules.accumulator import RecordAccumulator


def plant() -> None:
    put(RecordAccumulator, "withdraw", lambda self, batch: batch in self._queue_of(batch).batches)


BAD = KnownBad(
    "its links stand still beyond the deadline, and go on",
    "integrity/phantom",
    "reported these records as failed, but they are in the log",
    plant,
    also=frozenset({"obligation/produce"}),
)
