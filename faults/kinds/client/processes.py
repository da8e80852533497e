"""``kill_client``, ``pause_client``, ``zombie`` and ``disconnect_client``: faults on the processes of an arm's clients.

``kill_client`` sends SIGKILL to the clients and their child processes; the heal starts them again. Requests in flight
at the kill are in doubt. A producer continues at the current point of its schedule, and records due in between have
failed. A consumer gets partitions again, and may read records again that it had not committed. Its old member stays in
the group until its session times out, 45 s by default, and only then is the new one assigned anything. That wait is
Kafka's behaviour, and it is part of the heal.

``pause_client`` pauses the clients and their child processes with open sockets, like a long GC pause of a JVM. A paused
sender's schedule continues: after the resume it sends overdue records all at once. A consumer paused for longer than
its session is a ``zombie``.

``zombie`` pauses consumers for longer than their sessions, so that they are expelled from their group when they resume.
A zombie may process records of partitions that belong to another member by then, and its commits must be refused
(KIP-62 has heartbeats apart from polls; in KIP-848 the broker assigns).

``disconnect_client`` closes every TCP connection of the clients once, and no other connections. The harness duplicates
each socket of the client's process (pidfd_getfd(2), Linux 5.6) and shuts it down in both directions. The client reads
the end of its stream, as from a broker that went away, and the broker sees a closed connection. The kernel refuses this
for processes of another user, such as a Java client's container for all users but root; then the fault fails. Whether
the client reconnects is its own behaviour, which the objectives judge.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from aftershock.errors import FaultError
from aftershock.faults.kinds.client.base import ClientFault, DownInjection, client_targets
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

_LONG_WAIT_MS = 15_000


class KillClientInjection(DownInjection):
    """Kill of clients."""

    down: ClassVar[ClientState] = "exited"
    verb: ClassVar[Verb] = "start_clients"

    async def put_down(self, client: str) -> None:
        """Kill the client and wait until it is dead."""
        await self.context.world.kill_client(client)


class KillClient(ClientFault):
    """SIGKILL an arm's clients for a while."""

    band: ClassVar[Band] = Band("#8c564b", "kill client")
    proof: ClassVar[str] = "none of their processes is left, read back each second, and none writes a heartbeat"
    remedy: ClassVar[str] = "each is started, is ready (a consumer: has its partitions), and sends in time"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # Python, librdkafka or a JVM start in 1-4 s on a small machine

    kind: Literal["kill_client"] = "kill_client"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """Resolve the clients; raise FaultError if there is none, or one of them is down already."""
        return KillClientInjection(context, self.client_text, await self.resolve_clients(context))

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        """Warn of a consumer that waits for its group for much longer than ``for``."""
        for arm, session_ms in session_timeouts(self.selector, plan):
            if self.for_ is not None and session_ms - self.for_ > _LONG_WAIT_MS:
                yield Problem(
                    ("for",),
                    f"the consumer of `{arm}` gets its partitions back when its old session is over, "
                    f"{format_duration(session_ms)} after the kill, and the heal waits for that: lower the arm's "
                    "`session.timeout.ms`, or kill with `op: produce`",
                )


class PauseClientInjection(DownInjection):
    """Pause of clients."""

    down: ClassVar[ClientState] = "paused"
    verb: ClassVar[Verb] = "resume_clients"

    async def put_down(self, client: str) -> None:
        """Pause the client."""
        await self.context.world.pause_client(client)


class PauseClient(ClientFault):
    """Pause an arm's clients for a while."""

    band: ClassVar[Band] = Band("#c49c94", "pause client")
    proof: ClassVar[str] = "each of their processes is stopped, read back each second, and none writes a heartbeat"
    remedy: ClassVar[str] = "each is resumed, writes heartbeats, and has caught up with its schedule"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 3_000  # the backlog is sent at once

    kind: Literal["pause_client"] = "pause_client"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """Resolve the clients; raise FaultError if there is none, or one of them is down already."""
        return PauseClientInjection(context, self.client_text, await self.resolve_clients(context))


