"""Reports a record that was refused for good as delivered.

A common bug: the error callback is ignored, or a future's exception is dropped.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.producer.produce_request import BatchCompleter
from aftershock.workloads.kafka.rules.values import UNKNOWN


def plant() -> None:
    put(BatchCompleter, "_end_failed", lambda self, batch, _, **__: self._end_delivered(batch, UNKNOWN))


BAD = KnownBad("Produce is refused for good", "integrity/lost", "not in the log", plant)
