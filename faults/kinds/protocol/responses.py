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

``answer_error``: requests of an API are answered with an error of Kafka's.

What would change something at the broker never gets there: the proxy answers in its place, for all that the request
names. What only reads is served, and the error put into the broker's answer, for the topic and partition that the fault
is about. An error of fetch sessions is said of a Fetch as a whole, any other of its partitions.

``cap_versions``: an old broker, to any client: it offers no versions above these.

Versions are agreed on once a connection, so inject and heal close the connections of the clients it is for. An API
whose lowest version is above its cap, or whose cap is ``none``, isn't offered at all.

``falsify_hints``: brokers' answers name the wrong leader, the wrong address, session or replica.

The wrong broker is the one that the plan names: it is said to lead, in the epoch that was true; its address is given
as that of whoever was named; and consumers are sent to it, and get no records with that answer, as brokers do it. The
wrong session is one that nobody was granted, drawn by the compiler.

``strip_hints``: brokers' answers say nothing of who leads, where that is, which session or replica to use.

A client must find out by itself what it would have been told: by asking for metadata, or by fetching without a session.
"""

import random
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, WithJsonSchema
from pydantic_core import PydanticCustomError

from aftershock.faults.kinds.fault import Band, Draws, FieldPath, InjectionContext, PlanContext
from aftershock.faults.kinds.protocol.base import Api, Look, TamperFault
from aftershock.faults.plan.document import Problem, did_you_mean
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import Answer
from aftershock.faults.wire_proxy.messages import ERROR_CODES
from aftershock.faults.wire_proxy.rules import Hint


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


def _known(error: str) -> str:
    if error not in ERROR_CODES:
        sentence = f"Kafka has no error `{error}`; {did_you_mean(error, ERROR_CODES)}"
        raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
    return error


_ERROR = {"type": "string", "description": "Kafka's name of an error, like NOT_LEADER_OR_FOLLOWER"}


class AnswerError(TamperFault):
    """Answer requests of an API with an error."""

    band: ClassVar[Band] = Band("#e6550d", "error")
    proof: ClassVar[str] = "a probe that the rule meets is answered with that error; the proxy's counters each second"
    remedy: ClassVar[str] = "the rule is removed, and a probe is answered without it"

    kind: Literal["answer_error"] = "answer_error"
    api: Api
    error: Annotated[str, AfterValidator(_known), WithJsonSchema(_ERROR)]

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """By its code."""
        return {"do": "answer_error", "error": ERROR_CODES[self.error]}

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- it is seen from outside
        """The error, wherever it stands in the answer."""
        told = ERROR_CODES[self.error] in now.errors
        return Look(f"probes that the rule meets, answered with {self.error}", 1, float(told), "probes", told)


_NONE = "none"
_NOT_OFFERED = -1


def _not_at_all(value: object) -> object:
    return None if value == _NONE else value


Cap = Annotated[Annotated[StrictInt, Field(ge=0, le=100)] | None, BeforeValidator(_not_at_all)]


class CapVersions(TamperFault):
    """Let brokers offer no versions above these."""

    band: ClassVar[Band] = Band("#c49c94", "old broker")
    proof: ClassVar[str] = "the versions that a probe is offered; the proxy's counters each second"
    remedy: ClassVar[str] = "the rule is removed, connections are closed, and a probe is offered all versions"

    kind: Literal["cap_versions"] = "cap_versions"
    versions: Annotated[
        dict[Api, Cap], Field(min_length=1, description="the highest version of each API, or none: {Fetch: 12}")
    ]

    @property
    def named_api(self) -> str:
        """Where versions are offered."""
        return "ApiVersions"

    def parameters(self) -> dict[str, Any]:
        """With `none` as it was written."""
        return super().parameters() | {"versions": {api: _NONE if c is None else c for api, c in self.versions.items()}}

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """None: not at all."""
        return {"do": "cap_versions", "versions": self.versions}

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- it is seen from outside
        """How many of them are capped: all must be."""
        caps = {api: _NOT_OFFERED if cap is None else cap for api, cap in self.versions.items()}
        within = [api for api, cap in caps.items() if now.versions.get(api, _NOT_OFFERED) <= cap]
        ok = now.outcome == "answered" and len(within) == len(caps)
        return Look("APIs of which a probe is offered no version above the cap", len(caps), len(within), "APIs", ok)


_SESSIONS = (1 << 30, (1 << 31) - 1)


class FalsifyHints(HintFault):
    """Make hints in brokers' answers lead to the wrong broker, or to a session that there isn't."""

    band: ClassVar[Band] = Band("#636363", "false hints")
    proof: ClassVar[str] = "answers whose hints were falsified, as the proxy counts them each second"
    remedy: ClassVar[str] = "the rule is removed"

    kind: Literal["falsify_hints"] = "falsify_hints"
    broker: RoleText | None = None

    def roles(self) -> dict[FieldPath, str]:
        """The broker that is named in place of the right one."""
        return {("broker",): self.broker} if self.broker else {}

    def draw(self, source: random.Random) -> dict[str, Any]:
        """``session_id``: one that no broker is likely to have granted."""
        draws = super().draw(source)
        return draws | {"session_id": source.randint(*_SESSIONS)} if "session_id" in self.hints else draws

    def deed(self, draws: Draws) -> dict[str, Any]:
        """These."""
        return {"do": "falsify_hints", "hints": self.hints, "session_id": draws.get("session_id", 0)}

    async def resolved(self, context: InjectionContext, draws: Draws) -> dict[str, Any]:
        """Who plays the role now."""
        return {"broker": await resolve(self.broker, context.world, draws, "broker")} if self.broker else {}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Without a broker only a session can be falsified."""
        yield from super().problems(plan)
        others = [hint for hint in self.hints if hint != "session_id"]
        if others and self.broker is None:
            yield Problem((), f"a false {others[0]} names a broker: say which, like `broker: 2`")
        if not others and self.broker is not None:
            yield Problem(("broker",), "a false session_id names no broker: take this away")


class StripHints(HintFault):
    """Take hints out of brokers' answers."""

    band: ClassVar[Band] = Band("#969696", "no hints")
    proof: ClassVar[str] = "answers whose hints were taken out, as the proxy counts them each second"
    remedy: ClassVar[str] = "the rule is removed"

    kind: Literal["strip_hints"] = "strip_hints"

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """These."""
        return {"do": "strip_hints", "hints": self.hints}
