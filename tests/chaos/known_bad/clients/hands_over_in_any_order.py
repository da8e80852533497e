"""Hands every tenth record to the producer half a second late, after newer records.

An application with a pool of threads does so. A kill of its process explains an inversion of the records that were in
flight then, not those long before.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters.reference import ReferenceProducer

EVERY, BUSY_S = 10, 0.5


def plant() -> None:
    send = ReferenceProducer._send

    def send_or_wait(self):
        if self._sending.next % EVERY:
            send(self)
            return
        offer = self._producer.offer

        def offer_late(*args, **details):
            self._loop.call_later(BUSY_S, lambda: offer(*args, **details))
            return True

        self._producer.offer = offer_late
        send(self)
        self._producer.offer = offer

    put(ReferenceProducer, "_send", send_or_wait)


BAD = KnownBad("its process is killed later", "integrity/order", "records", plant)
