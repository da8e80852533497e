"""``delay_response``: answers to requests of an API reach the client late; the broker has served them long since.

``serial`` lets one such answer pass at a time on each connection, that long after the one before: a request handler
that is slow, where a slow network would delay what is in flight together.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool

from aftershock.faults.fault import Band, Draws
from aftershock.faults.strikes.delaying import DelayingFault


class DelayResponse(DelayingFault):
    """Delay the answers to requests of an API."""

    band: ClassVar[Band] = Band("#fd8d3c", "delay response")

    kind: Literal["delay_response"] = "delay_response"
    serial: Annotated[StrictBool, Field(description="one at a time on each connection")] = False

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """For so long, side by side or one after the other."""
        return {"do": "delay_response", "delay_ms": self.delay, "serial": self.serial}
