"""Reports an acknowledgement when the request is written, before it is answered.

What a callback on "sent" in place of "answered" does (astubbs/parallel-consumer#248 did it with commits): a request
that fails has been a success already, and nobody sends it again.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.producer.produce_request import ProduceRequester
from aftershock.workloads.kafka.rules.values import UNKNOWN


def plant() -> None:
    send = ProduceRequester.send

    def send_and_report(self, node_id, channel, batches, now_ms, responses):
        send(self, node_id, channel, batches, now_ms, responses)
        for batch in batches.values():
            if not batch.done:
                self._deliveries._end_delivered(batch, UNKNOWN)

    put(ProduceRequester, "send", send_and_report)


BAD = KnownBad(
    "Produce is refused",
    "integrity/lost",
    "not in the log",
    plant,
    also=frozenset({"obligation/produce", "integrity/order"}),
)
