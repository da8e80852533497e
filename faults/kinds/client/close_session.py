"""``close_session``: close the fetch session of a consumer, by its id (KIP-227); it must ask for everything anew.

A broker closes a session for whoever names it, so nobody need pretend to be that consumer. The id is a random number
that only the two of them know: our reference consumers tell theirs in ``events.jsonl`` (``client``); that of any other
client must be given (``session`` and ``broker``), from its log say. librdkafka has no sessions.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Family,
    Fault,
    FieldPath,
    Injection,
    InjectionContext,
    Report,
    TargetKind,
)
from aftershock.faults.runtime.record import NOTHING, Targets, Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import BrokerId, ClientProcess

Session = tuple[BrokerId, int]


class CloseSessionInjection(Injection):
    """Some sessions, closed."""

    undo = NOTHING

    def __init__(self, context: InjectionContext, sessions: tuple[Session, ...], clients: tuple[str, ...]) -> None:
        self.context = context
        self.sessions = sessions
        brokers = tuple(sorted({broker for broker, _ in sessions}))
        self.targets = Targets(brokers, clients=clients, roles={"sessions": [list(session) for session in sessions]})

    async def inject(self) -> None:
        """Close each."""
        for broker, session in self.sessions:
            await run_to_completion(self.context.world.close_fetch_session(broker, session))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """The brokers don't know the sessions any more, which they did right before."""
        left = await retry_refused(self._left, self.context.clock, READ_DEADLINE_MS)
        asked = len(self.sessions)
        what = "fetch sessions, open before, that their brokers don't know any more"
        report(Witness(what, asked, asked - len(left), "sessions", asked, not left))

    async def _left(self) -> list[Session]:
        return [each for each in self.sessions if await self.context.world.fetch_session_is_open(*each)]


class CloseSession(Fault):
    """Close a consumer's fetch sessions."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#7b4173", "close session")
    proof: ClassVar[str] = "a broker that knew the session answers that it doesn't"
    remedy: ClassVar[str] = "nothing to bring back: the client asks for another session with its next fetch"
    exposure_target: ClassVar[TargetKind] = "brokers"
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = ()
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 500

    kind: Literal["close_session"] = "close_session"
    client: Annotated[str, Field(description="an arm whose reference consumers tell their sessions")] | None = None
    broker: Annotated[RoleText, Field(description="with `client`: only the session with this one")] | None = None
    session: Annotated[StrictInt, Field(ge=1, le=2**31 - 1, description="its id, with `broker`")] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.client is None) == (self.session is None) or (self.session is not None and self.broker is None):
            sentence = "a close_session needs either `client: ARM`, or `session: ID` and its `broker: ROLE`"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def roles(self) -> dict[FieldPath, str]:
        """The broker, if one is named."""
        return {("broker",): self.broker} if self.broker is not None else {}

    def clients(self) -> dict[FieldPath, str]:
        """The arm, if one is named."""
        return {("client",): self.client} if self.client is not None else {}

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if there is no such session."""
        world = context.world
        broker = None if self.broker is None else await resolve(self.broker, world, draws, "broker")
        workers = await _consumers(self.client, world) if self.client else ()
        told = [session for worker in workers for session in (await world.fetch_sessions(worker)).items()]
        told += [(broker, self.session)] if broker is not None and self.session is not None else []
        wanted = [(at, session) for at, session in told if broker in (None, at)]
        known = [each for each in sorted(wanted) if await world.fetch_session_is_open(*each)]
        if not known:
            whose = (
                f"{self.client} tells of none" if self.client else f"broker {broker} knows no session {self.session}"
            )
            raise FaultError(f"there is no fetch session to close: {whose}; only reference consumers tell theirs")
        return CloseSessionInjection(context, tuple(known), tuple(workers))


async def _consumers(arm: str, world: World) -> tuple[str, ...]:
    """The workers that consume for an arm."""
    return tuple(each.name for each in await world.clients() if each.op == "consume" and arm in _names(each))


def _names(client: ClientProcess) -> tuple[str, ...]:
    return client.arm, f"{client.workload}/{client.arm}"
