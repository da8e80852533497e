"""Acknowledges that partitions are revoked and goes on fetching them.

The application is told, and the group too; the fetcher is not.
"""

from aftershock.tests.chaos.known_bad.catalogue import OF_TWO_OWNERS, KnownBad, put
from aftershock.workloads.kafka.consumer.assigned_partitions import AssignedPartitions


def plant() -> None:
    def begin_revocation(self, _partitions):
        self._revocation_commit = self.commits.begin(before_revocation=True)
        if self._revocation_commit is not None:
            self._revocation_commit.add_done_callback(lambda _: self._shared.on_change())

    def revoke(self, partitions):
        self._revocation_commit = None
        if partitions:
            self.listener.on_revoked(partitions)

    put(AssignedPartitions, "begin_revocation", begin_revocation)
    put(AssignedPartitions, "revoke", revoke)


BAD = KnownBad(
    "members leave and return",
    "integrity/stale_assignment",
    "deliveries",
    plant,
    OF_TWO_OWNERS,
)
