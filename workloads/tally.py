"""Running counts of one client, for the live display and the warm-up. The evidence is the spool, never this."""

from collections import deque
from typing import Any

from aftershock.workloads.status import Status

WINDOW = 200


class Tally:
    """Counts since the start; latencies and latenesses since the last ``progress``, at most the last WINDOW of each."""

    def __init__(self) -> None:
        self.sent = 0
        self._by_status = dict.fromkeys(Status, 0)
        self._latency_us: deque[int] = deque(maxlen=WINDOW)
        self._late_us: deque[int] = deque(maxlen=WINDOW)

    @property
    def done(self) -> int:
        """How many records have their final status."""
        return sum(self._by_status.values())

    def sent_late(self, late_us: int) -> None:
        """One more record was sent, ``late_us`` after it was meant to be."""
        self.sent += 1
        self._late_us.append(late_us)

    def never_sent(self) -> None:
        """One more record that there was nobody to send: due, and failed."""
        self.sent += 1
        self._by_status[Status.FAILED] += 1

    def ended(self, status: Status, latency_us: int) -> None:
        """One more record has its final status. Only successes have a latency worth showing."""
        self._by_status[status] += 1
        if status is Status.OK:
            self._latency_us.append(latency_us)

    def counts(self) -> dict[str, int]:
        """``sent``, ``ok``, ``failed``, ``in_doubt``."""
        return {"sent": self.sent} | {status.text: count for status, count in self._by_status.items()}

    def progress(self) -> dict[str, Any]:
        """The counts, the p99 lateness and the latencies since the last call."""
        late = sorted(self._late_us)
        window = list(self._latency_us)
        self._late_us.clear()
        self._latency_us.clear()
        return self.counts() | {"late_p99_us": late[len(late) * 99 // 100] if late else 0, "window": window}
