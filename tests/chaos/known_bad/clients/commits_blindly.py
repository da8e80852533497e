"""Treats every commit as successful.

As ``commitAsync`` without a callback does: neither an error nor a missing response is noticed, and the commit is not
repeated.
"""

from contextlib import suppress

from aftershock.errors import ProtocolError
from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.committer import PlainAttempts


def plant() -> None:
    make = PlainAttempts.make

    async def make_and_forget(self, offset):
        with suppress(OSError, ProtocolError):
            await make(self, offset)
        return 0

    put(PlainAttempts, "make", make_and_forget)


BAD = KnownBad("OffsetCommit requests are lost", "integrity/lost", " commits", plant)
