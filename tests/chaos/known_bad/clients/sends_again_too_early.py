"""Sends each request again that is not answered within 150 ms, on the same connection, and reports one attempt.

Without idempotence a second attempt may write a record twice; but no connection ended here, and no response was late
beyond the request time-out, so that a correct client had no reason for it.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.wire.channel import Channel

PATIENCE_S = 0.15


def plant() -> None:
    ask = Channel.ask

    def ask_again(self, kind, body, callback, *, timeout_ms):
        answered = []

        def note(response):
            answered.append(response)
            callback(response)

        def repeat():
            if not answered and not self.closed:
                ask(self, kind, body, lambda _: None, timeout_ms=timeout_ms)
                self.flush()

        ask(self, kind, body, note, timeout_ms=timeout_ms)
        if kind.__name__ == "ProduceRequest":
            self._loop.call_later(PATIENCE_S, repeat)

    put(Channel, "ask", ask_again)


BAD = KnownBad(
    "no idempotence, and the network is slow",
    "integrity/duplicate",
    "records",
    plant,
    also=frozenset({"integrity/order"}),
)
