"""Reports a record that was refused for good as delivered.

The classic: an error callback that nobody looks at, a future whose exception is dropped.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.producer.produce_request import BatchCompleter
from aftershock.workloads.kafka.rules.values import UNKNOWN


def plant() -> None:
    put(BatchCompleter, "_end_failed", lambda self, batch, _: self._end_delivered(batch, UNKNOWN))


BAD = KnownBad("Produce is refused for good", "integrity/lost", "not in the log", plant)
