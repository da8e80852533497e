"""``kill_client``: SIGKILL an arm's clients and all that they started; the heal starts them again.

What a client had open when it died is in doubt. A producer goes on where its schedule is by then, and what was due
meanwhile has failed; a consumer is given its partitions anew, and may be handed again what it had not yet committed.
Its old self stays a member of the group until its session times out, 45 s by default, and only then is the new one
given anything: that wait is Kafka's, and belongs to the heal.

``pause_client``: freeze an arm's clients and all that they started, sockets open, as a long stop of a JVM does.

A frozen sender's schedule goes on without it: what was due is sent late, all at once, when it is thawed. A consumer
that is frozen for longer than its session is a ``zombie``.

``zombie``: freeze an arm's consumers for longer than their sessions, so that they wake up expelled from their group.

What a zombie does before it knows is the point: it may go on with records of partitions that are another's by now, and
its commits must be refused (KIP-62 has heartbeats apart from polls; in KIP-848 the broker assigns).

``disconnect_client``: end every TCP connection of an arm's clients, and nobody else's, once.

The harness takes a copy of each socket from the client's process (pidfd_getfd(2), Linux 5.6) and shuts it down both
ways, so the client reads the end of its stream, as from a broker that went away, and the broker sees it hang up. A
process of another user's, as a container of a Java client is to all but root, lets nobody do that: then it fails.

What a client does about it is the client's: it connects again by itself, or doesn't, and the objectives judge that.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from aftershock.errors import FaultError
from aftershock.faults.kinds.client.base import ClientFault, DownInjection, targets_of
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import format_duration
from aftershock.faults.runtime.record import NOTHING, Verb, Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion
from aftershock.faults.targets.clients import Op, session_timeouts
from aftershock.faults.targets.values import ClientProcess, ClientState

_SHORT_MS = 15_000


class KillClientInjection(DownInjection):
    """Clients, killed."""

    down: ClassVar[ClientState] = "exited"
    verb: ClassVar[Verb] = "start_clients"

    async def put_down(self, client: str) -> None:
        """Kill it and see it dead."""
        await self.context.world.kill_client(client)


class KillClient(ClientFault):
    """SIGKILL an arm's clients for a while."""

    band: ClassVar[Band] = Band("#8c564b", "kill client")
    proof: ClassVar[str] = "no process of theirs is left, read back each second, and none gives a sign of life"
    remedy: ClassVar[str] = "each is started, is ready (a consumer: has its partitions), and sends in time"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # Python, librdkafka or a JVM start in 1-4 s on a small machine

    kind: Literal["kill_client"] = "kill_client"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """FaultError if there is no such client, or one of them is down already."""
        return KillClientInjection(context, self.said, await self.hit(context))

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        """A consumer that waits longer for its group than anybody would expect of a restart."""
        for arm, session_ms in session_timeouts(self.selector, plan):
            if self.for_ is not None and session_ms - self.for_ > _SHORT_MS:
                yield Problem(
                    ("for",),
                    f"the consumer of `{arm}` gets its partitions back when its old session is over, "
                    f"{format_duration(session_ms)} after the kill, and the heal waits for that: lower the arm's "
                    "`session.timeout.ms`, or kill with `op: produce`",
                )


class PauseClientInjection(DownInjection):
    """Clients, frozen."""

    down: ClassVar[ClientState] = "paused"
    verb: ClassVar[Verb] = "resume_clients"

    async def put_down(self, client: str) -> None:
        """Freeze it."""
        await self.context.world.pause_client(client)


class PauseClient(ClientFault):
    """Freeze an arm's clients for a while."""

    band: ClassVar[Band] = Band("#c49c94", "pause client")
    proof: ClassVar[str] = "every process of theirs is stopped, read back each second, and none gives a sign of life"
    remedy: ClassVar[str] = "each is thawed, speaks, and has caught up with its schedule"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 3_000  # the backlog is sent at once

    kind: Literal["pause_client"] = "pause_client"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """FaultError if there is no such client, or one of them is down already."""
        return PauseClientInjection(context, self.said, await self.hit(context))


