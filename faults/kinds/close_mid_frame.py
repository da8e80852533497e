"""``close_mid_frame``: half of a message arrives, then the connection is closed.

Half of an answer: the broker has served the request, and the client has bytes that it can do nothing with. Half of a
request: the broker drops it with the connection.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from aftershock.faults.fault import Band, Draws
from aftershock.faults.strikes.tampered import Api, TamperFault
from aftershock.faults.strikes.tampering import Look
from aftershock.faults.values import Answer


class CloseMidFrame(TamperFault):
    """Close connections in the middle of a message of an API."""

    band: ClassVar[Band] = Band("#bcbddc", "mid frame")
    proof: ClassVar[str] = "a probe that the rule meets is hung up on; the proxy's counters each second"
    remedy: ClassVar[str] = "the rule is removed, and a probe is answered"

    kind: Literal["close_mid_frame"] = "close_mid_frame"
    api: Api
    message: Annotated[Literal["request", "response"], Field(description="whose half arrives")] = "response"

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """Of a request or of an answer."""
        return {"do": "close_mid_frame", "message": self.message}

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- it is seen from outside
        """No whole answer, and the end of the connection."""
        closed = now.outcome == "closed"
        return Look("probes that the rule meets, hung up on", 1, float(closed), "probes", closed)
