"""Base of faults that stop the worker processes of an arm's clients, which return after the fault.

Two observations show that a client is down, namely the kernel's state of its processes (for a container, also the
engine's state) and the missing heartbeat, which a running worker process writes twice a second into shared memory.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Draws,
    ExclusiveResource,
    Fault,
    ForRule,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.runtime.record import Targets, Undo, Verb, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.workloads import Workload
from aftershock.faults.targets.clients import ClientText, Op, Selector, parse, select_clients, with_op
from aftershock.faults.targets.values import ClientState, Heartbeat

CLIENT_RETURN_DEADLINE_MS = 90_000  # a killed consumer gets its partitions when its old member's session times out
LATE_US_MAX = 50_000
HEARTBEAT_US = 1_000_000  # twice the heartbeat interval


@dataclass(eq=False)
class DownInjection(Injection):
    """Injection that stops or pauses client processes.

    ``down`` is the state of the processes during the fault, ``verb`` the verb of the undo, which brings the processes
    back.
    """

    down: ClassVar[ClientState]
    verb: ClassVar[Verb]

    members: frozenset[str] = field(default=frozenset(), kw_only=True)
    """Clients that their group's coordinator listed before the fault."""

    def __post_init__(self) -> None:
        self.undo = Undo(self.verb, {"clients": list(self.targets.clients)})

    @abstractmethod
    async def put_down(self, client: str) -> None: ...

    async def inject(self) -> None:
        clients, world = self.targets.clients, self.context.world
        self.members = frozenset([client for client in clients if await world.in_group(client)])
        for client in clients:
            await run_to_completion(self.put_down(client))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report each second that the client processes are down, and that the clients write no heartbeat."""
        clock, before, began_us = self.context.clock, await self._heartbeats(), self.context.clock.now_us()
        report(await self.read_back())
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            report(await self.read_back())
            if clock.now_us() - began_us >= HEARTBEAT_US:
                now = await self._heartbeats()
                active = sum(now[client] != before[client] for client in now)
                what = "clients that wrote a heartbeat or had a success during the fault"
                report(Witness(what, asked=0, observed=active, unit="clients", n=len(now), ok=active == 0))

    async def read_back(self) -> Witness:
        states = await self._states()
        down = sum(state == self.down for state in states.values())
        what = f"clients whose processes are {self.down}, as the kernel reports"
        return Witness(what, len(states), down, "clients", len(states), ok=down == len(states))

    async def confirm_healed(self) -> None:
        """Wait until each client runs, writes heartbeats, is on schedule, and in its group, for a limited time.

        Raises FaultError if a client lacks one of the first three then. A client that runs and does not join its group
        again is healed: that is a failure of the client, which the run's checks judge.
        """
        since_us = self.context.clock.now_us()
        try:
            await wait_until(lambda: self.missing(since_us), self.context.clock, CLIENT_RETURN_DEADLINE_MS)
        except FaultError as error:
            if await self.missing(since_us, joined=False):
                raise FaultError(f"{error}; look at the client's log, logs/<client>.log of the run") from error

    async def missing(self, since_us: int, *, joined: bool = True) -> str | None:
        """Return None once all clients run, are on schedule and (if ``joined``) in their groups, else why not."""
        states = await self._states()
        for client, heartbeat in (await self._heartbeats()).items():
            if states.get(client) != "running":
                return f"the client {client} is {states.get(client, 'gone')}"
            if joined and client in self.members and not await self.context.world.in_group(client):
                return f"the client {client} has not joined its group again"
            if heartbeat is None or heartbeat.t_us <= since_us:
                return f"the client {client} has written no heartbeat since the heal"
            if heartbeat.late_us > LATE_US_MAX:
                return f"the client {client} is {heartbeat.late_us / 1000:.0f} ms behind its schedule"
        return None

    async def _states(self) -> dict[str, ClientState]:
        states = {client.name: client.state for client in await self.context.world.clients()}
        return {client: states.get(client, "exited") for client in self.targets.clients}

    async def _heartbeats(self) -> dict[str, Heartbeat | None]:
        return {client: await self.context.world.last_heartbeat(client) for client in self.targets.clients}


async def services_among(clients: Sequence[str], context: InjectionContext) -> list[str]:
    """Return those of the clients that are processes of a service."""
    services = {client.name for client in await context.world.clients() if client.op == "pipe"}
    return [client for client in clients if client in services]


async def require_told(clients: Sequence[str], context: InjectionContext) -> None:
    """Raise FaultError if it can't be told which member of its group a process of a service is."""
    for client in await services_among(clients, context):
        if await context.world.in_group(client) is None:
            raise FaultError(
                f"it can't be told which member of its group is {client}, because several processes joined at the same "
                "time: let the service set its `client.id` to the word {member}"
            )


class ClientFault(Fault):
    """Base of faults on all clients of an arm, or only on its producers or consumers (``op``)."""

    family = "client"
    exposure_target = "clients"
    drops_traffic = True
    for_rule: ClassVar[ForRule] = "needed"
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "clients"),)
    needs_members: ClassVar[bool] = False
    """True for a kind that must know which member of its group a process of a service is."""

    client: ClientText
    op: Op | None = None

    def clients(self) -> dict[tuple[str, ...], str]:
        return {("client",): self.client_text}

    async def target_clients(self, context: InjectionContext, draws: Draws) -> Targets:
        clients = await select_clients(self.client_text, context.world, draws)
        down = next((client for client in clients if client.state != "running"), None)
        if down is not None:
            raise FaultError(
                f"the client {down.name} is {down.state} already; start this fault after the heal of the other fault "
                "on the client"
            )
        return Targets(clients=tuple(sorted(client.name for client in clients)), roles={"asked": self.client_text})

    @property
    def selector(self) -> Selector:
        return parse(self.client_text)

    @property
    def client_text(self) -> str:
        """The selector of the fault's clients as plans write it, such as ``orders/baseline``."""
        return with_op(self.client, self.op)


def grouped_pipe(fault: ClientFault, workload: Workload) -> bool:
    """Return True if the processes of a workload's services can be targets of a fault on members."""
    return workload.pipe is not None and (workload.pipe.group is not None or not fault.needs_members)


def no_member(fault: ClientFault, plan: PlanContext) -> Problem:
    """Return the problem of a fault on members whose clients are members of no group."""
    message = f"no consumer of `{fault.client}` is in a group: use an arm with `group` in `consume`"
    pipes = [load for load in plan.workloads.values() if load.pipe]
    if any(fault.selector.matches(load.name, arm, "pipe") for load in pipes for arm in load.arms):
        message = (
            f"the plan does not say in which group the processes of the service `{fault.client}` are: add `group` to "
            "its `pipe`"
        )
    return Problem(("client",), message)
