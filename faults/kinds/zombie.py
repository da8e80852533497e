"""``zombie``: freeze an arm's consumers for longer than their sessions, so that they wake up expelled from their group.

What a zombie does before it knows is the point: it may go on with records of partitions that are another's by now, and
its commits must be refused (KIP-62 has heartbeats apart from polls; in KIP-848 the broker assigns).
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from aftershock.errors import FaultError
from aftershock.faults.crew import Op
from aftershock.faults.fault import Band, Draws, Report, Rest, Scene, Strike
from aftershock.faults.kinds.pause_client import PauseClientStrike
from aftershock.faults.problem import Problem
from aftershock.faults.record import Witness
from aftershock.faults.sessions import sessions_of
from aftershock.faults.strikes.clientele import ClientFault
from aftershock.faults.units import format_duration
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently


class ZombieStrike(PauseClientStrike):
    """Consumers, frozen until nobody counts on them any more."""

    async def hold(self, until_us: int | None, report: Report) -> None:
        """They must stay frozen, and be out of their groups before they are thawed."""
        await super().hold(until_us, report)
        report(await self._expelled())

    async def _expelled(self) -> Witness:
        """What the coordinators say of them."""
        members = await patiently(self._members, self.scene.clock, READ_DEADLINE_MS)
        gone = sum(member is False for member in members)
        what = "clients whose group's coordinator no longer has them as members"
        return Witness(what, len(members), gone, "clients", len(members), ok=gone == len(members))

    async def _members(self) -> list[bool | None]:
        return [await self.scene.world.in_group(client) for client in self.targets.clients]

    async def missing(self, since_us: int) -> str | None:
        """None once all run, speak, and are members again."""
        for client in self.targets.clients:
            if not await self.scene.world.in_group(client):
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

    async def aim(self, scene: Scene, draws: Draws) -> Strike:  # noqa: ARG002 -- it draws nothing
        """FaultError if one of them is a member of no group."""
        clients = await self.hit(scene)
        for client in clients:
            if not await scene.world.in_group(client.name):
                raise FaultError(f"the client {client.name} is in no group now, so it can't be expelled from one")
        return ZombieStrike(scene, self.said, clients)

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """Only a consumer in a group has a session, and it must be over before the thaw."""
        if self.op != "consume":
            yield Problem(
                ("op",), "only a consumer can be a zombie, for it has a session: say `op: consume`, or nothing"
            )
            return
        sessions = list(sessions_of(self.selector, rest))
        if not sessions and not rest.unreadable_workloads:
            yield Problem(("client",), f"`{self.client}` consumes in no group, so it has no session to outlast")
        for arm, session_ms in sessions:
            if self.for_ is not None and self.for_ < session_ms:
                yield Problem(
                    ("for",),
                    f"the session of `{arm}` lasts {format_duration(session_ms)}, and a zombie is frozen for longer: "
                    f"lengthen `for` to {format_duration(session_ms + 3000)}, or lower the arm's `session.timeout.ms`",
                )
