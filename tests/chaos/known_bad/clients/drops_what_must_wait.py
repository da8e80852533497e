"""Drops new records while three batches wait for their partition, and reports them as delivered.

A bounded queue that overflows in silence. A fault deletes the oldest records of the topic later; these are others.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.producer.produce_request import ProduceRequester
from aftershock.workloads.kafka.rules.values import UNKNOWN

WAITING_MAX = 3


def plant() -> None:
    send = ProduceRequester.send

    def send_and_drop(self, node_id, channel, batches, now_ms, responses):
        send(self, node_id, channel, batches, now_ms, responses)
        for queue in self._rules.accumulator._queues:
            while len(queue.batches) > WAITING_MAX:
                newest = queue.batches[-1]
                self._rules.accumulator.withdraw(newest)
                self._deliveries._end_delivered(newest, UNKNOWN)

    put(ProduceRequester, "send", send_and_drop)


BAD = KnownBad(
    "the network is slow, and old records of the topic are deleted later", "integrity/lost", "not in the log", plant
)
