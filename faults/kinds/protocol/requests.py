"""Protocol faults that delay, lose, duplicate or truncate messages of an API.

``delay_request``: requests reach the broker late, as over a slow network. On one connection, later requests wait behind
a delayed request; their delays overlap rather than add up.

``delay_response``: responses reach the client late, long after the broker has served the request. With ``serial``, the
responses on a connection leave one at a time, each a ``delay`` after the previous response, which resembles a slow
request handler, while a slow network delays everything in flight together.

``drop_request``: requests never reach the broker; the client notices only when the connection ends.

``drop_response``: the broker serves a request and its response is lost, so the client can't know whether the request
was served. A retry repeats the effect of such a request, unless the request is idempotent. As the connection ends, the
outcome of all its other requests in flight is unknown too.

TCP loses no message out of the middle of a stream, and clients rely on that. After a message that a fault drops, the
connection is therefore closed, as by a peer that died, or silent until the heal closes it.

``duplicate_request``: requests reach the broker twice, and the client gets one response. TCP never duplicates a
request, but a proxy, a replay or a client that retries too early does. The effect of a duplicated request occurs twice,
unless the request is idempotent.

``close_mid_frame``: only half of a request or response arrives, then the connection is closed. If only half of a
response arrives, the broker has served the request, but the client can't decode the response. If only half of a request
arrives, the broker discards the request.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool

from aftershock.faults.kinds.fault import Band, Draws
from aftershock.faults.kinds.protocol.base import ROOM_MS, SILENCE_MS, SLACK_MS, Api, ProbeResult, TamperFault
from aftershock.faults.plan.units import Duration
from aftershock.faults.targets.values import Answer

SHARE = 0.8  # of the requested delay that a probe must show


class DelayingFault(TamperFault):
    """Base of the faults that delay requests or responses of an API by ``delay``."""

    proof = "A matching probe is slower by the requested delay. The proxy counts altered requests (read each second)."
    remedy = "The rule is removed, and a probe is as fast as before."

    probes: ClassVar[int] = 3

    api: Api
    delay: Annotated[Duration, Field(ge=1, le=600_000)]

    def rule_action(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- no draws of its own
        return {"do": self.kind, "delay_ms": self.delay}

    @property
    def probing_ms(self) -> int:
        return self.delay + SLACK_MS

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> ProbeResult:  # noqa: ARG002 -- the client sees it
        """Expect a slower response to the probe than before; without a response, the time waited is compared."""
        rise_ms = now.ms - before.ms
        ok = now.outcome != "closed" and rise_ms >= SHARE * self.delay
        return ProbeResult("rise of the round trip of a matching probe", self.delay, rise_ms, "ms", ok)


class LosingFault(TamperFault):
    """Base of the faults that lose requests or responses of an API."""

    proof = (
        "A matching probe gets no answer, and its connection is closed or silent as requested. "
        "The proxy counts altered requests (read each second)."
    )
    remedy = "The rule is removed, silent connections are closed, and a probe is answered."

    api: Api
    connection: Annotated[
        Literal["closed", "silent"],
        Field(description="state of the connection after the request or response is lost"),
    ] = "closed"

    def rule_action(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- no draws of its own
        return {"do": self.kind, "connection": self.connection}

    @property
    def probing_ms(self) -> int:
        """Time in ms until a probe counts as unanswered, or until its connection closes."""
        return SILENCE_MS if self.connection == "silent" else SLACK_MS

    @property
    def limit_ms(self) -> int:
        """Time in ms that a probe waits for its response.

        A probe that should meet silence gets no extra time, because a late response disproves silence.
        """
        return self.probing_ms + (ROOM_MS if self.connection == "closed" else 0)

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> ProbeResult:  # noqa: ARG002 -- the client sees it
        """Expect no response to a probe, and its connection closed or silent as the plan requires."""
        lost = now.outcome == self.connection
        return ProbeResult(
            f"matching probes without an answer whose connection was {self.connection}", 1, float(lost), "probes", lost
        )


class DelayRequest(DelayingFault):
    """Delay requests of an API on their way to the broker."""

    band = Band("#fdae6b", "delay request")

    kind: Literal["delay_request"] = "delay_request"


class DelayResponse(DelayingFault):
    """Delay responses of an API on their way to the client."""

    band = Band("#fd8d3c", "delay response")

    kind: Literal["delay_response"] = "delay_response"
    serial: Annotated[
        StrictBool,
        Field(description="send the responses of a connection one after the other, with a `delay` before each"),
    ] = False

    def rule_action(self, draws: Draws) -> dict[str, Any]:
        return super().rule_action(draws) | {"serial": self.serial}


class DropRequest(LosingFault):
    """Lose requests of an API before they reach the broker."""

    band = Band("#9e9ac8", "drop request")

    kind: Literal["drop_request"] = "drop_request"


class DropResponse(LosingFault):
    """Lose responses of an API after the broker has served the requests."""

    band = Band("#756bb1", "drop response")

    kind: Literal["drop_response"] = "drop_response"


class DuplicateRequest(TamperFault):
    """Send requests of an API to the broker twice."""

    band = Band("#74c476", "duplicate request")
    proof = "The proxy counts a probe as duplicated. The proxy counts altered requests (read each second)."
    remedy = "The rule is removed."

    kind: Literal["duplicate_request"] = "duplicate_request"
    api: Api

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> ProbeResult:  # noqa: ARG002 -- no answer shows it
        """Judge by the wire proxy's counter of duplicated requests, as the client of a probe can't see a duplicate."""
        return ProbeResult("probes that the proxy has counted as duplicated", 1, probed, "probes", probed > 0)


class CloseMidFrame(TamperFault):
    """Close a connection in the middle of a request or response of an API."""

    band = Band("#bcbddc", "mid frame")
    proof = "The connection of a probe that matches the rule is closed. The proxy counts altered requests."
    remedy = "The rule is removed, and a probe is answered."

    kind: Literal["close_mid_frame"] = "close_mid_frame"
    api: Api
    message: Annotated[
        Literal["request", "response"], Field(description="message of which only the first half arrives")
    ] = "response"

    def rule_action(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- no draws of its own
        return {"do": self.kind, "message": self.message}

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> ProbeResult:  # noqa: ARG002 -- the client sees it
        """Expect that the probe's connection ends without a whole response."""
        closed = now.outcome == "closed"
        return ProbeResult("probes matching the rule whose connection was closed", 1, float(closed), "probes", closed)
