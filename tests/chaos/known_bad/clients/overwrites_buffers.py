"""Sends other bytes in the second attempt: the memory of the batch has been reused.

KAFKA-19012: a buffer returned to the pool while a request still referred to it.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.producer.produce_request import ProduceRequester


def plant() -> None:
    as_bytes = ProduceRequester._build

    def overwritten(self, batch):
        if batch.attempts.attempts:
            batch.values[0] = bytes(len(batch.values[0]))
        return as_bytes(self, batch)

    put(ProduceRequester, "_build", overwritten)


BAD = KnownBad("some Produce are refused", "integrity/corrupt", "records", plant)
