"""For how long a broker has had data waiting that it could not be sent: KIP-794's availability timeout.

Kafka: ``RecordAccumulator.updateNodeLatencyStats`` and ``NodeLatencyStats``. Two times a node. Whenever a node has
data that is ready, its *ready* time becomes now; if it can take that data now (it is connected, it has room for another
request in flight, it isn't throttled), its *drain* time as well. The distance between the two is the delay.
"""

_NOBODY: frozenset[int] = frozenset()


class NodeLatency:
    """The delays of all brokers of one producer."""

    def __init__(self) -> None:
        self._drain_ms: dict[int, float] = {}
        self._delay_ms: dict[int, float] = {}

    def ready(self, node_id: int, now_ms: float, *, can_drain: bool) -> None:
        """A node has data that is ready; ``can_drain``: and it can be sent at once."""
        drained_ms = self._drain_ms.setdefault(node_id, now_ms)
        if can_drain:
            drained_ms = self._drain_ms[node_id] = now_ms
        self._delay_ms[node_id] = now_ms - drained_ms

    def later_than(self, timeout_ms: float) -> frozenset[int]:
        """The nodes whose data has been waiting for longer than ``timeout_ms``."""
        if not self._delay_ms:
            return _NOBODY
        return frozenset(node_id for node_id, delay_ms in self._delay_ms.items() if delay_ms > timeout_ms)
