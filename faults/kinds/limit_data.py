"""``limit_data``: a connection is closed when so many bytes have gone over it.

It is Toxiproxy's ``limit_data`` toxic; it counts each stream of each connection by itself, from when the toxic meets
the connection. The last message is cut short where the limit falls.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aftershock.faults.fault import Band
from aftershock.faults.strikes.linked import ToxicFault, ToxicFaultStrike
from aftershock.faults.strikes.probed import ROOM_MS, ProbedStrike, Reading, dialled
from aftershock.faults.units import Size
from aftershock.faults.values import Link

BALLAST_BYTES_MIN, BALLAST_BYTES_MAX = 300, 250_000
QUESTIONS_MAX = 60


class LimitDataStrike(ProbedStrike):
    """A connection of our own asks until it is closed."""

    what: ClassVar[str] = "bytes had crossed a connection of our own, whole messages, when it was closed"
    unit: ClassVar[str] = "B"
    fault: "LimitData"

    def measuring_ms(self) -> int:
        """As long as a handful of questions take."""
        return 1_000

    async def read(self, link: Link) -> Reading | None:
        """Closed, and what had crossed till then is no more than the limit."""
        crossed = {"upstream": 0, "downstream": 0}
        async with dialled(link, self.scene) as probe:
            for _ in range(QUESTIONS_MAX):
                seen = await probe.ask(self._ballast_bytes, ROOM_MS)
                if seen.end != "answered":
                    break
                crossed["upstream"] += seen.sent_bytes
                crossed["downstream"] += seen.received_bytes
        if seen.end == "silent":
            return None
        crossed_bytes = max(crossed[stream] for stream in self.streams[link])
        ok = seen.end != "answered" and crossed_bytes <= self.fault.bytes_
        return Reading(link, self.fault.bytes_, crossed_bytes, ok)

    @property
    def _ballast_bytes(self) -> int:
        return min(BALLAST_BYTES_MAX, max(BALLAST_BYTES_MIN, self.fault.bytes_ // 4))


class LimitData(ToxicFault):
    """Close each connection over some links when so many bytes have gone over it."""

    band: ClassVar[Band] = Band("#8ca252", "limit_data")
    proof: ClassVar[str] = "bytes that crossed a connection of our own until it was closed; the toxics, read back"
    remedy: ClassVar[str] = "the toxics are removed; connections that are left are kept"
    allowance_ms: ClassVar[int] = 2_000
    toxic: ClassVar[str] = "limit_data"
    strike: ClassVar[type[ToxicFaultStrike]] = LimitDataStrike

    kind: Literal["limit_data"] = "limit_data"
    bytes_: Annotated[Size, Field(alias="bytes", ge=1, le=10_000_000, description="of each stream of each connection")]

    def attributes(self) -> dict[str, int]:
        """In bytes."""
        return {"bytes": self.bytes_}
