"""``pause_client``: freeze an arm's clients and all that they started, sockets open, as a long stop of a JVM does.

A frozen sender's schedule goes on without it: what was due is sent late, all at once, when it is thawed. A consumer
that is frozen for longer than its session is a ``zombie``.
"""

from typing import ClassVar, Literal

from aftershock.faults.fault import Band, Draws, Scene, Strike
from aftershock.faults.record import Verb
from aftershock.faults.strikes.clientele import ClientFault, DownStrike
from aftershock.faults.values import ClientState


class PauseClientStrike(DownStrike):
    """Clients, frozen."""

    down: ClassVar[ClientState] = "paused"
    verb: ClassVar[Verb] = "resume_clients"

    async def put_down(self, client: str) -> None:
        """Freeze it."""
        await self.scene.world.pause_client(client)


class PauseClient(ClientFault):
    """Freeze an arm's clients for a while."""

    band: ClassVar[Band] = Band("#c49c94", "pause client")
    proof: ClassVar[str] = "every process of theirs is stopped, read back each second, and none gives a sign of life"
    remedy: ClassVar[str] = "each is thawed, speaks, and has caught up with its schedule"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 3_000  # the backlog is sent at once

    kind: Literal["pause_client"] = "pause_client"

    async def aim(self, scene: Scene, draws: Draws) -> Strike:  # noqa: ARG002 -- it draws nothing
        """FaultError if there is no such client, or one of them is down already."""
        return PauseClientStrike(scene, self.said, await self.hit(scene))
