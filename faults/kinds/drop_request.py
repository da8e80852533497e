"""``drop_request``: requests of an API never reach the broker, and nobody is told but by the end of the connection."""

from typing import Any, ClassVar, Literal

from aftershock.faults.fault import Band, Draws
from aftershock.faults.strikes.losing import LosingFault


class DropRequest(LosingFault):
    """Lose requests of an API before the broker sees them."""

    band: ClassVar[Band] = Band("#9e9ac8", "drop request")

    kind: Literal["drop_request"] = "drop_request"

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """And what becomes of the connection."""
        return {"do": "drop_request", "connection": self.connection}
