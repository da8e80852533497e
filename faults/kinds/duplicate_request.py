"""``duplicate_request``: requests of an API reach the broker twice, and the client hears of one.

No TCP does this; a proxy, a replay or a client that asks again too early does. What is not idempotent is done twice.
"""

from typing import Any, ClassVar, Literal

from aftershock.faults.fault import Band, Draws
from aftershock.faults.strikes.tampered import Api, TamperFault
from aftershock.faults.strikes.tampering import Look
from aftershock.faults.values import Answer


class DuplicateRequest(TamperFault):
    """Send requests of an API to the broker twice."""

    band: ClassVar[Band] = Band("#74c476", "duplicate request")
    proof: ClassVar[str] = "a probe that the proxy has doubled, by its own count; its counters each second"
    remedy: ClassVar[str] = "the rule is removed"

    kind: Literal["duplicate_request"] = "duplicate_request"
    api: Api

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """Twice."""
        return {"do": "duplicate_request"}

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- no answer tells of it
        """The one who asks sees nothing of it, so the proxy's word is taken."""
        return Look("probes that the proxy says it has doubled", 1, probed, "probes", probed > 0)
