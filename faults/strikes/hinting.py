"""What the two kinds share that change hints: which ones, and that no probe can show it.

=====================  ==========================================================  =================
hint                   where a broker says it                                      source
=====================  ==========================================================  =================
``current_leader``     beside an error: who leads the partition now                KIP-951
``node_endpoints``     and where that broker is to be dialled                      KIP-951
``session_id``         in a Fetch: the session that was granted                    KIP-227
``preferred_replica``  in a Fetch: the replica that the consumer should read from  KIP-392
=====================  ==========================================================  =================

A harmless request is given none of these, so the proxy's count of answers that it has changed is the only witness.
"""

from typing import Annotated

from pydantic import Field

from aftershock.faults.strikes.tampered import Api, TamperFault
from aftershock.faults.strikes.tampering import Look
from aftershock.faults.values import Answer
from aftershock.faults.wire_proxy.rule import Hint


class HintFault(TamperFault):
    """Hints in a broker's answers are changed."""

    api: Api | None = None
    hints: Annotated[tuple[Hint, ...], Field(min_length=1)]

    @property
    def probe_api(self) -> str | None:
        """No probe is given a hint."""
        return None

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- nobody looks
        """There is nothing to be seen."""
        return Look("hints that a probe is given", 0, 0, "hints", ok=False)
