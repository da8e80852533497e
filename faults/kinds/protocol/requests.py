"""Protocol faults that delay, lose, duplicate or truncate messages of an API.

Under ``delay_request``, later requests of a connection wait behind a delayed request; the delays of several requests
overlap rather than add up. Under ``delay_response``, the broker has served a request long before its response reaches
the client. With ``serial``, the responses on a connection leave one at a time, each a ``delay`` after the previous
response, which resembles a slow request handler, while a slow network delays everything in flight together.

After ``drop_request`` or ``drop_response`` loses a message, the connection is closed, as by a peer that died, or silent
until the heal closes it, because TCP loses no message out of the middle of a stream. The client can't know whether the
broker served a request whose response is lost; a retry repeats the effect of the request, unless it is idempotent.

Under ``duplicate_request``, the client gets one response to a request that reaches the broker twice. TCP never
duplicates a request, but a proxy, a replay or a client that retries too early can duplicate a request.

If ``close_mid_frame`` lets only half of a response arrive, the broker has served the request, but the client can't
decode the response. If only half of a request arrives, the broker discards the request.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool

from aftershock.faults.kinds.fault import Band, Draws
from aftershock.faults.kinds.protocol.base import ROOM_MS, SILENCE_MS, SLACK_MS, Api, TamperFault
from aftershock.faults.runtime.record import Witness
from aftershock.faults.sections.units import Duration
from aftershock.faults.targets.values import Answer

SHARE = 0.8  # of the requested delay that a probe must show


class DelayingFault(TamperFault):
    """Base of faults that delay the requests or the responses of a Kafka API by ``delay``."""

    proof = "A probe is slower by the requested delay. The wire proxy counts altered requests (read each second)."
    remedy = "The rule is removed, and a probe is as fast as before."

    probes: ClassVar[int] = 3

    api: Api
    delay: Annotated[Duration, Field(ge=1, le=600_000)]

    def rule_action(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- no draws of its own
        return {"do": self.kind, "delay_ms": self.delay}

    @property
    def probing_ms(self) -> int:
        return self.delay + SLACK_MS

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> Witness:  # noqa: ARG002 -- the client sees it
        """Compare a probe's round trip with that before the fault; an unanswered probe counts with its waiting time."""
        rise_ms = now.ms - before.ms
        ok = now.outcome != "closed" and rise_ms >= SHARE * self.delay
        return Witness("rise of the round trip of a matching probe", self.delay, round(rise_ms, 3), "ms", 1, ok)


class LosingFault(TamperFault):
    """Base of faults that lose requests or responses of a Kafka API."""

    proof = "A matching probe gets no answer. The wire proxy counts altered requests (read each second)."
    remedy = "The rule is removed, silent connections are closed, and a probe is answered."

    api: Api
    connection: Annotated[
        Literal["closed", "silent"], Field(description="state of the connection after the request or response is lost")
    ] = "closed"

    def rule_action(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- no draws of its own
        return {"do": self.kind, "connection": self.connection}

    @property
    def probing_ms(self) -> int:
        return SILENCE_MS if self.connection == "silent" else SLACK_MS

    @property
    def limit_ms(self) -> int:
        # a probe that should meet silence gets no further time, because a late response disproves silence
        return self.probing_ms + (ROOM_MS if self.connection == "closed" else 0)

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> Witness:  # noqa: ARG002 -- the client sees it
        """Return a witness that a probe got no response on a connection that is closed, or silent, as requested."""
        lost = now.outcome == self.connection
        what = f"matching probes without a response whose connection was {self.connection}"
        return Witness(what, 1, float(lost), "probes", 1, lost)


class DelayRequest(DelayingFault):
    """Delay requests of an API on their way to the broker."""

    band = Band("#fdae6b", "delay request")

    drawn = (
        "{api: Produce, delay: [50ms, 300ms]}",
        "{api: Fetch, delay: [50ms, 300ms]}",
        "{api: OffsetCommit, delay: 100ms}",
    )
    kind: Literal["delay_request"] = "delay_request"


class DelayResponse(DelayingFault):
    """Delay responses of an API on their way to the client."""

    band = Band("#fd8d3c", "delay response")

    drawn = (
        "{api: Produce, delay: [50ms, 300ms]}",
        "{api: Produce, delay: 100ms, serial: true}",
        "{api: Fetch, delay: [50ms, 300ms]}",
        "{api: OffsetCommit, delay: 100ms}",
    )
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

    drawn = (
        "{api: Produce, probability: [0.1, 0.5]}",
        "{api: Fetch, probability: 0.2}",
        "{api: OffsetCommit, probability: 0.2}",
    )
    kind: Literal["drop_request"] = "drop_request"


class DropResponse(LosingFault):
    """Lose responses of an API after the broker has served the requests."""

    band = Band("#756bb1", "drop response")

    drawn = (
        "{api: Produce, probability: [0.1, 0.5], connection: [closed, silent]}",
        "{api: Fetch, probability: 0.2}",
        "{api: OffsetCommit, probability: 0.2}",
    )
    kind: Literal["drop_response"] = "drop_response"


class DuplicateRequest(TamperFault):
    """Send requests of an API to the broker twice."""

    band = Band("#74c476", "duplicate request")
    proof = "The wire proxy counts duplicated requests (read each second), and a probe is one of them."
    remedy = "The rule is removed."

    drawn = ("{api: Produce, probability: [0.1, 0.5]}",)
    kind: Literal["duplicate_request"] = "duplicate_request"
    api: Api

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> Witness:  # noqa: ARG002 -- no answer shows it
        """Return a witness from the wire proxy's counter, because the sender of a probe can't see its duplicate."""
        return Witness("probes that the wire proxy has counted as duplicated", 1, probed, "probes", 1, probed > 0)


class CloseMidFrame(TamperFault):
    """Close a connection in the middle of a request or response of an API."""

    band = Band("#bcbddc", "mid frame")
    proof = "The connection of a probe is closed. The wire proxy counts altered requests (read each second)."
    remedy = "The rule is removed, and a probe is answered."

    drawn = (
        "{api: Produce, message: [request, response], probability: [0.1, 0.5]}",
        "{api: Fetch, probability: [0.1, 0.5]}",
    )
    kind: Literal["close_mid_frame"] = "close_mid_frame"
    api: Api
    message: Annotated[
        Literal["request", "response"], Field(description="message of which only the first half arrives")
    ] = "response"

    def rule_action(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- no draws of its own
        return {"do": self.kind, "message": self.message}

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> Witness:  # noqa: ARG002 -- the client sees it
        """Return a witness that the connection of a probe was closed before a whole response."""
        closed = now.outcome == "closed"
        return Witness("matching probes whose connection was closed", 1, float(closed), "probes", 1, closed)
