"""Which brokers a client talked to, and how much: read from librdkafka's own statistics.

Toxiproxy counts a connection's bytes only when it closes, and these connections last as long as the load. So whether
traffic met a fault is told by the clients: bytes sent to each broker, which crossed the one link between the two.
"""

import json

STATISTICS_INTERVAL_MS = 1000


class Traffic:
    """Bytes sent to and received from each broker since the client began, as of the last statistics."""

    def __init__(self) -> None:
        self.by_broker: dict[int, tuple[int, int]] = {}

    def on_statistics(self, statistics: str) -> None:
        """Librdkafka's ``stats_cb``. Its brokers without a node id are addresses not yet known to be one."""
        totals: dict[int, tuple[int, int]] = {}
        for broker in json.loads(statistics)["brokers"].values():
            if (node := broker["nodeid"]) >= 0:
                sent, received = totals.get(node, (0, 0))
                totals[node] = (sent + broker["txbytes"], received + broker["rxbytes"])
        self.by_broker = totals
