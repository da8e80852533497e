"""A node with less of the machine: what it may have is lowered, and put back.

Rules. The limit is the engine's; that it bites is seen in what the kernel counts (periods throttled, memory in use)
while the fault lasts. A limit that the node never runs against proves nothing.
"""

from abc import abstractmethod
from typing import ClassVar

from aftershock.faults.fault import READ_BACK_US, Draws, Family, Report, Scene, Strike
from aftershock.faults.record import Targets, Undo, Witness, all_of
from aftershock.faults.roles import resolve
from aftershock.faults.strikes.victim import NodeFault, duties, in_service, require_running
from aftershock.faults.values import BrokerId, Limits
from aftershock.faults.waiting import to_the_end, until

BACK_DEADLINE_MS = 60_000


class LimitStrike(Strike):
    """One node under limits. ``before``: those it had; ``wanted``: those of the fault."""

    def __init__(self, scene: Scene, victim: BrokerId, targets: Targets, before: Limits, wanted: Limits) -> None:
        self.scene = scene
        self.victim = victim
        self.targets = targets
        self.before = before
        self.wanted = wanted
        restore = Undo("restore_limits", {"broker": victim, **vars(before)})
        # a node that ran out of memory was killed for it
        self.undo = all_of([restore, Undo("start", {"broker": victim})])

    @abstractmethod
    async def sample(self) -> None:
        """Look at what the kernel counts; asked first before the limits are put on."""

    @abstractmethod
    def bitten(self) -> Witness:
        """Whether the node has run against its limit, by what was seen."""

    async def inject(self) -> None:
        """Put the limits on."""
        await self.sample()
        await to_the_end(self.scene.world.limit(self.victim, self.wanted))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """The limits must read back all the time, and in the end the node must have run against them."""
        clock = self.scene.clock
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            report(await self.read_back())
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            await self.sample()
        report(self.bitten())

    async def read_back(self) -> Witness:
        """The limits as the engine has them now."""
        as_asked = await self.scene.world.limits(self.victim) == self.wanted
        what = f"the limits of node {self.victim}, read back, are the ones asked for"
        return Witness(what, asked=1, observed=float(as_asked), unit="reads", n=1, ok=as_asked)

    async def confirm_healed(self) -> None:
        """The limits of before, and the node in service."""
        await until(self._missing, self.scene.clock, BACK_DEADLINE_MS)

    async def _missing(self) -> str | None:
        now = await self.scene.world.limits(self.victim)
        return await in_service(self.victim, self.scene) if now == self.before else f"its limits are {now}"


class LimitFault(NodeFault):
    """A fault that gives one node less."""

    family: ClassVar[Family] = "process"
    severs: ClassVar[bool] = False
    limit_strike: ClassVar[type[LimitStrike]]

    @abstractmethod
    def lowered(self, before: Limits) -> Limits:
        """The limits to put on, given those there are."""

    async def aim(self, scene: Scene, draws: Draws) -> Strike:
        """FaultError if the node doesn't run."""
        victim = await resolve(self.broker, scene.world, draws, "broker")
        await require_running(victim, scene.world)
        led = [state for state in await scene.world.partitions() if state.leader == victim]
        before = await scene.world.limits(victim)
        wanted = self.lowered(before)
        limits = {key: value for key, value in vars(wanted).items() if value is not None}
        roles = {"asked": self.broker, **await duties(victim, led, scene.world), **limits}
        return self.limit_strike(scene, victim, Targets(brokers=(victim,), roles=roles), before, wanted)
