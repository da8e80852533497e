"""Seeks to the end of the log after any error of a Fetch.

The records in between are skipped silently (confluent-kafka-dotnet#192: skipped after a broker's outage).
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.fetcher import Fetcher


def plant() -> None:
    put(Fetcher, "_on_partition_error", lambda self, tp, _error, _offset: self._shared.positions.reset(tp, "latest"))


BAD = KnownBad("some Fetch are refused", "integrity/lost", "records", plant)