class ZombieInjection(PauseClientInjection):
    """Consumers, frozen until nobody counts on them any more."""

    async def hold(self, until_us: int | None, report: Report) -> None:
        """They must stay frozen, and be out of their groups before they are thawed."""
        await super().hold(until_us, report)
        report(await self._expelled())

    async def _expelled(self) -> Witness:
        """What the coordinators say of them."""
        members = await retry_refused(self._members, self.context.clock, READ_DEADLINE_MS)
        gone = sum(member is False for member in members)
        what = "clients whose group's coordinator no longer has them as members"
        return Witness(what, len(members), gone, "clients", len(members), ok=gone == len(members))

    async def _members(self) -> list[bool | None]:
        return [await self.context.world.in_group(client) for client in self.targets.clients]

    async def missing(self, since_us: int) -> str | None:
        """None once all run, speak, and are members again."""
        for client in self.targets.clients:
            if not await self.context.world.in_group(client):
                return f"the client {client} has not joined its group again"
        return await super().missing(since_us)


class Zombie(ClientFault):
    """Freeze an arm's consumers beyond their sessions."""

    band: ClassVar[Band] = Band("#7f7f7f", "zombie")
    proof: ClassVar[str] = "they are stopped, read back each second, and expelled from their groups by the coordinator"
    remedy: ClassVar[str] = "each is thawed, and a member of its group again"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # it learns that it was expelled with its next heartbeat, and joins again

    kind: Literal["zombie"] = "zombie"
    op: Op | None = "consume"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """FaultError if one of them is a member of no group."""
        clients = await self.hit(context)
        for client in clients:
            if not await context.world.in_group(client.name):
                raise FaultError(f"the client {client.name} is in no group now, so it can't be expelled from one")
        return ZombieInjection(context, self.said, clients)

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Only a consumer in a group has a session, and it must be over before the thaw."""
        if self.op != "consume":
            yield Problem(
                ("op",), "only a consumer can be a zombie, for it has a session: say `op: consume`, or nothing"
            )
            return
        sessions = list(session_timeouts(self.selector, plan))
        if not sessions and not plan.unreadable_workloads:
            yield Problem(("client",), f"`{self.client}` consumes in no group, so it has no session to outlast")
        for arm, session_ms in sessions:
            if self.for_ is not None and self.for_ < session_ms:
                yield Problem(
                    ("for",),
                    f"the session of `{arm}` lasts {format_duration(session_ms)}, and a zombie is frozen for longer: "
                    f"lengthen `for` to {format_duration(session_ms + 3000)}, or lower the arm's `session.timeout.ms`",
                )


class DisconnectInjection(Injection):
    """Clients, and the connections that they had. ``before``: those, by client."""

    undo = NOTHING

    def __init__(self, context: InjectionContext, asked: str, clients: Sequence[ClientProcess]) -> None:
        self.context = context
        self.targets = targets_of(asked, clients)
        self.before: dict[str, frozenset[str]] = {}

    async def look(self) -> None:
        """Note what there is to end. FaultError if a client has nothing, or doesn't let us look."""
        for client in self.targets.clients:
            self.before[client] = await self.context.world.connections(client)
            if not self.before[client]:
                raise FaultError(f"the client {client} has no TCP connection now, so there is none to end")

    async def inject(self) -> None:
        """End them."""
        for client in self.targets.clients:
            await run_to_completion(self.context.world.disconnect_client(client))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """None of those connections is there any more, whatever new ones there are."""
        left = [await self.context.world.connections(client) & had for client, had in self.before.items()]
        had, ended = (sum(map(len, each)) for each in (self.before.values(), left))
        what = f"connections of {', '.join(self.before)} that are no longer established, read back from the kernel"
        report(Witness(what, had, had - ended, "connections", had, ok=ended == 0))


class DisconnectClient(ClientFault):
    """End an arm's clients' connections."""

    drops_traffic: ClassVar[bool] = False
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = ()
    band: ClassVar[Band] = Band("#e377c2", "disconnect client")
    proof: ClassVar[str] = "the connections that it had are no longer established, read back from the kernel"
    remedy: ClassVar[str] = "nothing is left to heal: the client connects again by itself"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["disconnect_client"] = "disconnect_client"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """FaultError if one of them has no connection, or is another user's."""
        injection = DisconnectInjection(context, self.said, await self.hit(context))
        await injection.look()
        return injection
