"""``kill_client``: SIGKILL an arm's clients and all that they started; the heal starts them again.

What a client had open when it died is in doubt. A producer goes on where its schedule is by then, and what was due
meanwhile has failed; a consumer is given its partitions anew, and may be handed again what it had not yet committed.
Its old self stays a member of the group until its session times out, 45 s by default, and only then is the new one
given anything: that wait is Kafka's, and belongs to the heal.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from aftershock.faults.fault import Band, Draws, Rest, Scene, Strike
from aftershock.faults.problem import Problem
from aftershock.faults.record import Verb
from aftershock.faults.sessions import sessions_of
from aftershock.faults.strikes.clientele import ClientFault, DownStrike
from aftershock.faults.units import format_duration
from aftershock.faults.values import ClientState

_SHORT_MS = 15_000


class KillClientStrike(DownStrike):
    """Clients, killed."""

    down: ClassVar[ClientState] = "exited"
    verb: ClassVar[Verb] = "start_clients"

    async def put_down(self, client: str) -> None:
        """Kill it and see it dead."""
        await self.scene.world.kill_client(client)


class KillClient(ClientFault):
    """SIGKILL an arm's clients for a while."""

    band: ClassVar[Band] = Band("#8c564b", "kill client")
    proof: ClassVar[str] = "no process of theirs is left, read back each second, and none gives a sign of life"
    remedy: ClassVar[str] = "each is started, is ready (a consumer: has its partitions), and sends in time"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # Python, librdkafka or a JVM start in 1-4 s on a small machine

    kind: Literal["kill_client"] = "kill_client"

    async def aim(self, scene: Scene, draws: Draws) -> Strike:  # noqa: ARG002 -- it draws nothing
        """FaultError if there is no such client, or one of them is down already."""
        return KillClientStrike(scene, self.said, await self.hit(scene))

    def surprises(self, rest: Rest) -> Iterator[Problem]:
        """A consumer that waits longer for its group than anybody would expect of a restart."""
        for arm, session_ms in sessions_of(self.selector, rest):
            if self.for_ is not None and session_ms - self.for_ > _SHORT_MS:
                yield Problem(
                    ("for",),
                    f"the consumer of `{arm}` gets its partitions back when its old session is over, "
                    f"{format_duration(session_ms)} after the kill, and the heal waits for that: lower the arm's "
                    "`session.timeout.ms`, or kill with `op: produce`",
                )
