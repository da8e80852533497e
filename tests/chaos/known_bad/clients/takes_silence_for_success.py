"""Reports a record as delivered if its request got no response within the request time-out.

With acks=1, no leader of these records changes: the requests were lost, and nobody sends them again.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.producer.produce_request import ProduceRequester
from aftershock.workloads.kafka.rules.values import UNKNOWN


def plant() -> None:
    answered = ProduceRequester.on_response

    def answered_or_silent(self, batches, response, now_ms):
        if not isinstance(response, TimeoutError):
            return answered(self, batches, response, now_ms)
        for batch in batches.values():
            self._deliveries._decide(batch, 0, now_ms, UNKNOWN, UNKNOWN)
        return 0

    put(ProduceRequester, "on_response", answered_or_silent)


BAD = KnownBad("acks=1, and some Produce requests are lost", "integrity/lost", "not in the log", plant)
