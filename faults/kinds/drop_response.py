"""``drop_response``: the broker serves a request and its answer is lost: the ambiguous acknowledgement.

A client that asks again does what it asked for twice, unless it is idempotent. Whatever else was in flight on the
connection is as ambiguous.
"""

from typing import Any, ClassVar, Literal

from aftershock.faults.fault import Band, Draws
from aftershock.faults.strikes.losing import LosingFault


class DropResponse(LosingFault):
    """Lose answers to requests of an API after the broker has served them."""

    band: ClassVar[Band] = Band("#756bb1", "drop response")

    kind: Literal["drop_response"] = "drop_response"

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """And what becomes of the connection."""
        return {"do": "drop_response", "connection": self.connection}
