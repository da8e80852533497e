"""``delay_request``: requests of an API reach the broker late, as over a slow network.

What follows on the same connection waits behind them. Requests that wait at the same time wait side by side.
"""

from typing import Any, ClassVar, Literal

from aftershock.faults.fault import Band, Draws
from aftershock.faults.strikes.delaying import DelayingFault


class DelayRequest(DelayingFault):
    """Delay requests of an API."""

    band: ClassVar[Band] = Band("#fdae6b", "delay request")

    kind: Literal["delay_request"] = "delay_request"

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """For so long."""
        return {"do": "delay_request", "delay_ms": self.delay}
