"""Never gives up a fetch session, whatever the broker says of it.

The epoch stays what the client believes (redpanda#27749 asked with the same one for ever): once an answer was lost,
each Fetch is refused.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.fetcher import Fetcher
from aftershock.workloads.kafka.rules.fetch_session import FetchSession

PAUSE_MS = 200.0


def plant() -> None:
    answered = Fetcher._on_response

    def unimpressed(self, asked, reply):
        if reply.response.error_code:
            self._throttled_until_ms[asked.node_id] = self._shared.clock_ms() + PAUSE_MS
        else:
            answered(self, asked, reply)

    put(FetchSession, "_give_up", lambda _: None)
    put(Fetcher, "_on_response", unimpressed)


BAD = KnownBad(
    "answers to Fetch are lost",
    "integrity/lost",
    "records",
    plant,
    also=frozenset({"obligation/consume"}),
)
