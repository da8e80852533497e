"""The reference committer under load, open-loop or closed: ``client: reference`` of a ``commit`` workload.

What is ``failed`` and what ``in_doubt`` is the committer's own knowledge: it sees every attempt.
"""

from typing import Any

from aftershock.workloads.assignment import CommitAssignment
from aftershock.workloads.clients.closed_loop import ClosedLoop, keep_full
from aftershock.workloads.clients.loop import Loop
from aftershock.workloads.clients.reference_settings import reference_settings
from aftershock.workloads.clients.sending import Sending, pace
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events
from aftershock.workloads.orders import Order
from aftershock.workloads.reference.committer import Committer, Outcome, Target
from aftershock.workloads.reference.committer_settings import CommitterSettings
from aftershock.workloads.status import Status

_CLOSE_MS = 2_000.0


class ReferenceCommitter:
    """``client.Client`` over ``reference.committer.Committer``; ``SettingError`` for settings that it doesn't have."""

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        self._told = assignment
        settings = reference_settings(CommitterSettings, assignment)
        self._committer = Committer(settings, report=self._reported, tell=events.emit)
        self._loop = Loop()
        in_flight = assignment.in_flight
        self._sending = Sending(assignment, clock) if in_flight is None else ClosedLoop(assignment, clock, in_flight)

    def prepare(self) -> None:
        """Come to know the coordinators."""
        self._loop.run(self._committer.start([self._target(seq) for seq in range(self._told.groups)]))
        sending = self._sending
        self._loop.start(
            keep_full(sending, self._send) if isinstance(sending, ClosedLoop) else pace(sending, self._send)
        )

    def _target(self, seq: int) -> Target:
        return Target(self._told.group_of(seq), self._told.topic, self._told.partition_of(seq))

    def obey(self, order: Order) -> None:
        """``go`` starts the schedule, ``stop`` ends it."""
        self._sending.obey(order)

    def step(self, wait_us: int) -> None:
        """Let the client work for that long."""
        self._loop.step(wait_us)

    def _send(self) -> None:
        seq, _ = self._sending.begin(0)
        self._committer.offer(self._target(seq), self._told.offset_of(seq), token=seq)

    def _reported(self, outcome: Outcome) -> None:
        status = Status.OK if not outcome.error else Status.IN_DOUBT if outcome.in_doubt else Status.FAILED
        self._sending.ended(
            outcome.token, status, outcome.error, broker_id=outcome.broker_id, attempts=outcome.attempts
        )

    def answer(self) -> dict[str, Any] | None:
        """After ``stop``: how many commits still have no final status."""
        return self._sending.answer()

    def progress(self) -> dict[str, Any]:
        """Counts, lateness and commit latencies since the last call."""
        return self._sending.tally.progress() | {"traffic": self._committer.traffic}

    def counters(self) -> dict[str, int]:
        """Commits by status, and what each rule decided how often."""
        return self._sending.tally.counts() | dict(self._committer.counts)

    def close(self) -> None:
        """Leave in good order."""
        self._loop.close(self._committer.close(_CLOSE_MS))
