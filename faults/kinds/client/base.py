"""A fault on clients: whose workers they are, that they stay silent while it lasts, and that they are back afterwards.

Two things are asked of a client that is down, neither of them of whoever put it down: the state of its processes, read
back from the kernel (and of its container, from the engine), and its sign of life, which the worker itself leaves twice
a second in its spool, with the number of its successes. A worker that was frozen or killed leaves none.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    ExclusiveResource,
    Family,
    Fault,
    Injection,
    InjectionContext,
    Report,
    TargetKind,
)
from aftershock.faults.runtime.record import Targets, Undo, Verb, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.targets.clients import ClientText, Op, Selector, parse, select_clients
from aftershock.faults.targets.values import ClientProcess, ClientState, Heartbeat

BACK_DEADLINE_MS = 90_000  # a consumer that was killed is given its partitions when its old self's session is over
PUNCTUAL_US = 50_000
_SIGN_US = 1_000_000  # twice the time between two signs


def targets_of(asked: str, clients: Sequence[ClientProcess]) -> Targets:
    """The workers, by name."""
    return Targets(clients=tuple(sorted(client.name for client in clients)), roles={"asked": asked})


class DownInjection(Injection):
    """Clients that are put ``down``, and brought back by ``verb``."""

    down: ClassVar[ClientState]
    verb: ClassVar[Verb]

    def __init__(self, context: InjectionContext, asked: str, clients: Sequence[ClientProcess]) -> None:
        self.context = context
        self.targets = targets_of(asked, clients)
        self.undo = Undo(self.verb, {"clients": list(self.targets.clients)})

    @abstractmethod
    async def put_down(self, client: str) -> None:
        """Do it to one."""

    async def inject(self) -> None:
        """One after the other."""
        for client in self.targets.clients:
            await run_to_completion(self.put_down(client))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """They must read back as down all the time, and give no sign of life."""
        clock, before, began_us = self.context.clock, await self._signs(), self.context.clock.now_us()
        report(await self.read_back())
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            report(await self.read_back())
            if clock.now_us() - began_us >= _SIGN_US:
                report(await self._silence(before))

    async def read_back(self) -> Witness:
        """Their state as the kernel has it now."""
        states = await self._states()
        down = sum(state == self.down for state in states.values())
        what = f"clients whose processes, read back, are {self.down}"
        return Witness(what, len(states), down, "clients", len(states), ok=down == len(states))

    async def _silence(self, before: dict[str, Heartbeat | None]) -> Witness:
        now = await self._signs()
        heard = sum(now[client] != before[client] for client in now)
        what = "clients that gave a sign of life, or had a success"
        return Witness(what, asked=0, observed=heard, unit="clients", n=len(now), ok=heard == 0)

    async def confirm_healed(self) -> None:
        """Each runs, speaks, and sends in time again: what was due meanwhile no longer holds it up."""
        since_us = self.context.clock.now_us()
        try:
            await wait_until(lambda: self.missing(since_us), self.context.clock, BACK_DEADLINE_MS)
        except FaultError as error:
            raise FaultError(f"{error}; look at its log, logs/<client>.log of the run") from error

    async def missing(self, since_us: int) -> str | None:
        """None once all are back, else who isn't and why."""
        states = await self._states()
        for client, sign in (await self._signs()).items():
            if states.get(client) != "running":
                return f"the client {client} is {states.get(client, 'gone')}"
            if sign is None or sign.t_us <= since_us:
                return f"the client {client} has given no sign of life"
            if sign.late_us > PUNCTUAL_US:
                return f"the client {client} is {sign.late_us / 1000:.0f} ms behind its schedule"
        return None

    async def _states(self) -> dict[str, ClientState]:
        there = {client.name: client.state for client in await self.context.world.clients()}
        return {client: there.get(client, "exited") for client in self.targets.clients}

    async def _signs(self) -> dict[str, Heartbeat | None]:
        return {client: await self.context.world.last_heartbeat(client) for client in self.targets.clients}


class ClientFault(Fault):
    """A fault whose targets are an arm's clients, all of them or those of one operation."""

    family: ClassVar[Family] = "client"
    exposure_target: ClassVar[TargetKind] = "clients"
    drops_traffic: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("process", "clients"),)

    client: ClientText
    op: Op | None = None

    def clients(self) -> dict[tuple[str, ...], str]:
        """The arm, and the operation where only that is meant."""
        return {("client",): self.said}

    async def hit(self, context: InjectionContext) -> list[ClientProcess]:
        """Whom it hits now. FaultError if there is no such client, or one of them is down already."""
        clients = select_clients(self.selector, await context.world.clients())
        down = next((client for client in clients if client.state != "running"), None)
        if down is not None:
            sentence = f"the client {down.name} is {down.state} already, so there is nothing to break; "
            raise FaultError(sentence + "let its other fault heal first")
        return clients

    @property
    def selector(self) -> Selector:
        """Whom it means."""
        return parse(self.said)

    @property
    def said(self) -> str:
        """``orders/baseline`` or ``baseline produce``: whom it means, in words."""
        return f"{self.client} {self.op}" if self.op else self.client
