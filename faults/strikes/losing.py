"""What the two kinds share that lose something: what becomes of the connection, and a probe that gets no answer.

TCP loses no message out of the middle, and clients rely on it. So nothing follows on the connection what was lost:
either it is closed, as by a peer that died, or it keeps silent, as by a network that swallows all, until the heal
closes it.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.strikes.tampered import Api, TamperFault
from aftershock.faults.strikes.tampering import ROOM_MS, SILENCE_MS, SLACK_MS, Look
from aftershock.faults.values import Answer


class LosingFault(TamperFault):
    """Something of an API's is lost."""

    proof: ClassVar[str] = (
        "a probe that the rule meets is hung up on, or never answered; the proxy's counters each second"
    )
    remedy: ClassVar[str] = "the rule is removed, silent connections are closed, and a probe is answered"

    api: Api
    connection: Annotated[
        Literal["closed", "silent"], Field(description="what becomes of the connection it was lost on")
    ] = "closed"

    @property
    def probing_ms(self) -> int:
        """Silence takes its time to be believed."""
        return SILENCE_MS if self.connection == "silent" else SLACK_MS

    @property
    def limit_ms(self) -> int:
        """An answer that comes late is none of silence."""
        return self.probing_ms + (ROOM_MS if self.connection == "closed" else 0)

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- it is seen from outside
        """The end that the plan asked for, and no answer."""
        lost = now.outcome == self.connection
        return Look(f"probes that the rule meets, unanswered and {self.connection}", 1, float(lost), "probes", lost)
