"""Goes to the end of the log after any error of a Fetch.

It reads on, and nobody notices what lay between (confluent-kafka-dotnet#192: skipped after a broker's trouble).
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.fetcher import Fetcher


def plant() -> None:
    put(Fetcher, "_on_partition_error", lambda self, tp, _error, _offset: self._shared.positions.reset(tp, "latest"))


BAD = KnownBad("some Fetch are refused", "integrity/lost", "in the log and not delivered", plant)
