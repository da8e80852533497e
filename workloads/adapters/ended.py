"""Stand-ins for clients that have ended by themselves, which complete the evidence of a run that goes on without them.

Each record that falls due after the end of its producer gets a row (``failed``, ``CLIENT_DOWN``), so that the schedule
of the load stays whole; nothing is sent or read any more.
"""

import time
from collections.abc import Collection
from typing import Any

from aftershock.workloads.adapters.receiving import ReceiveRecorder, ReceivingClient
from aftershock.workloads.adapters.sending import POLL_INTERVAL_US, SendingClient, SendRecorder
from aftershock.workloads.load.assignment import CommitAssignment, ConsumeAssignment, Drain, Order, ProduceAssignment
from aftershock.workloads.load.events import Clock, Events
from aftershock.workloads.load.schedule import US_PER_S


class EndedProducer(SendingClient):
    """Producer or committer that has ended; implements ``worker.Client``."""

    def __init__(self, assignment: ProduceAssignment | CommitAssignment, clock: Clock, _events: Events) -> None:
        self._sending = SendRecorder(assignment, clock)

    def prepare(self) -> None:
        """Do nothing: there is no connection."""

    def step(self, wait_us: int) -> None:
        self._sending.skip_due()
        self._sending.idle()
        time.sleep(min(wait_us, POLL_INTERVAL_US) / US_PER_S)

    def progress(self) -> dict[str, Any]:
        return self._sending.tally.progress() | {"traffic": {}}

    def reports(self) -> Collection[str]:
        return ()

    def close(self) -> None:
        """Do nothing."""


EndedCommitter = EndedProducer


class EndedConsumer(ReceivingClient):
    """Consumer that has ended, which knows up to where it had read; implements ``worker.Client``."""

    def __init__(self, assignment: ConsumeAssignment, clock: Clock, events: Events) -> None:
        self._receiving = ReceiveRecorder(assignment, clock, events)
        self._receiving.resume()

    def prepare(self) -> None:
        """Do nothing: there is no connection."""

    def obey(self, order: Order) -> None:
        if isinstance(order, Drain):  # nothing will be read, so there is nothing to wait for
            order = order.model_copy(update={"until_us": 0, "idle_us": None})
        super().obey(order)

    def step(self, wait_us: int) -> None:
        time.sleep(wait_us / US_PER_S)

    def progress(self) -> dict[str, Any]:
        return self._receiving.tally.progress() | {"traffic": {}}

    def reports(self) -> Collection[str]:
        return ()

    def close(self) -> None:
        """Do nothing."""
