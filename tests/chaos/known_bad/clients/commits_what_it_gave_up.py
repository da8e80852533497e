"""Commits the offsets of revoked partitions some seconds later, when others own them.

It collects offsets for the next commit and keeps those of partitions that are revoked meanwhile. A coordinator accepts
them, since the member belongs to the group and its generation is current.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters.confluent import ConfluentConsumer

LATE_US = 3_000_000


def plant() -> None:
    commit, step = ConfluentConsumer._commit, ConfluentConsumer.step
    collected, kept = {}, []

    def collect(self, positions, *, wait):
        collected.update(positions)
        if wait:
            kept.append((self._clock() + LATE_US, dict(collected)))
        else:
            commit(self, positions, wait=wait)

    def step_and_commit(self, wait_us):
        step(self, wait_us)
        while kept and kept[0][0] <= self._clock():
            _, positions = kept.pop(0)
            commit(self, {place: positions[place] for place in positions.keys() - self._receiving.owned}, wait=True)

    put(ConfluentConsumer, "_commit", collect)
    put(ConfluentConsumer, "step", step_and_commit)


BAD = KnownBad(
    "members leave and return",
    "integrity/fenced",
    "commits",
    plant,
    frozenset({"integrity/backward", "integrity/commit_behind"}),
)
