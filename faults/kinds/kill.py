"""``kill``: SIGKILL one node; its container stays dead until the heal starts it again.

What the victim did is recorded (the partitions it led, whether it was the active controller), because recovery from the
death of a combined node takes seconds longer when the quorum must elect first (environment.md: 5.8 s against 3 s).
"""

from typing import ClassVar, Literal

from aftershock.faults.fault import Band, Family, Takes
from aftershock.faults.record import Verb
from aftershock.faults.strikes.victim import NodeFault, NodeStrike
from aftershock.faults.values import BrokerState
from aftershock.faults.waiting import to_the_end

DEAD_DEADLINE_MS = 5_000


class KillStrike(NodeStrike):
    """One node, killed."""

    down: ClassVar[BrokerState] = "exited"
    verb: ClassVar[Verb] = "start"

    async def inject(self) -> None:
        """Kill it and see it dead."""
        await to_the_end(self.scene.world.kill(self.victim))
        await self.see_down(DEAD_DEADLINE_MS)


class Kill(NodeFault):
    """SIGKILL a node for a while."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#d62728", "kill")
    proof: ClassVar[str] = "the container's state, read back each second"
    remedy: ClassVar[str] = "the node is started, and back in the ISR of all it holds"
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "needed"
    allowance_ms: ClassVar[int] = 8_000  # a broker is back in service 3-7 s after `docker start`
    strike: ClassVar[type[NodeStrike]] = KillStrike
    told: ClassVar[bool] = True

    kind: Literal["kill"] = "kill"

    def takes(self) -> Takes:
        """The victim."""
        return "nodes"