class ZombieInjection(PauseClientInjection):
    """Pause of consumers until their groups expel them."""

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that the consumers are paused, and that their groups expelled them before the resume."""
        await super().hold(until_us, report)

        async def membership() -> list[bool | None]:
            return [await self.context.world.in_group(client) for client in self.targets.clients]

        members = await retry_refused(membership, self.context.clock, READ_DEADLINE_MS)
        expelled, count = sum(member is False for member in members), len(members)
        what = "clients whose group's coordinator no longer has them as members"
        report(Witness(what, count, expelled, "clients", count, ok=expelled == count))

    async def missing(self, since_us: int) -> str | None:
        """Return None once all run, write heartbeats, and are members again."""
        for client in self.targets.clients:
            if not await self.context.world.in_group(client):
                return f"the client {client} has not joined its group again"
        return await super().missing(since_us)


class Zombie(ClientFault):
    """Pause an arm's consumers beyond their sessions."""

    band: ClassVar[Band] = Band("#7f7f7f", "zombie")
    proof: ClassVar[str] = "they are stopped, read back each second, and expelled from their groups by the coordinator"
    remedy: ClassVar[str] = "each is resumed, and a member of its group again"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # it learns that it was expelled with its next heartbeat, and joins again

    kind: Literal["zombie"] = "zombie"
    op: Op | None = "consume"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """Resolve the consumers; raise FaultError if one of them is a member of no group."""
        clients = await self.resolve_clients(context)
        for client in clients:
            if not await context.world.in_group(client.name):
                raise FaultError(f"the client {client.name} is in no group now, so it can't be expelled from one")
        return ZombieInjection(context, self.client_text, clients)

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        """Yield problems: only a consumer in a group has a session, and it must end before the resume."""
        if self.op != "consume":
            yield Problem(("op",), "only a consumer has a session and can be a zombie: set `op: consume`, or omit `op`")
            return
        sessions = list(session_timeouts(self.selector, plan))
        if not sessions and not plan.unreadable_workloads:
            yield Problem(("client",), f"`{self.client}` consumes in no group, so it has no session to outlast")
        for arm, session_ms in sessions:
            if self.for_ is not None and self.for_ < session_ms:
                yield Problem(
                    ("for",),
                    f"the session of `{arm}` lasts {format_duration(session_ms)}, and a zombie is paused for longer: "
                    f"lengthen `for` to {format_duration(session_ms + 3000)}, or lower the arm's `session.timeout.ms`",
                )


class DisconnectInjection(Injection):
    """Disconnection of clients. ``before``: the connections by client, before the fault."""

    undo = NOTHING

    def __init__(self, context: InjectionContext, asked: str, clients: Sequence[ClientProcess]) -> None:
        self.context = context
        self.targets = client_targets(asked, clients)
        self.before: dict[str, frozenset[str]] = {}

    async def read_connections(self) -> None:
        """Read the connections to close. Raises FaultError if a client has none, or its process can't be read."""
        for client in self.targets.clients:
            self.before[client] = await self.context.world.connections(client)
            if not self.before[client]:
                raise FaultError(f"the client {client} has no TCP connection now, so there is none to close")

    async def inject(self) -> None:
        """Close the connections."""
        for client in self.targets.clients:
            await run_to_completion(self.context.world.disconnect_client(client))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report that none of the earlier connections is established any more."""
        open_ = [await self.context.world.connections(client) & before for client, before in self.before.items()]
        count, still_open = sum(map(len, self.before.values())), sum(map(len, open_))
        what = f"connections of {', '.join(self.before)} that are no longer established, read back from the kernel"
        report(Witness(what, count, count - still_open, "connections", count, ok=still_open == 0))


class DisconnectClient(ClientFault):
    """Close the connections of an arm's clients."""

    drops_traffic: ClassVar[bool] = False
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = ()
    band: ClassVar[Band] = Band("#e377c2", "disconnect client")
    proof: ClassVar[str] = "the client's earlier connections are no longer established, read back from the kernel"
    remedy: ClassVar[str] = "nothing is left to heal: the client connects again by itself"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["disconnect_client"] = "disconnect_client"

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        """Resolve the clients; raise FaultError if one has no connection, or belongs to another user."""
        injection = DisconnectInjection(context, self.client_text, await self.resolve_clients(context))
        await injection.read_connections()
        return injection
