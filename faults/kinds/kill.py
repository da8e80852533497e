"""``kill``: SIGKILL one node; its container stays dead until the heal starts it again.

What the victim did is recorded (the partitions it led, whether it was the active controller), because recovery from the
death of a combined node takes seconds longer when the quorum must elect first (environment.md: 5.8 s against 3 s).
"""

from typing import Any, ClassVar, Literal

from aftershock.errors import FaultError
from aftershock.faults.fault import READ_BACK_US, Band, Draws, Fault, Report, Scene, Strike
from aftershock.faults.kinds.victim import duties, in_service, require_running
from aftershock.faults.record import Targets, Undo, Witness
from aftershock.faults.roles import RoleText, resolve
from aftershock.faults.waiting import to_the_end, until
from aftershock.faults.world import BrokerId

DEAD_DEADLINE_MS = 5_000
BACK_DEADLINE_MS = 60_000


class Kill(Fault):
    """SIGKILL a node for a while."""

    band: ClassVar[Band] = Band("#d62728", "kill")
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # a broker is back in service 3-7 s after `docker start`

    kind: Literal["kill"] = "kill"
    broker: RoleText

    def roles(self) -> dict[tuple[str, ...], str]:
        """The victim."""
        return {("broker",): self.broker}

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if the victim doesn't run."""
        victim = await resolve(self.broker, scene.world, draws, "broker")
        await require_running(victim, scene.world)
        return KillStrike(scene, victim, {"asked": self.broker, **await duties(victim, scene.world)})


class KillStrike(Strike):
    """One node, killed."""

    def __init__(self, scene: Scene, victim: BrokerId, roles: dict[str, Any]) -> None:
        self.scene = scene
        self.victim = victim
        self.targets = Targets(brokers=(victim,), roles=roles)
        self.undo = Undo("start", {"broker": victim})

    async def inject(self) -> None:
        """Kill it and see it dead."""
        await to_the_end(self.scene.world.kill(self.victim))
        await until(self._not_dead, self.scene.clock, DEAD_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """It must stay dead: an engine's restart policy would make the fault a shorter one."""
        while True:
            dead = await self.scene.world.state(self.victim) == "exited"
            what = f"node {self.victim}'s container, read back, is exited"
            report(Witness(what, asked=1, observed=float(dead), unit="reads", n=1, ok=dead))
            now_us = self.scene.clock.now_us()
            if until_us is None or now_us >= until_us:
                return
            await self.scene.clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))

    async def confirm_healed(self) -> None:
        """Registered again, and in the ISR of every partition it holds."""
        try:
            await until(lambda: in_service(self.victim, self.scene.world), self.scene.clock, BACK_DEADLINE_MS)
        except FaultError as error:
            raise FaultError(f"node {self.victim} did not come back: {error}; look at its log") from error

    async def _not_dead(self) -> str | None:
        state = await self.scene.world.state(self.victim)
        return None if state == "exited" else f"node {self.victim} was killed but its container is {state}"
