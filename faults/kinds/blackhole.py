"""``blackhole``: what is sent vanishes, and a connection on which nothing more is sent is closed after ``timeout``.

It is Toxiproxy's ``timeout`` toxic; each piece of data that it swallows starts its clock again. The heal closes the
connections that are still open, because what they lost is missing from the stream: a client dials again after it
(``tests/contract/test_toxics.py``). Without any closing while it lasts it is ``cut``; where nothing gets lost,
``stall``.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.fault import Band, Rest, Stake, Takes
from aftershock.faults.problem import Problem
from aftershock.faults.strikes.linked import ToxicFault, ToxicFaultStrike
from aftershock.faults.strikes.probed import EndedStrike
from aftershock.faults.units import Duration


class BlackholeStrike(EndedStrike):
    """A connection that is closed, and late."""

    what: ClassVar[str] = "a question got no answer, and its connection was closed after; the heal closes those left"


class Blackhole(ToxicFault):
    """Let all that is sent over some links vanish, and close what keeps silent."""

    band: ClassVar[Band] = Band("#393b79", "blackhole")
    proof: ClassVar[str] = "a question without answer, its connection closed after `timeout`; the toxics, read back"
    remedy: ClassVar[str] = "the toxics are removed, which closes every connection: it heals by reconnecting"
    severs: ClassVar[bool] = True
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("way", "links", by_plan=False),)
    allowance_ms: ClassVar[int] = 3_000
    toxic: ClassVar[str] = "timeout"
    strike: ClassVar[type[ToxicFaultStrike]] = BlackholeStrike

    kind: Literal["blackhole"] = "blackhole"
    timeout: Annotated[Duration, Field(ge=100, le=60_000, description="a silent connection is closed after it")]

    def takes(self) -> Takes:
        """All that these links carry."""
        return "links"

    def attributes(self) -> dict[str, int]:
        """In ms."""
        return {"timeout": self.timeout}

    def problems(self, rest: Rest) -> Iterator[Problem]:  # noqa: ARG002 -- it is about its own two times
        """A timeout that the fault does not live to see."""
        if self.for_ is not None and self.timeout >= self.for_:
            yield Problem(("timeout",), "the fault is over before a connection could be closed: shorten it, or use cut")
