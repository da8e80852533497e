"""``kill``: SIGKILL one node; its container stays dead until the heal starts it again.

What the victim did is recorded (the partitions it led, whether it was the active controller), because recovery from the
death of a combined node takes seconds longer when the quorum must elect first (environment.md: 5.8 s against 3 s).
"""

from typing import ClassVar, Literal

from aftershock.faults.fault import READ_BACK_US, Band, Report
from aftershock.faults.kinds.victim import NodeFault, NodeStrike
from aftershock.faults.record import Verb
from aftershock.faults.waiting import to_the_end, until
from aftershock.faults.world import BrokerState

DEAD_DEADLINE_MS = 5_000


class KillStrike(NodeStrike):
    """One node, killed."""

    down: ClassVar[BrokerState] = "exited"
    verb: ClassVar[Verb] = "start"

    async def inject(self) -> None:
        """Kill it and see it dead."""
        await to_the_end(self.scene.world.kill(self.victim))
        await until(self._not_dead, self.scene.clock, DEAD_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """It must stay dead: an engine's restart policy would make the fault a shorter one."""
        while True:
            report(await self.read_back())
            now_us = self.scene.clock.now_us()
            if until_us is None or now_us >= until_us:
                return
            await self.scene.clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))

    async def _not_dead(self) -> str | None:
        state = await self.scene.world.state(self.victim)
        return None if state == self.down else f"node {self.victim} was killed but its container is {state}"


class Kill(NodeFault):
    """SIGKILL a node for a while."""

    band: ClassVar[Band] = Band("#d62728", "kill")
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # a broker is back in service 3-7 s after `docker start`
    strike: ClassVar[type[NodeStrike]] = KillStrike

    kind: Literal["kill"] = "kill"
