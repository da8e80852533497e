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

If ``close_mid_frame`` lets only the start of a response arrive, the broker has served the request, but the client can't
decode the response. If only the start of a request arrives, the broker discards the request. With ``after_bytes`` of 0
to 3, not even the length of the message arrives; from 4 on, the receiver knows how much it should wait for.

``falsify_hints`` names a wrong broker, given by the plan, as leader, as address of the leader or as preferred replica,
or a fetch session that no broker gave out. After ``strip_hints`` a client must request metadata, or fetch without a
session.

* The hint ``current_leader``, beside an error, names the current leader of the partition (KIP-951).
* The hint ``node_endpoints`` has the address of the current leader (KIP-951).
* The hint ``session_id`` in a Fetch response is the id of the fetch session that the broker granted (KIP-227).
* The hint ``preferred_replica`` in a Fetch response names the replica that the consumer should read from (KIP-392).

Responses to harmless probes contain no hints, so the wire proxy's count of changed responses is the only witness of a
hint fault.
"""

import random
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool, StrictInt

from aftershock.faults.kinds.fault import Band, Draws, InjectionContext, PlanContext
from aftershock.faults.kinds.protocol.base import ROOM_MS, SILENCE_MS, SLACK_MS, Api, TamperFault
from aftershock.faults.runtime.record import Witness
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import Duration
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import Answer
from aftershock.faults.wire_proxy.rules import Answered, Hint

SHARE = 0.8  # of the requested delay that a probe must show


class DelayingFault(TamperFault):
    """Base of faults that delay the requests or the responses of a Kafka API by ``delay``."""

    proof = "A probe is slower by the requested delay. The wire proxy counts altered requests (read each second)."
    remedy = "The rule is removed, and a probe is as fast as before."

    probes: ClassVar[int] = 3

    api: Api
    delay: Annotated[Duration, Field(ge=1, le=600_000)]

    def rule_action(self, draws: Draws) -> dict[str, Any]:
        return super().rule_action(draws) | {"delay_ms": self.delay}

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

    rule_fields = ("connection",)

    api: Api
    connection: Annotated[
        Literal["closed", "silent"], Field(description="state of the connection after the request or response is lost")
    ] = "closed"

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
    rule_fields = ("serial",)
    kind: Literal["delay_response"] = "delay_response"
    serial: Annotated[
        StrictBool,
        Field(description="send the responses of a connection one after the other, with a `delay` before each"),
    ] = False


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
    rule_fields = ("answer",)
    kind: Literal["duplicate_request"] = "duplicate_request"
    api: Api
    answer: Annotated[
        Answered, Field(description="which of the two responses the client gets; the other one is discarded")
    ] = "first"

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
        "{api: Produce, message: request, probability: [0.1, 0.5], after_bytes: [0, 3, 4, 60]}",
        "{api: Fetch, probability: [0.1, 0.5]}",
        "{api: Fetch, probability: 0.2, after_bytes: [3, 4, 60]}",
    )
    rule_fields = ("message", "after_bytes")
    kind: Literal["close_mid_frame"] = "close_mid_frame"
    api: Api
    message: Annotated[Literal["request", "response"], Field(description="message of which only the start arrives")] = (
        "response"
    )
    after_bytes: Annotated[StrictInt, Field(ge=0, le=100_000_000)] | None = Field(
        default=None,
        description="bytes of the message that arrive, its length prefix of 4 bytes included; at most all but the last "
        "one, by default half of the message",
    )

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> Witness:  # noqa: ARG002 -- the client sees it
        """Return a witness that the connection of a probe was closed before a whole response."""
        closed = now.outcome == "closed"
        return Witness("matching probes whose connection was closed", 1, float(closed), "probes", 1, closed)


class UnprobedFault(TamperFault):
    """Base of faults on parts of responses (hints, errors) that the response to a harmless probe does not have."""

    @property
    def probe_api(self) -> str | None:
        return None

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> Witness:  # noqa: ARG002 -- no probe is sent
        return Witness("altered responses to probes", 0, 0, "responses", 1, ok=False)


class HintFault(UnprobedFault):
    """Base of faults that change or remove hints (leader, address, session, replica) in brokers' responses."""

    rule_fields = ("hints",)
    api: Api | None = None
    hints: Annotated[tuple[Hint, ...], Field(min_length=1)]


_SESSIONS = (1 << 30, (1 << 31) - 1)


class FalsifyHints(HintFault):
    """Change hints in brokers' responses to a wrong broker or an unknown fetch session."""

    band = Band("#636363", "false hints")
    unavailable = "unknown"  # a client may follow the hints again and again
    proof = "The wire proxy counts the responses in which it changed a hint (read each second)."
    remedy = "The rule is removed."

    drawn = (
        "{api: Produce, hints: [[current_leader],[current_leader,node_endpoints]], broker: any broker except controller, for: 8s}",  # noqa: E501 -- YAML in one piece
        '{api: Fetch, hints: [[current_leader], [node_endpoints]], broker: "any broker except controller", for: 8s}',
        "{api: Fetch, hints: [[session_id]], for: 8s}",
    )
    drawn_with = "{kind: reassign, topic: TOPIC, rotate: 1}"
    kind: Literal["falsify_hints"] = "falsify_hints"
    broker: RoleText | None = None

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw the fault's random choices, including a fetch session id that no broker is likely to use."""
        draws = super().draw(source)
        return draws | {"session_id": source.randint(*_SESSIONS)} if "session_id" in self.hints else draws

    def rule_action(self, draws: Draws) -> dict[str, Any]:
        return super().rule_action(draws) | {"session_id": draws.get("session_id", 0)}

    async def resolved(self, context: InjectionContext, draws: Draws) -> dict[str, Any]:
        """Return the node id of the broker that has the role ``broker`` at the injection."""
        return {"broker": await resolve(self.broker, context.world, draws, "broker")} if self.broker else {}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        others = [hint for hint in self.hints if hint != "session_id"]
        if others and self.broker is None:
            yield Problem((), f"the hint {others[0]} needs the id of a wrong broker: add it, like `broker: 2`")
        if not others and self.broker is not None:
            yield Problem(("broker",), "the hint session_id contains no broker to change: remove `broker`")


class StripHints(HintFault):
    """Remove hints from brokers' responses."""

    band = Band("#969696", "no hints")
    proof = "The wire proxy counts the responses from which it removed a hint (read each second)."
    remedy = "The rule is removed."

    drawn = (
        "{api: Produce, hints: [[current_leader, node_endpoints]], for: 8s}",
        "{api: Fetch, hints: [[current_leader], [session_id], [current_leader, node_endpoints, session_id]], for: 8s}",
    )
    drawn_with = "{kind: reassign, topic: TOPIC, rotate: 1}"
    kind: Literal["strip_hints"] = "strip_hints"
