"""Sends nothing for twelve seconds, a second after responses that were slow are quick again.

A back-off that grew with each slow response and is served when none is needed any more. A delay loses no request, so
it excuses no request time-out after its end.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.producer.sender import Sender
from aftershock.workloads.kafka.wire.channel import Channel

SLOW_S, HANG_S = 0.3, 12.0
STAGES = ((False, 40), (True, 60), (False, 20))
"""Quick, slow and again quick responses before it hangs; on a busy host the first responses of all are slow, too."""


def plant() -> None:
    ask, send_ready = Channel.ask, Sender._send_ready
    counts, hang_until_s = [0], []

    def on_produced(took_s, now_s):
        slow, enough = STAGES[len(counts) - 1]
        counts[-1] += (took_s > SLOW_S) == slow
        if counts[-1] == enough and len(counts) == len(STAGES):
            hang_until_s.append(now_s + HANG_S)
        elif counts[-1] == enough:
            counts.append(0)

    def ask_and_time(self, kind, body, callback, *, timeout_ms):
        asked_s = self._loop.time()

        def note(response):
            if kind.__name__ == "ProduceRequest" and not hang_until_s:
                on_produced(self._loop.time() - asked_s, self._loop.time())
            callback(response)

        ask(self, kind, body, note, timeout_ms=timeout_ms)

    def send_unless_hanging(self, now_ms):
        left_s = hang_until_s[0] - self._loop.time() if hang_until_s else 0
        return 1_000 * left_s if left_s > 0 else send_ready(self, now_ms)

    put(Channel, "ask", ask_and_time)
    put(Sender, "_send_ready", send_unless_hanging)


BAD = KnownBad("the network was slow", "obligation/produce", "the longest stall", plant)
