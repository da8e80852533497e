"""Delivers each record with the value of the previous record.

A buffer is reused while the application still reads it.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters.receiving import ReceiveRecorder


def plant() -> None:
    take, held = ReceiveRecorder.take, {}

    def take_the_former(self, mark, *, value, **told):
        take(self, mark, value=held.get("value", value), **told)
        held["value"] = value

    put(ReceiveRecorder, "take", take_the_former)


BAD = KnownBad("none is needed", "integrity/corrupt", "records", plant)
