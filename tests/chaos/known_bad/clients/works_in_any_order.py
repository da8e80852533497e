"""Hands over what one poll brought in another order: a pool of threads, a batch for each.

Order within a partition is kept by the log and by the fetch, and lost right behind them.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.consumer import Consumer


def plant() -> None:
    poll = Consumer.poll

    async def last_first(self, timeout_ms):
        return (await poll(self, timeout_ms))[::-1]

    put(Consumer, "poll", last_first)


BAD = KnownBad("answers to Fetch are lost, so that a poll brings several batches", "integrity/order", "records", plant)
