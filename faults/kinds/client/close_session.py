"""Fault ``close_session``, which closes a consumer's fetch session (KIP-227), so that it sends a full fetch request.

A broker closes a fetch session on the request of any client that names the session id, a random number. The reference
consumers write their session ids to ``events.jsonl``; for another client, the plan gives a session id and its broker,
for instance from the client's log. The confluent client (librdkafka) has no fetch sessions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    Fault,
    FieldPath,
    Impact,
    Injection,
    InjectionContext,
    Report,
)
from aftershock.faults.runtime.record import Targets, Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion
from aftershock.faults.targets.clients import ClientText, select_clients
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import BrokerId

Session = tuple[BrokerId, int]


@dataclass(eq=False)
class CloseSessionInjection(Injection):
    sessions: Sequence[Session]

    async def inject(self) -> None:
        for broker, session in self.sessions:
            await run_to_completion(self.context.world.close_fetch_session(broker, session))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report the number of fetch sessions that their brokers no longer have."""

        async def open_sessions() -> list[Session]:
            return [session for session in self.sessions if await self.context.world.fetch_session_is_open(*session)]

        remaining = await retry_refused(open_sessions, self.context.clock, READ_DEADLINE_MS)
        asked = len(self.sessions)
        what = "fetch sessions that were open before the fault and are closed now, according to their brokers"
        report(Witness(what, asked, asked - len(remaining), "sessions", asked, not remaining))


class CloseSession(Fault):
    """Close the fetch sessions of a consumer (KIP-227)."""

    family = "Kafka"
    band = Band("#7b4173", "close session")
    proof = "Each broker answers that it does not know the closed fetch session."
    remedy = "Nothing needs to be restored: the consumer opens a new fetch session with its next fetch."
    exposure_target = "brokers"
    closes_connections = True  # the broker answers the next fetch with an error
    exclusive_resources = ()
    for_rule = "refused"
    allowance_ms = 500
    apis = ("Fetch",)

    drawn = ("{client: CLIENT}",)
    kind: Literal["close_session"] = "close_session"
    client: ClientText | None = Field(
        default=None,
        description="the arm (of reference clients) whose consumers' fetch sessions are closed",
    )
    broker: RoleText | None = Field(default=None, description="the broker whose fetch sessions are closed")
    session: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] | None = Field(
        default=None, description="id of the fetch session to close; needs `broker`"
    )

    def impact(self) -> Impact:
        return "connections"

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.client is None) == (self.session is None) or (self.session is not None and self.broker is None):
            raise ValueError("close_session needs either `client: ARM`, or `session: ID` and its `broker: ROLE`")
        return self

    def clients(self) -> dict[FieldPath, str]:
        return {("client",): self.client} if self.client is not None else {}

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        broker = None if self.broker is None else await resolve(self.broker, world, draws, "broker")
        clients = await select_clients(self.client, world, draws) if self.client else ()
        consumers = tuple(client.name for client in clients if client.op == "consume")
        sessions = [session for name in consumers for session in (await world.fetch_sessions(name)).items()]
        sessions += [(broker, self.session)] if broker is not None and self.session is not None else []
        on_broker = [(node, session) for node, session in sessions if broker in (None, node)]
        open_ = [session for session in sorted(on_broker) if await world.fetch_session_is_open(*session)]
        if not open_:
            if self.client is None:
                raise FaultError(f"broker {broker} has no open fetch session {self.session}; check `session`")
            raise FaultError(f"{self.client} reports no open fetch session; only reference consumers report sessions")
        brokers = tuple(sorted({node for node, _ in open_}))
        targets = Targets(brokers, clients=consumers, roles={"sessions": [list(session) for session in open_]})
        return CloseSessionInjection(context, targets, open_)
