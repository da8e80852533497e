"""What the two kinds share that make something late: how long, and a probe that takes as much longer.

What the two kinds share that lose something: what becomes of the connection, and a probe that gets no answer.

TCP loses no message out of the middle, and clients rely on it. So nothing follows on the connection what was lost:
either it is closed, as by a peer that died, or it keeps silent, as by a network that swallows all, until the heal
closes it.

``delay_request``: requests of an API reach the broker late, as over a slow network.

What follows on the same connection waits behind them. Requests that wait at the same time wait side by side.

``delay_response``: answers to requests of an API reach the client late; the broker has served them long since.

``serial`` lets one such answer pass at a time on each connection, that long after the one before: a request handler
that is slow, where a slow network would delay what is in flight together.

``drop_request``: requests of an API never reach the broker, and nobody is told but by the end of the connection.

``drop_response``: the broker serves a request and its answer is lost: the ambiguous acknowledgement.

A client that asks again does what it asked for twice, unless it is idempotent. Whatever else was in flight on the
connection is as ambiguous.

``duplicate_request``: requests of an API reach the broker twice, and the client hears of one.

No TCP does this; a proxy, a replay or a client that asks again too early does. What is not idempotent is done twice.

``close_mid_frame``: half of a message arrives, then the connection is closed.

Half of an answer: the broker has served the request, and the client has bytes that it can do nothing with. Half of a
request: the broker drops it with the connection.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool

from aftershock.faults.kinds.fault import Band, Draws
from aftershock.faults.kinds.protocol.base import ROOM_MS, SILENCE_MS, SLACK_MS, Api, Look, TamperFault
from aftershock.faults.plan.units import Duration
from aftershock.faults.targets.values import Answer

SHARE = 0.8  # of the delay asked for that a probe must show


class DelayingFault(TamperFault):
    """Something of an API's is late by ``delay``."""

    proof: ClassVar[str] = (
        "a probe that the rule meets, slower by the delay asked for; the proxy's counters each second"
    )
    remedy: ClassVar[str] = "the rule is removed, and a probe is as quick as before"

    probes: ClassVar[int] = 3

    api: Api
    delay: Annotated[Duration, Field(ge=1, le=600_000)]

    @property
    def probing_ms(self) -> int:
        """Its delay."""
        return self.delay + SLACK_MS

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- it is seen from outside
        """A probe without an answer is as slow as it has waited."""
        rise_ms = now.ms - before.ms
        ok = now.outcome != "closed" and rise_ms >= SHARE * self.delay
        return Look("the round trip of a probe that the rule meets rose", self.delay, rise_ms, "ms", ok)


class LosingFault(TamperFault):
    """Something of an API's is lost."""

    proof: ClassVar[str] = (
        "a probe that the rule meets is hung up on, or never answered; the proxy's counters each second"
    )
    remedy: ClassVar[str] = "the rule is removed, silent connections are closed, and a probe is answered"

    api: Api
    connection: Annotated[
        Literal["closed", "silent"], Field(description="what becomes of the connection it was lost on")
    ] = "closed"

    @property
    def probing_ms(self) -> int:
        """Silence takes its time to be believed."""
        return SILENCE_MS if self.connection == "silent" else SLACK_MS

    @property
    def limit_ms(self) -> int:
        """An answer that comes late is none of silence."""
        return self.probing_ms + (ROOM_MS if self.connection == "closed" else 0)

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- it is seen from outside
        """The end that the plan asked for, and no answer."""
        lost = now.outcome == self.connection
        return Look(f"probes that the rule meets, unanswered and {self.connection}", 1, float(lost), "probes", lost)


class DelayRequest(DelayingFault):
    """Delay requests of an API."""

    band: ClassVar[Band] = Band("#fdae6b", "delay request")

    kind: Literal["delay_request"] = "delay_request"

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """For so long."""
        return {"do": "delay_request", "delay_ms": self.delay}


class DelayResponse(DelayingFault):
    """Delay the answers to requests of an API."""

    band: ClassVar[Band] = Band("#fd8d3c", "delay response")

    kind: Literal["delay_response"] = "delay_response"
    serial: Annotated[StrictBool, Field(description="one at a time on each connection")] = False

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """For so long, side by side or one after the other."""
        return {"do": "delay_response", "delay_ms": self.delay, "serial": self.serial}


class DropRequest(LosingFault):
    """Lose requests of an API before the broker sees them."""

    band: ClassVar[Band] = Band("#9e9ac8", "drop request")

    kind: Literal["drop_request"] = "drop_request"

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """And what becomes of the connection."""
        return {"do": "drop_request", "connection": self.connection}


class DropResponse(LosingFault):
    """Lose answers to requests of an API after the broker has served them."""

    band: ClassVar[Band] = Band("#756bb1", "drop response")

    kind: Literal["drop_response"] = "drop_response"

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """And what becomes of the connection."""
        return {"do": "drop_response", "connection": self.connection}


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
