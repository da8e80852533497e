"""``disconnect_client``: end every TCP connection of an arm's clients, and nobody else's, once.

The harness takes a copy of each socket from the client's process (pidfd_getfd(2), Linux 5.6) and shuts it down both
ways, so the client reads the end of its stream, as from a broker that went away, and the broker sees it hang up. A
process of another user's, as a container of a Java client is to all but root, lets nobody do that: then it fails.

What a client does about it is the client's: it connects again by itself, or doesn't, and the objectives judge that.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from aftershock.errors import FaultError
from aftershock.faults.fault import Band, Draws, Report, Scene, Stake, Strike
from aftershock.faults.record import NOTHING, Witness
from aftershock.faults.strikes.clientele import ClientFault, targets_of
from aftershock.faults.values import ClientProcess
from aftershock.faults.waiting import to_the_end


class DisconnectStrike(Strike):
    """Clients, and the connections that they had. ``before``: those, by client."""

    undo = NOTHING

    def __init__(self, scene: Scene, asked: str, clients: Sequence[ClientProcess]) -> None:
        self.scene = scene
        self.targets = targets_of(asked, clients)
        self.before: dict[str, frozenset[str]] = {}

    async def look(self) -> None:
        """Note what there is to end. FaultError if a client has nothing, or doesn't let us look."""
        for client in self.targets.clients:
            self.before[client] = await self.scene.world.connections(client)
            if not self.before[client]:
                raise FaultError(f"the client {client} has no TCP connection now, so there is none to end")

    async def inject(self) -> None:
        """End them."""
        for client in self.targets.clients:
            await to_the_end(self.scene.world.disconnect_client(client))

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- the action is over
        """None of those connections is there any more, whatever new ones there are."""
        left = [await self.scene.world.connections(client) & had for client, had in self.before.items()]
        had, ended = (sum(map(len, each)) for each in (self.before.values(), left))
        what = f"connections of {', '.join(self.before)} that are no longer established, read back from the kernel"
        report(Witness(what, had, had - ended, "connections", had, ok=ended == 0))


class DisconnectClient(ClientFault):
    """End an arm's clients' connections."""

    severs: ClassVar[bool] = False
    stakes: ClassVar[tuple[Stake, ...]] = ()
    band: ClassVar[Band] = Band("#e377c2", "disconnect client")
    proof: ClassVar[str] = "the connections that it had are no longer established, read back from the kernel"
    remedy: ClassVar[str] = "nothing is left to heal: the client connects again by itself"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["disconnect_client"] = "disconnect_client"

    async def aim(self, scene: Scene, draws: Draws) -> Strike:  # noqa: ARG002 -- it draws nothing
        """FaultError if one of them has no connection, or is another user's."""
        strike = DisconnectStrike(scene, self.said, await self.hit(scene))
        await strike.look()
        return strike
