"""``reset``: whoever sends over some links has its connection ended, ``timeout`` after what it sent.

It is Toxiproxy's ``reset_peer`` toxic. What was sent is lost; on the way back (``downstream``) that is an answer to
what the broker did: an ambiguous acknowledgement. Connections made while it lasts end with a TCP reset, those made
before with an ordinary close (Toxiproxy arms the reset as a connection starts). A client that dials a port which Docker
forwards on loopback sees an ordinary close of both: Docker's forwarder passes no reset on
(``tests/contract/test_toxics.py``).
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.fault import Band, Rest, Stake, Takes
from aftershock.faults.problem import Problem
from aftershock.faults.strikes.linked import ToxicFault, ToxicFaultStrike
from aftershock.faults.strikes.probed import EndedStrike
from aftershock.faults.units import Duration


class ResetStrike(EndedStrike):
    """A connection that is ended."""

    what: ClassVar[str] = "a question's connection was reset or closed instead of answered, after"


class Reset(ToxicFault):
    """End the connection of whoever sends over some links."""

    band: ClassVar[Band] = Band("#ad494a", "reset")
    proof: ClassVar[str] = "a question whose connection is ended instead of answered; the toxics, read back each second"
    remedy: ClassVar[str] = "the toxics are removed; clients dial again"
    severs: ClassVar[bool] = True
    told: ClassVar[bool] = True
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("way", "links", by_plan=False),)
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "reset_peer"
    strike: ClassVar[type[ToxicFaultStrike]] = ResetStrike

    kind: Literal["reset"] = "reset"
    timeout: Annotated[Duration, Field(le=60_000, description="from what is sent to the reset")] = 0

    def takes(self) -> Takes:
        """What gets through before a connection is reset may keep a node in office."""
        return "unknown"

    def attributes(self) -> dict[str, int]:
        """In ms."""
        return {"timeout": self.timeout}

    def problems(self, rest: Rest) -> Iterator[Problem]:  # noqa: ARG002 -- it is about its own two times
        """A reset that the fault does not live to see."""
        if self.for_ is not None and self.timeout >= self.for_:
            yield Problem(("timeout",), "the fault is over before a connection could be reset: shorten it")
