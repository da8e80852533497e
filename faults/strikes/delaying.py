"""What the two kinds share that make something late: how long, and a probe that takes as much longer."""

from typing import Annotated, ClassVar

from pydantic import Field

from aftershock.faults.strikes.tampered import Api, TamperFault
from aftershock.faults.strikes.tampering import SLACK_MS, Look
from aftershock.faults.units import Duration
from aftershock.faults.values import Answer

SHARE = 0.8  # of the delay asked for that a probe must show


class DelayingFault(TamperFault):
    """Something of an API's is late by ``delay``."""

    proof: ClassVar[str] = (
        "a probe that the rule meets, slower by the delay asked for; the proxy's counters each second"
    )
    remedy: ClassVar[str] = "the rule is removed, and a probe is as quick as before"

    probes: ClassVar[int] = 3

    api: Api
    delay: Annotated[Duration, Field(ge=1, le=600_000)]

    @property
    def probing_ms(self) -> int:
        """Its delay."""
        return self.delay + SLACK_MS

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- it is seen from outside
        """A probe without an answer is as slow as it has waited."""
        rise_ms = now.ms - before.ms
        ok = now.outcome != "closed" and rise_ms >= SHARE * self.delay
        return Look("the round trip of a probe that the rule meets rose", self.delay, rise_ms, "ms", ok)
