"""The user's own committer: a program that is handed each offset to commit when it is due."""

from aftershock.workloads.assignment import CommitAssignment
from aftershock.workloads.clients.exec_protocol import commit_order
from aftershock.workloads.clients.exec_sender import ExecSender
from aftershock.workloads.clock import Clock
from aftershock.workloads.events import Events


class ExecCommitter(ExecSender):
    """``client.Client`` over a program that commits."""

    def __init__(self, assignment: CommitAssignment, clock: Clock, events: Events) -> None:
        super().__init__(assignment, clock, events)
        self._told = assignment

    def _next_order(self) -> tuple[int, bytes]:
        told = self._told
        seq, _ = self._sending.begin(0)
        return seq, commit_order(seq, told.group_of(seq), told.partition_of(seq), told.offset_of(seq))
