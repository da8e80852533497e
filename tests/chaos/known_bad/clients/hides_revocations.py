"""Tells its group that it has given partitions up, and reads on, once it had got some from another member.

Neither its application nor its fetcher learns of it; it commits no more of them. A latency that is over keeps no member
from its coordinator, so nothing explains that two members own a partition.
"""

from aftershock.tests.chaos.known_bad.catalogue import OF_TWO_OWNERS, KnownBad, put
from aftershock.workloads.kafka.consumer import commit_request_manager
from aftershock.workloads.kafka.consumer.assigned_partitions import AssignedPartitions


def plant() -> None:
    add, begin, revoke = AssignedPartitions.add, AssignedPartitions.begin_revocation, AssignedPartitions.revoke
    to_commit = commit_request_manager.offsets_to_commit
    gained, hidden = set(), set()

    def add_and_note(self, partitions):
        if len(self._shared.positions):
            gained.update(partitions)
        hidden.difference_update(partitions)
        add(self, partitions)

    def begin_or_hide(self, partitions):
        hidden.update(partitions if gained else ())
        begin(self, [] if gained else partitions)

    def revoke_or_hide(self, partitions):
        revoke(self, [] if gained else partitions)

    def owned_to_commit(positions):
        return {tp: committed for tp, committed in to_commit(positions).items() if tp not in hidden}

    put(AssignedPartitions, "add", add_and_note)
    put(AssignedPartitions, "begin_revocation", begin_or_hide)
    put(AssignedPartitions, "revoke", revoke_or_hide)
    put(commit_request_manager, "offsets_to_commit", owned_to_commit)


BAD = KnownBad("members leave and return after a latency", "integrity/co_owned", "assignments", plant, OF_TWO_OWNERS)
