"""Takes a committed offset that it cannot read at once for a missing one, and starts at the end of the log.

A coordinator that moves answers that it is loading; the client has ``auto.offset.reset=latest``.
"""

import asyncio

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.consumer.commit_request_manager import CommittedOffsets

PATIENCE_S = 0.2


def plant() -> None:
    committed = CommittedOffsets.committed

    async def read_or_give_up(self, partitions):
        try:
            return await asyncio.wait_for(committed(self, partitions), PATIENCE_S)
        except TimeoutError:
            return {}

    put(CommittedOffsets, "committed", read_or_give_up)


BAD = KnownBad(
    "OffsetFetch requests are refused while members leave",
    "integrity/lost",
    "records",
    plant,
    frozenset({"integrity/commit_ahead", "integrity/skipped"}),
)
