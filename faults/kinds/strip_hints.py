"""``strip_hints``: brokers' answers say nothing of who leads, where that is, which session or replica to use.

A client must find out by itself what it would have been told: by asking for metadata, or by fetching without a session.
"""

from typing import Any, ClassVar, Literal

from aftershock.faults.fault import Band, Draws
from aftershock.faults.strikes.hinting import HintFault


class StripHints(HintFault):
    """Take hints out of brokers' answers."""

    band: ClassVar[Band] = Band("#969696", "no hints")
    proof: ClassVar[str] = "answers whose hints were taken out, as the proxy counts them each second"
    remedy: ClassVar[str] = "the rule is removed"

    kind: Literal["strip_hints"] = "strip_hints"

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """These."""
        return {"do": "strip_hints", "hints": self.hints}
