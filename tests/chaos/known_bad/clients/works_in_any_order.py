"""Delivers the batches of one poll in another order, as a pool of threads with one batch each does.

The log and the fetch keep the order within a partition, and the thread pool loses it.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.consumer import Consumer


def plant() -> None:
    poll = Consumer.poll

    async def last_first(self, timeout_ms):
        return (await poll(self, timeout_ms))[::-1]

    put(Consumer, "poll", last_first)


BAD = KnownBad("answers to Fetch are lost, so that a poll brings several batches", "integrity/order", "records", plant)
